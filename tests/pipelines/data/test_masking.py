"""N-gram masks: un-masking gives the input back, words stay whole, shares are the paper's."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.masking import MaskingVocabulary, mask_ngrams

VOCAB, MASK_ID, CLS, SEP = 101, 4, 2, 3
WORD_STARTS = np.arange(VOCAB) % 3 != 0  # a third of the pieces continue a word
VOCABULARY = MaskingVocabulary(MASK_ID, WORD_STARTS, np.arange(5, VOCAB, dtype=np.int32))


def make_batch(lengths, seq_len, seed):
    """[CLS] A [SEP] B [SEP] of random pieces; a length of (n, 0) has no B."""
    rng = np.random.default_rng(seed)
    ids = np.zeros([len(lengths), seq_len], np.int32)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for row, (a, b) in enumerate(lengths):
        text = rng.integers(5, VOCAB, a + b)
        parts = [[CLS], text[:a], [SEP]] + ([text[a:], [SEP]] if b else [])
        joined = np.concatenate(parts)
        ids[row, : len(joined)] = joined
        mask[row, : len(joined)] = 1
        types[row, a + 2 : len(joined)] = 1
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}


def draw(rows, seq_len, predictions, seed):
    rng = np.random.default_rng(seed)
    shapes = {
        "span_length": (rows, seq_len + 1),
        "span_order": (rows, seq_len + 1),
        "replace": (rows, predictions),
        "replacement": (rows, predictions),
    }
    return {name: rng.random(shape, np.float32) for name, shape in shapes.items()}


def apply(batch, seq_len, predictions, seed=0, prob=0.15, ngram=3):
    draws = draw(len(batch["input_mask"]), seq_len, predictions, seed)
    masked = mask_ngrams(
        {name: tf.constant(value) for name, value in batch.items()},
        VOCABULARY,
        {name: tf.constant(value) for name, value in draws.items()},
        predictions,
        prob,
        ngram,
    )
    return {name: value.numpy() for name, value in masked.items()}


def words_of(batch, row):
    """Returns the word number of every text piece of a row, from the rule's words: a slow copy."""
    length = batch["input_mask"][row].sum()
    first_sep = length - batch["input_type_ids"][row].sum() - 1
    words, word = {}, -1
    for position in range(1, length - 1):
        if position == first_sep:
            continue
        opens = position == 1 or position == first_sep + 1
        word += opens or bool(WORD_STARTS[batch["input_word_ids"][row, position]])
        words[position] = word
    return words


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 14), st.integers(0, 15)), min_size=1, max_size=6),
    st.integers(0, 2**31),
    st.integers(1, 9),
    st.sampled_from([0.08, 0.15, 0.5, 1.0]),
    st.integers(1, 4),
)
def test_unmasking_gives_the_input_back(lengths, seed, predictions, prob, ngram):
    seq_len = 32
    batch = make_batch(lengths, seq_len, seed)
    masked = apply(batch, seq_len, predictions, seed, prob, ngram)
    restored = masked["input_word_ids"].copy()
    for row in range(len(lengths)):
        count = int(masked["masked_lm_weights"][row].sum())
        positions = masked["masked_lm_positions"][row]
        assert (masked["masked_lm_weights"][row] == (np.arange(predictions) < count)).all()
        assert (np.diff(positions[:count]) > 0).all()
        assert (positions[count:] == 0).all() and (masked["masked_lm_ids"][row, count:] == 0).all()
        restored[row, positions[:count]] = masked["masked_lm_ids"][row, :count]
        length = sum(lengths[row]) + 2 + (lengths[row][1] > 0)
        assert count <= min(predictions, max(1, round(prob * length)))
        # Only text, in whole words.
        words = words_of(batch, row)
        chosen = set(positions[:count].tolist())
        assert chosen <= set(words)
        for position in chosen:
            assert {p for p in words if words[p] == words[position]} <= chosen
        untouched = np.ones(seq_len, bool)
        untouched[positions[:count]] = False
        assert (masked["input_word_ids"][row] == batch["input_word_ids"][row])[untouched].all()
    np.testing.assert_array_equal(restored, batch["input_word_ids"])


