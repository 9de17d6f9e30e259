"""Forward, losses and gradients equal the reference implementation, through the importers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import losses
from albert_tf.checkpoints import google, name_map
from tests.golden import make_golden

RELATIVE_TOLERANCE = 1e-5


def save_tensors(prefix, tensors, slices=None):
    """Writes a checkpoint in TF1's format; `slices` as tf.raw_ops.SaveV2 takes them."""
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=slices or [""] * len(tensors),
        tensors=[tf.constant(array) for array in tensors.values()],
    )


def write_tf1_checkpoint(directory, case):
    """A checkpoint in TF1's format, in the names of the reference."""
    directory.mkdir(parents=True)
    tensors = {**case.weights, "global_step": np.int64(7)}
    save_tensors(str(directory / "model.ckpt-best"), tensors)
    (directory / "albert_config.json").write_text(json.dumps(case.config))
    return str(directory)


def compute(model, batch):
    """Returns outputs and gradients as the reference names them."""
    batch = {name: tf.constant(array) for name, array in batch.items()}
    # The reference adds 1e-5 to the denominator of the masked-LM loss.
    denominators = {
        "masked_lm": tf.reduce_sum(batch["masked_lm_weights"]) + 1e-5,
        "sentence_order": tf.reduce_sum(batch["sentence_order_weights"]),
    }
    with tf.GradientTape() as tape:
        logits = model(batch)
        sums = losses.pretraining_sums(logits, batch)
        loss = losses.pretraining_loss(sums, denominators)
    variables = name_map.model_variables(model)
    gradients = dict(zip(variables, tape.gradient(loss, list(variables.values()))))
    gradients = {name: tf.convert_to_tensor(g).numpy() for name, g in gradients.items()}
    encoded = model.encoder(batch)
    outputs = {
        "embedding_output": model.encoder.embeddings(batch)[0],
        "sequence_output": encoded["sequence_output"],
        "pooled_output": encoded["pooled_output"],
        **{f"layer_{i}": state for i, state in enumerate(encoded["hidden_states"][1:])},
        "total_loss": loss,
    }
    for objective, denominator in denominators.items():
        log_probs = tf.nn.log_softmax(logits[f"{objective}_logits"])
        outputs[f"{objective}_log_probs"] = tf.reshape(log_probs, [-1, log_probs.shape[-1]])
        outputs[f"{objective}_loss"] = sums[objective]["loss"] / denominator
    outputs = {name: np.asarray(output) for name, output in outputs.items()}
    return outputs, name_map.from_ours(gradients, model.config, "google")


def relative_error(actual, expected, scale=0.0):
    """Returns the largest error of an array, or of its summary, in units of its largest element.

    `scale` is a larger unit, if there is one.
    """
    if expected.shape == make_golden.SUMMARY_SHAPE:
        actual = make_golden.summary(actual)
        scale = np.full(expected.shape, max(expected[0], scale))
        # Norm and projection add up over the array; all else is one element.
        scale[1:3] = np.maximum(scale[1:3], expected[1])
    else:
        scale = max(np.abs(expected).max(), scale)
    return (np.abs(actual - expected.reshape(actual.shape)) / scale).max()


def assert_parity(source, imported, case):
    model, fresh = name_map.build(imported, source)
    assert not fresh
    outputs, gradients = compute(model, case.batch)
    for name, expected in case.outputs.items():
        assert relative_error(outputs[name], expected) <= RELATIVE_TOLERANCE, name
    assert set(gradients) == set(case.gradients)
    for name, expected in case.gradients.items():
        # The true gradient of a key bias is 0: what is left is rounding of the query's.
        of = name.replace("/key/bias", "/query/bias")
        error = relative_error(gradients[name], expected, np.abs(gradients[of]).max())
        assert error <= RELATIVE_TOLERANCE, name


@pytest.mark.parametrize("name", make_golden.CASES)
def test_equals_reference(name, tmp_path):
    case = make_golden.read_fixture(name)
    path = write_tf1_checkpoint(tmp_path / name, case)
    assert_parity(path, google.read(path), case)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("forward", "google_tf1/tf1_ckpt"),
        ("forward_noproj", None),
        ("tiny_gelu", "tiny_gelu/model.ckpt"),
    ],
)
def test_equals_whole_reference(name, path, shared, tmp_path):
    golden = shared / "golden"
    case = make_golden.read_reference(golden, name)
    path = str(golden / path) if path else write_tf1_checkpoint(tmp_path / name, case)
    assert_parity(path, google.read(path), case)


@pytest.mark.shared
@pytest.mark.parametrize("name", make_golden.CASES)
def test_fixtures_are_made_of_the_reference(name, shared):
    whole = make_golden.read_reference(shared / "golden", name)
    small = make_golden.read_fixture(name)
    assert whole.config == small.config
    assert len(small.outputs) == 8 + small.config["num_hidden_layers"]
    for part in ("weights", "batch"):
        for key, array in getattr(whole, part).items():
            np.testing.assert_array_equal(getattr(small, part)[key], array)
    for part in ("outputs", "gradients"):
        for key, array in getattr(whole, part).items():
            expected = make_golden.summary(array).astype(np.float32)
            np.testing.assert_array_equal(getattr(small, part)[key], expected)


@pytest.mark.shared
@pytest.mark.parametrize("run", make_golden.RUNS)
def test_steps_are_made_of_the_reference(run, shared):
    described, whole = make_golden.read_run(shared / "golden", run)
    described_here, small = make_golden.read_run_fixture(run)
    assert described_here == described
    assert small.keys() == whole.keys()
    for step, arrays in whole.items():
        assert small[step].keys() == arrays.keys()
        for name, array in arrays.items():
            expected = make_golden.summary(array).astype(np.float32)
            np.testing.assert_array_equal(small[step][name], expected)


@pytest.mark.shared
def test_learning_rates_are_the_references(shared):
    expected = make_golden.read_learning_rates(shared / "golden")
    assert json.loads(make_golden.LEARNING_RATES.read_text()) == expected
