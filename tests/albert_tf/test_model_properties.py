import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import losses, models
from albert_tf.layers.transformer_block import FeedForward
from albert_tf.models import AlbertForPreTraining
from tests.builders import tiny_config

TINY = tiny_config(vocab_size=41, num_hidden_layers=2, initializer_range=0.2)
BATCH, SEQ_LEN, PREDICTIONS = 5, 13, 2

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture
def rows_of_blocks(monkeypatch):
    """A list: the number of rows of each call of a FeedForward."""
    rows, call = [], FeedForward.call

    def watched(self, x, *arguments, **named):
        rows.append(len(x))
        return call(self, x, *arguments, **named)

    monkeypatch.setattr(FeedForward, "call", watched)
    return rows


def new_model(seed, recompute=False, **changes):
    model = AlbertForPreTraining(dataclasses.replace(TINY, **changes), recompute)
    model.create_variables()
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(rng.normal(scale=0.3, size=variable.shape).astype(np.float32))
    return model


def make_batch(seed):
    """Rows of 5 to 13 real positions; predictions among them."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, SEQ_LEN + 1, [BATCH, 1])
    mask = (np.arange(SEQ_LEN) < lengths).astype(np.int32)
    return {
        "input_word_ids": rng.integers(5, 41, [BATCH, SEQ_LEN]).astype(np.int32) * mask,
        "input_mask": mask,
        "input_type_ids": (np.arange(SEQ_LEN) > 3).astype(np.int32) * mask,
        "masked_lm_positions": rng.integers(0, 5, [BATCH, PREDICTIONS]).astype(np.int32),
    }


def run(model, batch):
    """Returns logits, and the sequence output of real positions (0 elsewhere)."""
    outputs = {name: values.numpy() for name, values in model(batch).items()}
    sequence = model.encoder(batch)["sequence_output"].numpy()
    outputs["sequence_output"] = sequence * batch["input_mask"][:, :, np.newaxis]
    return outputs


def assert_same(actual, expected, tolerance=1e-5):
    for name, array in expected.items():
        np.testing.assert_allclose(
            actual[name], array, rtol=0, atol=tolerance * np.abs(array).max(), err_msg=name
        )


def test_padding_changes_nothing():
    model, batch = new_model(1), make_batch(1)
    expected = run(model, batch)
    padding = batch["input_mask"] == 0
    noise = np.random.default_rng(2).integers(0, 41, padding.shape, np.int32)
    noisy = {
        **batch,
        "input_word_ids": np.where(padding, noise, batch["input_word_ids"]),
        "input_type_ids": np.where(padding, 1, batch["input_type_ids"]).astype(np.int32),
    }
    # exp(-10000) is 0 in float32: what stands at padding is not seen at all.
    assert_same(run(model, noisy), expected, tolerance=0)
    widths = {name: 0 if "positions" in name else 4 for name in batch}
    longer = {name: np.pad(array, [(0, 0), (0, widths[name])]) for name, array in batch.items()}
    outputs = run(model, longer)
    outputs["sequence_output"] = outputs["sequence_output"][:, :SEQ_LEN]
    assert_same(outputs, expected)


def test_wanted_positions_come_out_as_among_all():
    model, batch = new_model(4), make_batch(4)
    # In any order, repeated, of padding too.
    positions = np.random.default_rng(4).integers(0, SEQ_LEN, [BATCH, 7])
    positions = tf.constant(positions, tf.int32)
    expected = model.encoder(batch)
    states, pooled = expected["sequence_output"], expected["pooled_output"]
    for wanted in (positions, positions[:, :0]):
        encoded = model.encoder(batch, positions=wanted)
        found, expected = encoded["sequence_output"], tf.gather(states, wanted, batch_dims=1)
        assert found.shape == [BATCH, wanted.shape[1], TINY.hidden_size]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(encoded["pooled_output"], pooled, atol=1e-5)


def test_the_order_is_scored_at_the_separator_too():
    model, batch = new_model(2), make_batch(2)
    found = model(batch, at_separator=True)
    # Position 3 is the last of the first segment, in every row.
    states = model.encoder(batch)["sequence_output"][:, 3]
    expected = model.sentence_order(model.encoder.pooler(states))
    np.testing.assert_allclose(found.pop("separator_order_logits"), expected, atol=1e-5)
    assert_same(found, model(batch))
    # With its loss the step also learns from there; without, it is as it was.
    _, loss, _ = loss_and_gradients(model, batch)
    _, more, _ = loss_and_gradients(model, batch, at_separator=True)
    labels = [0, 1, 1, 0, 1]
    of_separator = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, expected)
    np.testing.assert_allclose(more, loss + tf.reduce_mean(of_separator), rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "last"),
    [
        (AlbertForPreTraining, 1 + PREDICTIONS),
        (functools.partial(models.AlbertForSequenceClassification, num_labels=3), 1),
        (functools.partial(models.AlbertForMultipleChoice, num_choices=BATCH), 1),
    ],
)
def test_the_last_block_computes_what_is_wanted(make, last, rows_of_blocks):
    make(TINY)(make_batch(0))
    assert rows_of_blocks == [BATCH * SEQ_LEN, BATCH * last]


def test_recomputed_gradients_are_the_same():
    both = [new_model(5, recompute, hidden_dropout_prob=0.3) for recompute in (True, False)]
    seed = tf.constant([3, 4])
    assert_near(*(loss_and_gradients(model, make_batch(5), dropout_seed=seed) for model in both))


@pytest.mark.parametrize(
    ("sharing", "recompute", "options"),
    [
        ("all", True, {}),
        ("none", False, {"at_separator": True}),
    ],
)
def test_padding_is_computed_in_attention_only(sharing, recompute, options, rows_of_blocks):
    model, batch = new_model(7, recompute, parameter_sharing=sharing), make_batch(7)
    expected = loss_and_gradients(model, batch, training=True, **options)
    rows_of_blocks.clear()
    assert_near(loss_and_gradients(model, batch, training=True, unpad=True, **options), expected)
    assert len(rows_of_blocks) >= TINY.num_hidden_layers
    assert max(rows_of_blocks) <= batch["input_mask"].sum() + 1 < BATCH * SEQ_LEN


def test_a_batch_of_padding_only_is_unpadded():
    encoder = new_model(5).encoder
    for rows in (0, 2):
        names = ("input_word_ids", "input_mask", "input_type_ids")
        inputs = dict.fromkeys(names, tf.zeros([rows, 9], tf.int32))
        outputs = encoder(inputs, unpad=True)
        assert outputs["pooled_output"].shape == (rows, TINY.hidden_size)


def loss_and_gradients(model, batch, **kwargs):
    batch = {name: tf.convert_to_tensor(array) for name, array in batch.items()}
    batch["masked_lm_ids"] = tf.constant([[7, 11]] * BATCH)
    batch["masked_lm_weights"] = tf.ones([BATCH, PREDICTIONS])
    batch["sentence_order_labels"] = tf.constant([0, 1, 1, 0, 1])
    batch["sentence_order_weights"] = tf.ones([BATCH])
    denominators = {"masked_lm": 1.0 * BATCH * PREDICTIONS, "sentence_order": 1.0 * BATCH}
    with tf.GradientTape() as tape:
        outputs = model(batch, **kwargs)
        sums = losses.pretraining_sums(outputs, batch)
        loss = losses.pretraining_loss(sums, denominators)
    gradients = tape.gradient(loss, model.trainable_variables)
    return outputs, loss, [tf.convert_to_tensor(gradient) for gradient in gradients]


def assert_near(found, expected, tolerance=1e-5, of_gradients=2.0):
    """Compares loss_and_gradients; gradients may differ by as many tolerances of their norm."""
    for outputs, loss, gradients in (found, expected):
        everything = (*outputs.values(), loss, *gradients)
        assert {values.dtype for values in everything} == {tf.float32}
    for name, values in expected[0].items():
        # Or relative to 1, as logits are small differences of large sums.
        largest = max(1.0, np.abs(values).max())
        assert np.abs(found[0][name] - values).max() <= tolerance * largest
    assert abs(found[1] - expected[1]) <= tolerance * expected[1]
    difference = tf.linalg.global_norm([a - b for a, b in zip(found[2], expected[2])])
    assert difference <= of_gradients * tolerance * tf.linalg.global_norm(expected[2])


@pytest.fixture
def mixed_bfloat16():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    yield
    tf.keras.mixed_precision.set_global_policy("float32")


def test_bfloat16_is_near_float32(mixed_bfloat16):
    # Not from make_model: layers keep the policy under which they were made.
    half = new_model(3, parameter_sharing="ffn", num_hidden_groups=2)
    tf.keras.mixed_precision.set_global_policy("float32")
    full = new_model(3, parameter_sharing="ffn", num_hidden_groups=2)
    assert {variable.dtype for variable in half.variables} == {tf.float32}
    batch = make_batch(3)
    # bfloat16 has 8 bits: each of the layers adds roundings of 2**-9 of its values.
    found, expected = loss_and_gradients(half, batch), loss_and_gradients(full, batch)
    assert_near(found, expected, 0.03, of_gradients=3.3)


def test_compiled_equals_not_compiled():
    tf.config.run_functions_eagerly(False)
    model, batch = new_model(6, num_hidden_layers=1), make_batch(6)
    function = functools.partial(loss_and_gradients, model)
    compiled = tf.function(function, autograph=False, jit_compile=True)
    assert_near(compiled(batch), loss_and_gradients(model, batch))


def test_float32_islands(mixed_bfloat16, monkeypatch):
    """Softmax, normalization and logits see float32; what is between them bfloat16."""
    model = new_model(4)
    seen = {"softmax": [], "rsqrt": [], "matmul": []}

    def watch(module, name):
        original = getattr(module, name)

        def watched(x, *args, **kwargs):
            seen[name].append(x.dtype)
            return original(x, *args, **kwargs)

        monkeypatch.setattr(module, name, watched)

    for module, name in ((tf.nn, "softmax"), (tf.math, "rsqrt"), (tf, "matmul")):
        watch(module, name)
    batch = make_batch(4)
    outputs = model(batch)
    assert set(seen["softmax"]) == set(seen["rsqrt"]) == {tf.float32}
    # The types of pieces are looked up by a product; the last one is that with the vocabulary.
    first, *between, last = seen["matmul"]
    assert first == last == tf.float32 and set(between) == {tf.bfloat16}
    assert {values.dtype for values in outputs.values()} == {tf.dtypes.float32}
    # The product with the vocabulary takes the float32 table: only its other side is rounded.
    head, positions = model.masked_lm, batch["masked_lm_positions"]
    encoded = model.encoder(batch, positions=positions)["sequence_output"]
    x = head.layer_norm(head.transform(encoded))
    assert encoded.dtype == x.dtype == tf.bfloat16
    table = model.encoder.embeddings.word_embeddings.numpy()
    expected = tf.cast(x, tf.float32).numpy() @ table.T + head.output_bias.numpy()
    np.testing.assert_allclose(outputs["masked_lm_logits"], expected, rtol=1e-6, atol=1e-6)