@pytest.fixture(scope="module")
def many():
    rows, seq_len, predictions = 6000, 96, 15
    rng = np.random.default_rng(7)
    cuts = rng.integers(5, 88, rows)
    batch = make_batch([(cut, 93 - cut) for cut in cuts], seq_len, 1)
    return batch, apply(batch, seq_len, predictions, seed=2)


def within(share, expected, count, sigmas=4):
    return abs(share - expected) <= sigmas * np.sqrt(expected * (1 - expected) / count)


def test_masked_share(many):
    batch, masked = many
    per_row = masked["masked_lm_weights"].sum(axis=1)
    assert 0.995 * 14 <= per_row.mean() <= 14  # round(0.15 * 96)
    assert per_row.max() == 14


def test_80_10_10(many):
    batch, masked = many
    real = masked["masked_lm_weights"] > 0
    now = np.take_along_axis(masked["input_word_ids"], masked["masked_lm_positions"], 1)[real]
    then = masked["masked_lm_ids"][real]
    is_mask = now == MASK_ID
    # One in 96 random pieces is the old one.
    random_piece = 0.1 / (VOCAB - 5)
    assert within(is_mask.mean(), 0.8, now.size)
    assert within((now == then).mean(), 0.1 + random_piece, now.size)
    others = now[~is_mask & (now != then)]
    assert others.min() >= 5
    counts = np.bincount(others, minlength=VOCAB)[5:]
    assert counts.min() > 0.6 * counts.mean()


def test_every_position_is_as_likely(many):
    batch, masked = many
    hits = np.zeros_like(batch["input_mask"])
    real = masked["masked_lm_weights"] > 0
    rows = np.broadcast_to(np.arange(len(hits))[:, None], real.shape)
    hits[rows[real], masked["masked_lm_positions"][real]] = 1
    text = (batch["input_word_ids"] > SEP).astype(int)
    share = hits.sum(0)[1:95] / text.sum(0)[1:95]
    # Spans are cut at the ends and at [SEP]: there words stand a little more often alone.
    expected = hits.sum() / text.sum()
    assert np.abs(share[8:-8] / expected - 1).max() < 5 / np.sqrt(6000 * expected)
    assert np.abs(share / expected - 1).max() < 0.2


def test_ngram_lengths():
    """With words of one piece and a budget for one span, its length has the drawn distribution."""
    rows, seq_len = 20000, 64
    batch = make_batch([(61, 0)] * rows, seq_len, 3)
    batch["input_word_ids"][:, 1:62] = 7  # begins a word
    masked = apply(batch, seq_len, 3, seed=4, prob=3 / 64)
    positions = masked["masked_lm_positions"]
    assert (masked["masked_lm_weights"].sum(axis=1) == 3).all()
    # A first span of three words takes the whole budget: three in a row; two spans touch by chance.
    runs = (np.diff(positions, axis=1) == 1).all(axis=1).mean()
    # P(3 first) = 2/11; else 1+2, 2+1(cut), 1+1+1 ... adjacent by chance, about 2 in 31 spans.
    assert 2 / 11 < runs < 2 / 11 + 0.09
    single = (np.diff(positions, axis=1) > 1).all(axis=1).mean()
    # Three apart: 1, 1, and a first word of any span: (6/11)^2, less what touches by chance.
    assert abs(single - (6 / 11) ** 2 * 0.9) < 0.03


def test_longer_ngrams_are_rarer_and_ngram_1_has_none():
    rows, seq_len = 3000, 64
    batch = make_batch([(61, 0)] * rows, seq_len, 3)
    batch["input_word_ids"][:, 1:62] = 7

    def touching(ngram):
        positions = apply(batch, seq_len, 5, seed=4, prob=5 / 64, ngram=ngram)
        return (np.diff(positions["masked_lm_positions"], axis=1) == 1).mean()

    assert touching(1) < 0.1 < touching(2) < touching(3) < touching(4)
