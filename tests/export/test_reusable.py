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
    """The path of an encoder with dropout, the encoder, and what is loaded from there."""
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EncoderModule, "signatures", {})  # what is called is enough
        tf.saved_model.save(module, path, signatures=module.functions())
    return path, encoder, tf.saved_model.load(path)


@pytest.fixture(scope="module")
def batch(saved):
    vocab_size = saved[1].config.vocab_size
    ids = np.random.RandomState(3).randint(5, vocab_size, [3, 9]).astype(np.int32)
    ones = np.ones_like(ids)
    return {name: tf.constant(values) for name, values in zip(NAMES, (ids, ones, 0 * ones))}


def classifier(loaded, trainable):
    import tensorflow_hub as hub

    inputs = {name: tf.keras.Input([None], dtype=tf.int32, name=name) for name in NAMES}
    layer = hub.KerasLayer(loaded, trainable=trainable)
    logits = tf.keras.layers.Dense(2)(layer(inputs)["pooled_output"])
    return tf.keras.Model(inputs, logits), layer


def test_every_weight_learns_or_none(saved, batch):
    """How well: the guide of test_preprocessor.py."""
    _, encoder, loaded = saved
    model, layer = classifier(loaded, trainable=True)
    assert len(layer.trainable_weights) == len(encoder.trainable_variables) > 10
    with tf.GradientTape() as tape:
        logits = model(batch, training=True)
    gradients = tape.gradient(logits, model.trainable_weights)
    for variable, gradient in zip(model.trainable_weights, gradients):
        assert gradient is not None, variable.name
    model, layer = classifier(loaded, trainable=False)
    assert not layer.trainable_weights and len(model.trainable_weights) == 2


def test_dropout_is_drawn_in_training_only(saved, batch):
    _, encoder, loaded = saved
    outputs = [loaded(batch, training=training) for training in (False, False, True, True)]
    expected = encoder(batch)
    for name in ("sequence_output", "pooled_output"):
        values = [output[name].numpy() for output in outputs]
        np.testing.assert_allclose(values[0], expected[name], atol=1e-5)
        np.testing.assert_array_equal(values[0], values[1])
        assert np.abs(values[2] - values[0]).max() > 1e-3
        assert np.abs(values[2] - values[3]).max() > 1e-3
    assert loaded.regularization_losses == []


def test_a_model_of_other_groups_cannot_begin_with_it(saved):
    path, encoder, _ = saved
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
    trained = saved[2].__call__.concrete_functions
    assert any(map(compiled_functions, trained)), "else the test sees nothing"
