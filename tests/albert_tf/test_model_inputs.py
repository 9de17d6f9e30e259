from functools import cache, partial

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.encoder import AlbertEncoder
from albert_tf.storage.errors import UserError
from tests.albert_tf.test_keras_contract import ALIKE, CONFIG, LAYERS, MODELS

IDS = np.random.default_rng(0).integers(1, 29, [4, 6]).astype(np.int32)
INPUTS = {
    "input_word_ids": IDS,
    "input_mask": (np.arange(6) < [[6], [4], [5], [3]]).astype(np.int32),
    "input_type_ids": np.tile((np.arange(6) > 1).astype(np.int32), [4, 1]),
    "masked_lm_positions": np.array([[1, 2]] * 4, np.int32),
}
NAMES = ("input_word_ids", "input_mask", "input_type_ids")
ALL = {
    "encoder": partial(AlbertEncoder, CONFIG),
    **{name: create for name, (create, _) in MODELS.items()},
}


@cache
def model_of(name):
    """Returns a model that several tests share; they do not change it."""
    return ALL[name]()


def assert_equal(found, expected):
    tf.nest.map_structure(lambda a, b: np.testing.assert_array_equal(a, b), found, expected)


# The other models hand their inputs on as these do.
@pytest.mark.parametrize("name", ["encoder", "multiple_choice", "answerable"])
def test_what_is_refused(name):
    model, one = model_of(name), {name: value[:1] for name, value in INPUTS.items()}
    wrong = {
        r"input_word_ids has shape \(6,\)": {**INPUTS, "input_word_ids": IDS[0]},
        "a dict of tensors": [tf.constant(IDS)] * 3,
        "input_word_ids": {"word_ids": IDS},
        "input_word_ids is a RaggedTensor, expected a tensor": tf.ragged.constant([[1, 2], [3]]),
        "input_mask is a list, expected a tensor": {**INPUTS, "input_mask": [[1] * 6] * 4},
    }
    for key in NAMES:
        wrong[f"{key} is of float32, ex"] = {**INPUTS, key: INPUTS[key].astype("float32")}
    for key in NAMES[1:]:
        wrong[rf"{key} has shape \(1, 3\).*\(1, 6\)"] = {**one, key: one[key][:, :3]}
    for key, value in (*zip(NAMES, (29, 255, 2)), *zip(NAMES, [-1] * 3)):
        wrong[f"{key} has the value {value}, expected 0 to"] = {
            **INPUTS,
            key: np.where(IDS[3, 5] == IDS, value, INPUTS[key]),
        }
    if name == "answerable":  # it must know which pieces are the text
        wrong["input_type_ids"] = IDS
    for message, inputs in wrong.items():
        with pytest.raises(UserError, match=message):
            model(inputs)
    masked = {**INPUTS, "input_word_ids": tf.keras.layers.Masking(0)(IDS)}
    with pytest.raises(UserError, match=r"Keras mask .* give input_mask"):
        model(masked)


@pytest.mark.parametrize("name", [name for name in ALL if f"model {name}" not in ALIKE])
def test_what_will_do(name):
    """Any integers and bools, any number of pieces, no rows; masks and types may be left out."""
    model = model_of(name)
    expected = model(INPUTS)
    types = dict(zip(INPUTS, ("int64", "bool", "uint8", "int64")))
    assert_equal(model({n: value.astype(types[n]) for n, value in INPUTS.items()}), expected)
    found = model({name: value[:0] for name, value in INPUTS.items()})
    tf.nest.map_structure(
        lambda a, b: a[:0].shape.assert_is_compatible_with(b.shape), expected, found
    )
    two = {name: value[:, :2] % 2 for name, value in INPUTS.items()}
    assert all(np.isfinite(value).all() for value in tf.nest.flatten(model(two)))
    if name == "answerable":  # it must know which pieces are the text
        return
    everywhere = {"masked_lm_positions": np.tile(np.arange(6), [4, 1]), "input_word_ids": IDS}
    whole = {**everywhere, "input_mask": np.ones_like(IDS), "input_type_ids": np.zeros_like(IDS)}
    tf.nest.map_structure(partial(np.testing.assert_allclose, atol=1e-5), model(IDS), model(whole))


def test_choices_of_an_example_may_have_an_axis():
    """Keras divides arrays into batches by their first axis."""
    model = ALL["multiple_choice"]()
    inputs = {name: value.reshape([2, 2, -1]) for name, value in INPUTS.items()}
    assert_equal(model(inputs), model(INPUTS))
    assert_equal(model(IDS.reshape([2, 2, 6])), model(IDS))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss={"logits": loss}, run_eagerly=True)
    ids, labels = np.tile(IDS, [2, 1]).reshape([4, 2, 6]), {"logits": np.zeros([4], np.int32)}
    assert model.evaluate(ids, labels, batch_size=2, verbose=0) > 0
    with pytest.raises(UserError, match="3 choices per example, but the model has 2"):
        model(np.ones([4, 3, 6], np.int32))


def test_training_is_no_tensor():
    create, [pooled], _ = LAYERS["classification"]
    states = tf.keras.Input(pooled.shape[1:])
    around = tf.keras.Model(states, create()(states))
    for model, inputs in ((model_of("multiple_choice"), IDS), (around, pooled)):
        for call in (model, tf.function(model, autograph=False)):
            with pytest.raises(ValueError, match="training is a tensor, expected"):
                call(inputs, training=tf.constant(True))
