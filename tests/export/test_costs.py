"""What a request may cost: small ones that ask for much are refused, or computed in parts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from export.text.limits import (
    MAX_CONTEXT_CHARS,
    MAX_ROWS,
    are_words_read,
    first_chars,
    first_chars_of_contexts,
    last_chars,
)
from tests.export.task_models import TASKS, assert_alike, serve
from tests.export.test_attack import peak_megabytes, row_of, tokens

GROWING, KOREAN = "\ufdfa", "\ud55c"  # 18 characters under NFKD, and 3


@pytest.fixture(scope="module")
def token_classifier(make_module):
    return make_module(TASKS["token_classifier"])


def ids_of(module, signature, rows):
    """Rows of all lengths up to the longest, padded, and some of them bad."""
    seq_len = module.encoder.config.max_position_embeddings
    rng = np.random.RandomState(5)
    mask = (np.arange(seq_len) < rng.randint(1, seq_len + 1, [rows, 1])).astype(int)
    inputs = {
        "input_ids": rng.randint(0, module.sizes["vocab_size"], mask.shape),
        "input_mask": mask,
        "segment_ids": mask * (np.arange(seq_len) > 9),
    }
    inputs["input_ids"][::7, 3] = -1
    if signature == "mlm":
        inputs["mlm_positions"] = rng.randint(0, seq_len, [rows, 2])
    return inputs


@pytest.mark.parametrize("signature", ["tokens", "pooled", "mlm", "sop"])
def test_many_rows_of_ids_are_computed_in_parts(module, signature):
    """At once, the scores of attention of 2,000 rows would be 60 MB, several times."""
    inputs = ids_of(module, signature, 2000)
    few = {name: values[:40] for name, values in inputs.items()}
    expected = serve(module, signature, **few)  # the first one makes kernels, too
    answers = {}
    grown = peak_megabytes(lambda: answers.update(serve(module, signature, **inputs)))
    assert grown < 20 + 3 * sum(values.nbytes for values in answers.values()) / 1e6
    assert_alike(answers, expected)
    for row in (0, 1, 39):
        alone = serve(module, signature, **row_of(inputs, row))
        assert_alike(row_of(answers, row), alone)


def test_too_many_rows_are_refused(module, token_classifier):
    message = rf"batch at most {MAX_ROWS:,}"
    texts, ids = np.full(MAX_ROWS + 1, ""), np.ones([MAX_ROWS + 1, 1], int)
    requests = [
        (module, "tokenize", {"text": texts, "text_pair": texts}),
        (module, "fill_mask", {"text": texts}),
        (module, "examples", {"examples": texts}),
        (module, "pooled", dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ids)),
        (token_classifier, "words", {"words": texts[:, np.newaxis]}),
    ]
    for served, signature, inputs in requests:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            serve(served, signature, **inputs)
    answers = serve(module, "tokenize", text=texts[1:], text_pair=texts[1:])
    assert answers["input_mask"].sum() == 2 * MAX_ROWS


def test_an_answer_that_takes_too_much_memory_is_refused(module):
    """A request of 4 MB that asks for 30,000 logits at each of 1,000,000 positions: 120 GB."""
    row = {name: values[:1] for name, values in tokens().items()}
    positions = np.zeros([1, 1_000_000], int)
    message = r"mlm_logits \[batch, predictions, vocab_size\] must be at most 512 MB"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        serve(module, "mlm", **row, mlm_positions=positions)
    answers = serve(module, "mlm", **row, mlm_positions=positions[:, :0])
    assert answers["mlm_logits"].shape[:2] == (1, 0) and answers["error"] == [b""]


def test_characters_that_become_many_are_read_less():
    texts = tf.constant([GROWING * 9_000, KOREAN * 9_000, "x" * 9_000, GROWING * 90])
    for read in (first_chars, last_chars):
        lengths = tf.strings.length(read(texts, 1_800), "UTF8_CHAR")
        assert lengths.numpy().tolist() == [100, 1_800, 1_800, 90]


def test_contexts_that_are_too_many_characters_together_are_refused(token_classifier):
    texts = np.full(33, b"x" * MAX_CONTEXT_CHARS + b"y", object)
    with pytest.raises(tf.errors.InvalidArgumentError, match="text must be at most 3,200,000 cha"):
        serve(token_classifier, "serving_default", text=texts)
    read = first_chars_of_contexts(tf.constant(texts[1:]), "text")
    assert set(read.numpy()) == {texts[0][:-1]}


def test_words_past_the_first_characters_are_not_read(token_classifier):
    words = [["x" * 60_000, "y" * 40_000, "z"], ["fox"] * 3, [GROWING * 16_666, "a", "bcdefg"]]
    expected = [[True, True, False], [True] * 3, [True, True, False]]
    assert are_words_read(tf.constant(words)).numpy().tolist() == expected
    # Each word is cut off before, too: 60 of them, each of 43 pieces and more.
    many = [["x" * 10_000] * 60 + [""]]
    answers = serve(token_classifier, "words", words=many)
    num_read = MAX_CONTEXT_CHARS // (64 * token_classifier.max_seq_length)
    assert (answers["labels"] != b"").sum() == num_read == 36
    assert (answers["probabilities"] > 0).sum() == num_read
    with pytest.raises(tf.errors.InvalidArgumentError, match="words at most 100,000"):
        serve(token_classifier, "words", words=[["a"] * (MAX_CONTEXT_CHARS + 1)])
