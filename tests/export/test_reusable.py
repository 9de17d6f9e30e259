"""The SavedModel as a layer of another model: it learns, or is left as it is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import saved_model
from albert_tf.encoder import AlbertEncoder
from albert_tf.models import AlbertForSequenceClassification
from export.loading import open_checkpoint
from export.modules.pretraining_module import EncoderModule
from tests.export.conftest import CONFIG

NAMES = ("input_word_ids", "input_mask", "input_type_ids")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tokenizer, model_dir):
    """An encoder with dropout, saved."""
    config = dataclasses.replace(
        CONFIG,
        vocab_size=tokenizer.vocab_size,
        hidden_dropout_prob=0.2,
        attention_probs_dropout_prob=0.2,
    )
    encoder = AlbertEncoder(config)
    encoder({name: tf.zeros([1, 2], tf.int32) for name in NAMES})
    module = EncoderModule(encoder, open_checkpoint(str(model_dir), "encoder", 37))
    path = str(tmp_path_factory.mktemp("reusable") / "1")
    tf.saved_model.save(module, path, signatures=module.functions())
    return path, encoder


def make_batch(number, vocab_size):
    rng = np.random.RandomState(number)
    ids = rng.randint(13, vocab_size, [number, 9]).astype(np.int32)
    labels = rng.randint(0, 2, number)
    ids[np.arange(number), rng.randint(0, 9, number)] = 5 + labels  # one piece decides
    ones = np.ones_like(ids)
    return dict(zip(NAMES, (ids, ones, 0 * ones))), labels


def classifier(path, trainable):
    import tensorflow_hub as hub

    inputs = {name: tf.keras.Input([None], dtype=tf.int32, name=name) for name in NAMES}
    layer = hub.KerasLayer(path, trainable=trainable)
    logits = tf.keras.layers.Dense(2)(layer(inputs)["pooled_output"])
    return tf.keras.Model(inputs, logits), layer


@pytest.mark.slow
def test_it_is_fine_tuned(saved):
    path, encoder = saved
    model, layer = classifier(path, trainable=True)
    assert len(layer.trainable_weights) == len(encoder.trainable_variables) > 10
    batch, labels = make_batch(48, encoder.config.vocab_size)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        value = loss(labels, model(batch, training=True))
    gradients = tape.gradient(value, model.trainable_weights)
    for variable, gradient in zip(model.trainable_weights, gradients):
        assert gradient is not None, variable.name
    [table] = [v for v in layer.trainable_weights if "word_embeddings" in v.name]
    before = table.numpy()
    model.compile(tf.keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    first = model.evaluate(batch, labels, verbose=0)[0]
    model.fit(batch, labels, epochs=25, batch_size=24, verbose=0)
    last, accuracy = model.evaluate(batch, labels, verbose=0)
    assert last < first / 2 and accuracy > 0.9
    assert np.abs(table.numpy() - before).max() > 1e-3


@pytest.mark.slow
def test_it_is_left_as_it_is(saved):
    path, encoder = saved
    model, layer = classifier(path, trainable=False)
    assert not layer.trainable_weights and len(model.trainable_weights) == 2
    batch, labels = make_batch(17, encoder.config.vocab_size)
    before = [variable.numpy() for variable in layer.weights]
    model.compile(
        tf.keras.optimizers.Adam(0.1), tf.keras.losses.SparseCategoricalCrossentropy(True)
    )
    model.fit(batch, labels, epochs=2, verbose=0)
    for variable, value in zip(layer.weights, before):
        np.testing.assert_array_equal(variable, value)


def test_dropout_is_drawn_in_training_only(saved):
    path, encoder = saved
    loaded = tf.saved_model.load(path)
    batch, _ = make_batch(3, encoder.config.vocab_size)
    batch = {name: tf.constant(values) for name, values in batch.items()}
    outputs = [loaded(batch, training=training) for training in (False, False, True, True)]
    expected = encoder(batch)
    for name in ("sequence_output", "pooled_output"):
        values = [output[name].numpy() for output in outputs]
        np.testing.assert_allclose(values[0], expected[name], atol=1e-5)
        np.testing.assert_array_equal(values[0], values[1])
        assert np.abs(values[2] - values[0]).max() > 1e-3
        assert np.abs(values[2] - values[3]).max() > 1e-3
    assert loaded.regularization_losses == []


def test_a_model_begins_with_an_encoder_exported_alone(saved):
    path, encoder = saved
    model = AlbertForSequenceClassification(encoder.config, 2)
    model.create_variables()
    saved_model.restore_encoder(model.encoder, path)
    assert len(model.encoder.weights) == len(encoder.weights)
    for ours, theirs in zip(model.encoder.weights, encoder.weights):
        np.testing.assert_array_equal(ours, theirs, err_msg=theirs.name)
    config = dataclasses.replace(encoder.config, num_hidden_groups=3)
    other = AlbertForSequenceClassification(config, 2)
    other.create_variables()
    with pytest.raises(ValueError, match=r"has no encoder/block_\d\S* of shape"):
        saved_model.restore_encoder(other.encoder, path)


def compiled_functions(function):
    """Names of the functions, of all that one calls, that are for XLA alone."""
    graph = function.graph.as_graph_def()
    return [f.signature.name for f in graph.library.function if f.attr["_XlaMustCompile"].b]


def test_what_is_served_is_free_of_xla(loaded, saved):
    for name, function in loaded.signatures.items():
        assert not compiled_functions(function), name
    trained = tf.saved_model.load(saved[0]).__call__.concrete_functions
    assert any(map(compiled_functions, trained)), "else the test sees nothing"
