"""What a user of Keras does with every public layer and model: functional, fit, predict, files."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import encoder, models, optimization
from albert_tf.storage.errors import UserError
from tests.albert_tf.test_keras_contract import EVERY, LAYERS, MODELS, are_equal, flat
from tests.builders import tiny_config
from tests.jobs import PROJECT, run_code


def symbolic(args):
    return tf.nest.map_structure(lambda x: tf.keras.Input(x.shape[1:], dtype=x.dtype), args)


def test_functional_models_are_cloned_and_saved_with_their_dropout(tmp_path):
    create, args, _ = LAYERS["embeddings"]
    inputs = symbolic(args)
    model = tf.keras.Model(inputs, create()(*inputs))
    clone = tf.keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert are_equal(clone(args), model(args))
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert are_equal(loaded(args), model(args))
    assert not are_equal(loaded(args, training=True), loaded(args, training=True))


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(("create", "args"), EVERY)
def test_all_is_fitted(create, args, jit_compile):
    """One step towards outputs that are 1 more than a new layer's."""
    inputs = symbolic(args)
    outputs = create()(*inputs)
    if isinstance(outputs, dict):  # Keras 2 finds no loss for the list of hidden states
        outputs = {name: x for name, x in outputs.items() if name != "hidden_states"}
    model = tf.keras.Model(inputs, outputs)
    targets = tf.nest.map_structure(lambda x: x + tf.ones_like(x), model(args))
    before = model.get_weights()
    model.compile("sgd", "mse", jit_compile=jit_compile)
    data = tf.data.Dataset.from_tensors((tuple(args), targets))
    [loss] = model.fit(data, verbose=0).history["loss"]
    assert np.isfinite(loss) and loss > 0
    assert any(not np.array_equal(*pair) for pair in zip(before, model.get_weights()))


# These have further arguments; test_a_fresh_process_loads_every_file saves all models.
@pytest.mark.parametrize("name", ["token_classification", "multiple_choice", "embedding"])
def test_models_are_saved(name, tmp_path):
    create, inputs = MODELS[name]
    model = create()
    model.create_variables()
    model.encoder.embeddings.trainable = False
    expected = model(inputs)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert are_equal(loaded(inputs), expected)
    assert [w.name for w in loaded.weights] == [w.name for w in model.weights]
    assert len(loaded.trainable_weights) == len(model.trainable_weights) < len(model.weights)


@pytest.mark.parametrize(
    ("create_optimizer", "create_slots"),
    [
        (optimization.lamb, optimization.create_slots),
        (tf.keras.optimizers.Adam, lambda adam, model: adam.build(model.trainable_variables)),
    ],
)
def test_a_compiled_model_is_loaded_compiled(create_optimizer, create_slots, tmp_path):
    """Keras itself compiles functional models alone, such as dense_model."""
    config = tiny_config(num_hidden_layers=1, classifier_dropout_prob=0.0)
    model = models.AlbertForSequenceClassification(config, num_labels=2)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(create_optimizer(0.01), {"logits": loss})
    model.create_variables()
    batch = np.ones([2, 6], np.int32), {"logits": np.array([0, 1])}
    create_slots(model.optimizer, model)
    for variable in model.optimizer.variables():
        variable.assign(tf.ones_like(variable))
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert loaded.test_on_batch(*batch) == model.test_on_batch(*batch) > 0
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    stores = {}, {}
    for one, store in zip((model, loaded), stores):
        one.optimizer.save_own_variables(store)
    np.testing.assert_equal(*({key: np.asarray(store[key]) for key in store} for store in stores))
    assert len(stores[0]) > 2 * len(model.weights)  # the step and two moments of each


def test_a_fresh_process_resumes_optimizers(tmp_path):
    """Bit by bit; a file is saved once more before a step."""
    for kind, bias_correction in (("lamb", True), ("adamw", False)):
        schedule = optimization.WarmUpPolynomialDecay(0.1, 10, 2, 2.0)
        model = dense_model(getattr(optimization, kind)(schedule, bias_correction=bias_correction))
        fit(model)
        model.save(tmp_path / f"{kind}.keras")
        arrays = fit(model)
        np.savez(tmp_path / f"{kind}.npz", *arrays)
        assert arrays[2] == 6 and len(arrays) == 2 + 1 + 4
    code = """
import pathlib, sys, warnings
import numpy as np
import tensorflow as tf
assert "albert_tf.addons" not in sys.modules
for kind in ("lamb", "adamw"):
    path = pathlib.Path(sys.argv[1], f"{kind}.keras")
    tf.keras.models.load_model(path).save(path)
    model = tf.keras.models.load_model(path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(settings alone|Skipping)")
        model.fit(np.eye(4)[:, :3], np.ones([4, 2]), 4, epochs=3, shuffle=False, verbose=0)
    found = [*model.get_weights(), *model.optimizer.get_weights()]
    np.testing.assert_equal(found, [*np.load(path.with_suffix(".npz")).values()])
"""
    run_code(code, str(tmp_path))


