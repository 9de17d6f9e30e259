"""The SavedModel in other models: its preprocessor, and its encoder as a layer."""

import numpy as np
import tensorflow as tf

from export.preprocessor import PREPROCESSOR_DIR
from tests.export.conftest import MAX_SEQ_LENGTH
from tests.export.task_models import serve
from tests.export.test_serving_module import LONG, SHORT, check_packed, packed

NAMES = ("input_word_ids", "input_mask", "input_type_ids")


def check(inputs, rows, seq_length):
    assert inputs.keys() == {*NAMES}
    check_packed([inputs[name] for name in NAMES], rows, seq_length)


def test_texts_become_the_inputs_of_the_encoder(exported, tokenizer):
    import tensorflow_hub as hub

    loaded = hub.load(str(exported / PREPROCESSOR_DIR))
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


def test_the_signature_tokenize_gives_the_inputs_of_tokens(saved_module):
    inputs = {"text": [SHORT, LONG, "", "dog"], "text_pair": ["Birds sing.", LONG, "", " "]}
    answers = serve(saved_module, "pooled", **serve(saved_module, "tokenize", **inputs))
    assert not any(answers["error"])
    expected = serve(saved_module, "serving_default", **inputs)["pooled_output"]
    np.testing.assert_allclose(answers["pooled_output"], expected, atol=1e-5)


ROWS = [[[7, 9, 11], [20, 5, 8]], [[1] * 3] * 2, [[0] * 3] * 2]
BATCH = {name: np.array(values, np.int32) for name, values in zip(NAMES, ROWS)}


def test_every_weight_learns_or_none(loaded, model):
    import tensorflow_hub as hub

    layer = hub.KerasLayer(loaded, trainable=True)
    assert len(layer.trainable_weights) == len(model.encoder.trainable_variables) > 10
    with tf.GradientTape() as tape:
        output = layer(tf.nest.map_structure(tf.constant, BATCH), training=True)
        loss = tf.reduce_sum(output["pooled_output"])
    for variable, gradient in zip(layer.weights, tape.gradient(loss, layer.trainable_weights)):
        assert gradient is not None, variable.name
    assert not hub.KerasLayer(loaded, trainable=False).trainable_weights


def test_dropout_is_drawn_in_training_only(loaded, model):
    batch = tf.nest.map_structure(tf.constant, BATCH)
    outputs = [loaded(batch, training=training) for training in (False, False, True, True)]
    expected = model.encoder(batch)
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


def test_what_is_served_is_free_of_xla(loaded):
    for name, function in loaded.signatures.items():
        assert not compiled_functions(function), name
    trained = loaded.__call__.concrete_functions
    assert any(map(compiled_functions, trained)), "else the test sees nothing"
