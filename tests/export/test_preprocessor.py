"""Raw text to a fine-tuned classifier as TF-Hub's guides write it, with an export."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from export.text.preprocessor import PREPROCESSOR_DIR, Preprocessor
from tests.export.conftest import MAX_SEQ_LENGTH
from tests.export.test_serving_module import LONG, SHORT, packed


def check(inputs, rows, seq_length):
    expected = {"input_word_ids": [], "input_mask": [], "input_type_ids": []}
    for ids, types in rows:
        padding = [0] * (seq_length - len(ids))
        for name, row in zip(expected, (ids, [1] * len(ids), types)):
            expected[name].append([*row, *padding])
    assert inputs.keys() == expected.keys()
    for name, values in expected.items():
        assert inputs[name].dtype == tf.int32
        np.testing.assert_array_equal(inputs[name], values, err_msg=name)


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
        inputs = loaded.bert_pack_inputs(tokenized, **arguments)
        assert all(value.shape == (4, seq_length) for value in inputs.values())
        for row in (0, 1, 3):
            ids, types = packed(pieces[0][row], pieces[1][row], tokenizer, seq_length)
            check({n: v[row : row + 1] for n, v in inputs.items()}, [(ids, types)], seq_length)
        ids = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id]
        check({n: v[2:3] for n, v in inputs.items()}, [(ids, [0, 0, 1])], seq_length)


def test_the_signature_tokenize_gives_the_inputs_of_tokens(module, functions):
    text, text_pair = [SHORT, LONG, "", "dog"], ["Birds sing.", LONG, "", " "]
    inputs = {"text": tf.constant(text), "text_pair": tf.constant(text_pair)}
    tokens = functions["tokenize"](**inputs)
    answers, expected = functions["pooled"](**tokens), functions["serving_default"](**inputs)
    assert not any(answers["error"].numpy())
    np.testing.assert_allclose(answers["pooled_output"], expected["pooled_output"], atol=1e-5)


@pytest.mark.slow
def test_the_guide_raw_text_to_a_fine_tuned_classifier(exported):
    """TF-Hub's "Classify text with BERT", line by line, but for a pair of texts."""
    import tensorflow_hub as hub

    path = str(exported / PREPROCESSOR_DIR)
    preprocessor = hub.load(path)
    text_inputs = [tf.keras.layers.Input(shape=(), dtype=tf.string) for _ in range(2)]
    tokenize = hub.KerasLayer(preprocessor.tokenize)
    bert_pack_inputs = hub.KerasLayer(preprocessor.bert_pack_inputs, arguments={"seq_length": 16})
    encoder_inputs = bert_pack_inputs([tokenize(text) for text in text_inputs])
    encoder = hub.KerasLayer(str(exported), trainable=True)
    embeddings = encoder(encoder_inputs)["default"]
    model = tf.keras.Model(text_inputs, tf.keras.layers.Dense(2)(embeddings))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])

    rng = np.random.RandomState(0)
    first = rng.choice(["the fox", "seven birds", "a dog"], 48)
    labels = rng.randint(0, 2, 48)
    second = np.where(labels, "sings", "runs")
    texts = [tf.constant(list(map(str, texts))) for texts in (first, second)]
    model.fit(texts, labels, epochs=20, batch_size=24, verbose=0)
    assert model.evaluate(texts, labels, verbose=0)[1] > 0.9

    # Of single texts the preprocessor is one layer.
    text_input = tf.keras.layers.Input(shape=(), dtype=tf.string)
    outputs = encoder(hub.KerasLayer(path)(text_input))
    single = tf.keras.Model(text_input, outputs)(tf.constant([SHORT, "dog"]))
    assert single["sequence_output"].shape == (2, MAX_SEQ_LENGTH, 20)
    np.testing.assert_array_equal(single["default"], single["pooled_output"])
