import numpy as np
import pytest
import tensorflow as tf

from albert_tf import losses
from albert_tf.config import SHARING_MODES
from albert_tf.models import AlbertForPreTraining
from pipelines.data.row_packing import pack_rows
from tests.builders import tiny_config

LENGTH, PREDICTIONS, EXAMPLES = 16, 3, 24


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, LENGTH + 1, EXAMPLES)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    counts = np.clip(np.round(0.15 * lengths), 1, PREDICTIONS)
    weights = (np.arange(PREDICTIONS) < counts[:, None]).astype(np.float32)
    places = np.sort(rng.integers(1, lengths[:, None] - 1, [EXAMPLES, PREDICTIONS])) * (weights > 0)
    batch = {
        "input_word_ids": rng.integers(5, 40, [EXAMPLES, LENGTH]) * mask,
        "input_mask": mask,
        "input_type_ids": (np.arange(LENGTH) >= lengths[:, None] // 2) * mask,
        "masked_lm_positions": places,
        "masked_lm_ids": rng.integers(5, 40, [EXAMPLES, PREDICTIONS]) * (weights > 0),
        "sentence_order_labels": rng.integers(0, 2, EXAMPLES),
        "opens_document": rng.integers(0, 2, EXAMPLES),
    }
    batch = {name: tf.constant(values, tf.int32) for name, values in batch.items()}
    order_weights = tf.constant(rng.integers(0, 2, EXAMPLES), tf.float32)
    return {
        **batch,
        "masked_lm_weights": tf.constant(weights),
        "sentence_order_weights": order_weights,
    }


def examples_of(batch):
    """Returns the examples of a batch, packed or not, as (pieces, types, predictions, order)."""
    found = []
    batch = {name: values.numpy() for name, values in batch.items()}
    for row, mask in enumerate(batch["input_mask"]):
        places = batch.get(
            "input_positions", np.arange(LENGTH)[None].repeat(len(batch["input_mask"]), 0)
        )[row]
        begins = np.flatnonzero((places == 0) & (mask == 1))
        ends = [*begins[1:], mask.sum()]
        for number, (begin, end) in enumerate(zip(begins, ends)):
            assert (places[begin:end] == np.arange(end - begin)).all()
            at = batch["masked_lm_positions"][row]
            of = (batch["masked_lm_weights"][row] > 0) & (at >= begin) & (at < end)
            order = [
                np.atleast_2d(batch[name].T).T[row, number]
                for name in sorted(batch)
                if "order" in name or "opens" in name
            ]
            pieces = (
                batch["input_word_ids"][row, begin:end],
                batch["input_type_ids"][row, begin:end],
            )
            predictions = at[of] - begin, batch["masked_lm_ids"][row][of]
            if "cls_positions" in batch:
                assert batch["cls_positions"][row, number] == begin
            found.append(tuple(map(tuple, (*pieces, *predictions, order))))
    return sorted(found)


@pytest.mark.parametrize("multiple", [1, 6])
def test_the_same_examples_in_fewer_rows(multiple):
    batch = make_batch()
    packed = pack_rows(batch, multiple)
    assert examples_of(packed) == examples_of(batch)
    rows = packed["input_mask"].shape[0]
    filled = batch["input_mask"].numpy().mean() * EXAMPLES
    assert rows % multiple == 0 and filled <= rows < 1.25 * filled + multiple
    for name in ("sentence_order_weights", "masked_lm_weights"):
        assert packed[name].numpy().sum() == batch[name].numpy().sum()


def test_an_example_that_fills_a_row_is_alone():
    batch = {name: values[:2] for name, values in make_batch().items()}
    batch["input_mask"] = tf.ones([2, LENGTH], tf.int32)
    assert pack_rows(batch, 1)["input_mask"].shape[0] == 2


def loss_and_gradients(model, batch, **options):
    with tf.GradientTape() as tape:
        sums = losses.pretraining_sums(model(batch, training=True, **options), batch)
        loss = losses.pretraining_loss(sums, losses.pretraining_weights(batch))
    gradients = tape.gradient(loss, model.trainable_variables, unconnected_gradients="zero")
    return sums, [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


@pytest.mark.parametrize(
    ("sharing", "recompute", "hidden_states"),
    [
        *((sharing, False, False) for sharing in SHARING_MODES),
        ("all", True, False),
        ("all", False, True),
    ],
)
def test_loss_and_gradients_are_the_same(sharing, recompute, hidden_states):
    config = tiny_config(
        vocab_size=41, num_hidden_layers=3, initializer_range=0.2, parameter_sharing=sharing
    )
    model = AlbertForPreTraining(config, recompute)
    model.create_variables()
    batch = make_batch()
    sums, gradients = loss_and_gradients(model, batch, hidden_states=hidden_states)
    of_rows, of_packed = loss_and_gradients(model, pack_rows(batch, 1), hidden_states=hidden_states)
    for objective, values in sums.items():
        for name, value in values.items():
            np.testing.assert_allclose(
                of_rows[objective][name], value, rtol=1e-6, err_msg=objective
            )
    for one, other in zip(gradients, of_packed):
        np.testing.assert_allclose(other, one, atol=1e-6 * np.abs(one).max() + 1e-8)
