import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import albert_tf
from albert_tf import losses, models
from albert_tf.checkpoints import model_directory
from tests.builders import raises_one_line, tiny_config

BATCH, LENGTH = 3, 11
LENGTHS, FIRST_LENGTHS = [11, 8, 9], [4, 5, 3]
CONFIG = tiny_config(initializer_range=0.3, classifier_dropout_prob=0.0)
MASK = np.arange(LENGTH) < np.array(LENGTHS)[:, np.newaxis]
INPUTS = {
    "input_word_ids": np.random.default_rng(0).integers(5, 61, [BATCH, LENGTH], np.int32) * MASK,
    "input_mask": MASK,
    "input_type_ids": MASK & (np.arange(LENGTH) >= np.array(FIRST_LENGTHS)[:, np.newaxis]),
}


def test_loss_of_spans():
    outputs = models.AlbertForQuestionAnswering(CONFIG)(INPUTS)
    assert all(np.all(logits.numpy()[~MASK] == np.float32(-1e30)) for logits in outputs.values())
    starts, ends = np.array([4, 0, 5]), np.array([7, 0, 5])
    rows = np.arange(BATCH)
    start, end = (special.log_softmax(logits.numpy(), axis=1) for logits in outputs.values())
    expected = -0.5 * (start[rows, starts] + end[rows, ends])
    found = losses.span_loss(outputs, tf.constant(starts), tf.constant(ends))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def layer_norm(x):
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-12)


def reference_head(model):
    """Returns start logits, end logits of every (row, start) and answerability, in NumPy."""
    head = model.span_beam
    hidden = model.encoder(INPUTS)["sequence_output"].numpy()
    weights = {layer.name: [w.numpy() for w in layer.weights] for layer in head._flatten_layers()}

    def dense(name, x):
        kernel, *bias = weights[name]
        return x @ kernel + (bias[0] if bias else 0.0)

    allowed = np.zeros([BATCH, LENGTH], bool)
    for row, (length, first) in enumerate(zip(LENGTHS, FIRST_LENGTHS)):
        allowed[row, first : length - 1] = True
        allowed[row, 0] = True
    start = np.where(allowed, dense("start", hidden)[..., 0], -1e30)
    ends = np.zeros([BATCH, LENGTH, LENGTH])
    for row in range(BATCH):
        for s in range(LENGTH):
            pair = np.concatenate([hidden[row], np.tile(hidden[row, s], [LENGTH, 1])], axis=-1)
            logits = dense("end", layer_norm(np.tanh(dense("end_hidden", pair))))[:, 0]
            ends[row, s] = np.where(allowed[row], logits, -1e30)
    at_starts = np.einsum("bl,blh->bh", special.softmax(start, -1), hidden)
    feature = np.concatenate([at_starts, hidden[:, 0]], axis=-1)
    no_answer = dense("answer", np.tanh(dense("answer_hidden", feature)))[:, 0]
    return start, ends, no_answer


def test_span_beams():
    model = models.AlbertForAnswerableQuestionAnswering(CONFIG)
    model.create_variables()
    start, ends, no_answer = reference_head(model)
    check_beams(model, start, ends, no_answer)
    check_training(model, start, ends, no_answer)


def check_beams(model, start, ends, no_answer):
    outputs = {name: value.numpy() for name, value in model(INPUTS).items()}
    np.testing.assert_allclose(outputs["cls_logits"], no_answer, atol=1e-4)
    assert outputs["start_top_index"].shape == (BATCH, 5)
    assert outputs["end_top_index"].shape == (BATCH, 25)
    for row in range(BATCH):
        best = np.argsort(-start[row])[:5]
        # Row 1 has three places for an answer: beyond them any order will do.
        places = int((start[row] > -1e29).sum())
        assert outputs["start_top_index"][row].tolist()[:places] == best.tolist()[:places]
        log_probs = np.log(np.maximum(special.softmax(start[row], -1), 1e-38))
        found = outputs["start_top_log_probs"][row][:places]
        np.testing.assert_allclose(found, log_probs[best[:places]], atol=1e-3)
        for i in range(min(places, 5)):
            here = ends[row, best[i]]
            top = outputs["end_top_index"][row].reshape(5, 5)[i]
            assert top.tolist()[:places] == np.argsort(-here)[:5].tolist()[:places]


def check_training(model, start, ends, no_answer):
    """The right start is what ends are scored from, and only in training."""
    starts = np.array([6, 0, 4])
    batch = {**INPUTS, "start_positions": tf.constant(starts, tf.int32)}
    outputs = model(batch, dropout_seed=tf.constant([3, 4]))
    np.testing.assert_allclose(outputs["start_logits"], start, rtol=1e-4, atol=1e-4)
    ends = ends[np.arange(BATCH), starts]
    np.testing.assert_allclose(outputs["end_logits"], ends, rtol=1e-4, atol=1e-4)
    assert "start_top_index" in model(batch), "labels of an evaluation batch are looked at"

    impossible = np.array([0, 1, 0])
    places = tf.constant(starts), tf.constant(starts)
    found = losses.answerable_span_loss(outputs, *places, tf.constant(impossible))
    spans = losses.span_loss(outputs, *places).numpy()
    crossed = np.log1p(np.exp(np.where(impossible == 1, -no_answer, no_answer)))
    np.testing.assert_allclose(found, spans + 0.5 * crossed, rtol=1e-4)


def test_the_encoder_of_another_model(pretrained):
    source, _ = albert_tf.from_pretrained(pretrained)
    _, checkpoint = model_directory.find_checkpoint(str(pretrained))
    model = models.AlbertForQuestionAnswering(source.config)
    model.create_variables()
    model_directory.restore_encoder(model.encoder, checkpoint)
    np.testing.assert_equal(model.encoder.get_weights(), source.encoder.get_weights())
    other = models.AlbertForQuestionAnswering(dataclasses.replace(source.config, hidden_size=24))
    other.create_variables()
    with pytest.raises(ValueError, match="does not hold this model's weights"):
        model_directory.restore_encoder(other.encoder, checkpoint)
    model.create_variables()
    with pytest.raises(ValueError, match=r"it lacks .* and 1 more"):
        model_directory.restore_weights(model, checkpoint)


def test_labels_and_losses_that_cannot_be_meant():
    model = models.AlbertForTokenClassification(CONFIG, num_labels=2)
    keras, name = tf.keras, "sparse_categorical_crossentropy"
    for loss in (name, getattr(keras.losses, name), keras.losses.BinaryCrossentropy()):
        with raises_one_line(r"rossentropy expects probabilities, .*\(from_logits=True\)"):
            model.compile("sgd", loss={"logits": loss})
    for metric in (name, keras.metrics.BinaryCrossentropy(), keras.metrics.AUC()):
        with raises_one_line(r" expects probabilities, .*\(from_logits=True\)"):
            model.compile("sgd", "mse", metrics=[metric])

    def own_crossentropy(labels, logits):
        return getattr(keras.losses, name)(labels, logits, from_logits=True)

    model.compile("sgd", own_crossentropy, [keras.metrics.AUC(from_logits=True), "accuracy"])
    for num_labels in (0, "2", ["a", "b"]):
        with raises_one_line("num_labels=.*: expected a whole number, 1 or more"):
            models.AlbertForSequenceClassification(CONFIG, num_labels)
    for config in ("albert_base", dataclasses.asdict(CONFIG)):
        with pytest.raises(TypeError, match=r"config is a .*, expected an AlbertConfig, such as"):
            models.AlbertForSequenceClassification(config, num_labels=2)
