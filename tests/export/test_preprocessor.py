"""The SavedModel in other models: its preprocessor, and its encoder as a layer."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.encoder import AlbertEncoder
from export.loading import open_checkpoint
from export.modules.pretraining_module import EncoderModule
from export.preprocessor import Preprocessor
from tests.export.conftest import CONFIG, MAX_SEQ_LENGTH
from tests.export.task_models import serve
from tests.export.test_serving_module import LONG, SHORT, check_packed, packed

NAMES = ("input_word_ids", "input_mask", "input_type_ids")


def check(inputs, rows, seq_length):
    assert inputs.keys() == {*NAMES}
    check_packed([inputs[name] for name in NAMES], rows, seq_length)


def test_texts_become_the_inputs_of_the_encoder(tmp_path, tokenizer):
    import tensorflow_hub as hub

    Preprocessor(tokenizer, MAX_SEQ_LENGTH, 67).save(str(tmp_path))
    loaded = hub.load(str(tmp_path))
    first, second = [SHORT, LONG, "", "dog"], ["Birds sing.", LONG, "", SHORT]
    pieces = [tokenizer.encode_batch(texts) for texts in (first, second)]
    rows = [packed(ids, [], tokenizer) for ids in pieces[0]]
    check(loaded(tf.constant(first)), rows, MAX_SEQ_LENGTH)
    batches = list(tf.data.Dataset.from_tensor_slices(first).batch(3).map(loaded))
    check(batches[0], rows[:3], MAX_SEQ_LENGTH)
    tokenized = [loaded.tokenize(tf.constant(texts)) for texts in (first, second)]
    assert tokenized[0].dtype == tf.int32 and tokenized[0][0].numpy().tolist() == pieces[0][0]
    # A short seq_length: segments are cut, and an empty second one is a segment.
    for seq_length, arguments in ((MAX_SEQ_LENGTH, {}), (20, {"seq_length": 20})):
        rows = [packed(*pair, tokenizer, seq_length) for pair in zip(*pieces)]
        rows[2] = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id], [0, 0, 1]
        check(loaded.bert_pack_inputs(tokenized, **arguments), rows, seq_length)


def test_the_signature_tokenize_gives_the_inputs_of_tokens(module):
    inputs = {"text": [SHORT, LONG, "", "dog"], "text_pair": ["Birds sing.", LONG, "", " "]}
    answers = serve(module, "pooled", **serve(module, "tokenize", **inputs))
    assert not any(answers["error"])
    expected = serve(module, "serving_default", **inputs)["pooled_output"]
    np.testing.assert_allclose(answers["pooled_output"], expected, atol=1e-5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tokenizer, model_dir):
    """The path of an encoder with dropout, the encoder, and what is loaded from there."""
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.2)
    encoder = AlbertEncoder(dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size, **dropout))
    encoder({name: tf.zeros([1, 2], tf.int32) for name in NAMES})
    module = EncoderModule(encoder, open_checkpoint(str(model_dir), "encoder", 37))
    path = str(tmp_path_factory.mktemp("reusable") / "1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EncoderModule, "signatures", {})  # what is called is enough
        tf.saved_model.save(module, path, signatures=module.functions())
    return path, encoder, tf.saved_model.load(path)


@pytest.fixture(scope="module")
def batch():
    rows = [[[7, 9, 11], [20, 5, 8]], [[1] * 3] * 2, [[0] * 3] * 2]
    return {name: tf.constant(values) for name, values in zip(NAMES, rows)}


def classifier(loaded, trainable):
    import tensorflow_hub as hub

    inputs = {name: tf.keras.Input([None], dtype=tf.int32, name=name) for name in NAMES}
    layer = hub.KerasLayer(loaded, trainable=trainable)
    logits = tf.keras.layers.Dense(2)(layer(inputs)["pooled_output"])
    return tf.keras.Model(inputs, logits), layer


def test_every_weight_learns_or_none(saved, batch):
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


def compiled_functions(function):
    """Names of the functions, of all that one calls, that are for XLA alone."""
    graph = function.graph.as_graph_def()
    return [f.signature.name for f in graph.library.function if f.attr["_XlaMustCompile"].b]


def test_what_is_served_is_free_of_xla(loaded, saved):
    for name, function in loaded.signatures.items():
        assert not compiled_functions(function), name
    trained = saved[2].__call__.concrete_functions
    assert any(map(compiled_functions, trained)), "else the test sees nothing"