def test_an_optimizer_without_its_state_says_so():
    optimizer = optimization.lamb(0.1)
    optimizer = type(optimizer).from_config(optimizer.get_config())
    variable = tf.Variable([1.0, 2.0], name="kernel")
    with pytest.warns(UserWarning, match="Lamb was created from its settings alone"):
        optimizer.apply_gradients([(tf.ones([2]), variable)])


def dense_model(optimizer, widths=(2,)):
    layers = [tf.keras.layers.Dense(width) for width in widths]
    model = tf.keras.Sequential([tf.keras.Input([3]), *layers])
    model.compile(optimizer, loss="mse")
    return model


def fit(model, epochs=3):
    """Takes as many steps; returns weights, step and moments."""
    model.fit(np.eye(4)[:, :3], np.ones([4, 2]), 4, epochs=epochs, shuffle=False, verbose=0)
    return state(model)


def state(model):
    return [variable.numpy() for variable in (*model.variables, *model.optimizer.variables())]


def test_load_weights_rolls_back_a_trained_model(tmp_path):
    model = dense_model(optimization.lamb(0.1))
    saved = fit(model)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    expected = fit(model)
    for file in ("model.keras", "model.weights.h5"):
        model.load_weights(tmp_path / file)
        np.testing.assert_equal(state(model), saved, err_msg=file)
        np.testing.assert_equal(fit(model), expected, err_msg=file)


def test_objects_of_keras_3_are_refused(monkeypatch):
    """Here a class that says it is in Keras' package; Keras 3 itself needs Python 3.12."""
    attributes = {"__module__": "keras.src.x", "shape": (None, 6), "dtype": "int32"}
    kind = type("Theirs", (), {**attributes, "ndim": 2})
    theirs = type("Own", (kind,), {"__module__": "__main__"})()
    monkeypatch.setattr(encoder, "PACKAGE_OF_KERAS_2", "tf_keras")
    create, inputs = MODELS["classification"]
    model, layer = create(), encoder.AlbertEncoder(create().config)
    calls = [lambda x, of=of: of(x) for of in (layer, model)]
    calls += [lambda x: model({"input_word_ids": x}), model.compile]
    calls.append(lambda x: model.fit(inputs, callbacks=[x]))
    for refused in calls:
        with pytest.raises(
            UserError, match=r"Own is of Keras 3, .* use tf.keras; never import ker"
        ):
            refused(theirs)


@pytest.mark.slow
def test_a_fresh_process_loads_every_file(tmp_path):
    """After `import albert_tf` alone: models, and each layer in a functional model of Keras."""
    for param in EVERY:
        create, args = param.values
        inputs = symbolic(args)
        files = {"functional": tf.keras.Model(inputs, create()(*inputs))}
        if isinstance(create(), tf.keras.Model):
            files["own"] = create()
            files["own"].create_variables()
        for kind, model in files.items():
            model.save(tmp_path / f"{param.id} {kind}.keras")
            outputs = model(args if kind == "functional" else args[0])
            np.savez(tmp_path / f"{param.id} {kind}.npz", *flat(outputs))
    # No other module of ours is imported before the files are loaded.
    code = f"""
from pathlib import Path
import albert_tf
import numpy as np
import tensorflow as tf
directory = Path({str(tmp_path)!r})
loaded = {{path.stem: tf.keras.models.load_model(path) for path in directory.glob("*.keras")}}
from tests.albert_tf.test_keras_contract import EVERY, flat
args = {{param.id: param.values[1] for param in EVERY}}
for path in directory.glob("*.npz"):
    name, _, kind = path.stem.rpartition(" ")
    found = loaded[path.stem](args[name] if kind == "functional" else args[name][0])
    for array, expected in zip(flat(found), np.load(path).values()):
        assert np.array_equal(array, expected), path.stem
print(len(loaded))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{len(EVERY) + len(MODELS)}\n", done.stderr[-2000:]
