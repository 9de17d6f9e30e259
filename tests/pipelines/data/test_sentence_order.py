"""Sentence order: layout, labels, lone sentences, uniform splits."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.sentence_order import sentence_order_examples

CLS, SEP = 2, 3


def build(segments, split_draws, swap_draws, seq_len):
    out = sentence_order_examples(
        tf.ragged.constant([sum(segment, []) for segment in segments], dtype=tf.int32),
        tf.ragged.constant(
            [
                np.cumsum([0] + [len(sentence) for sentence in segment[:-1]]).tolist()
                for segment in segments
            ],
            dtype=tf.int32,
        ),
        tf.constant(split_draws, tf.float32),
        tf.constant(swap_draws, tf.float32),
        seq_len,
        CLS,
        SEP,
    )
    return {name: value.numpy() for name, value in out.items()}


def test_worked_example():
    segment = [[11, 12, 13], [14, 15]]
    out = build([segment, segment, [[21, 22]]], [0.9, 0.0, 0.5], [0.4, 0.6, 0.1], 9)
    assert out["input_word_ids"].tolist() == [
        [CLS, 14, 15, SEP, 11, 12, 13, SEP, 0],
        [CLS, 11, 12, 13, SEP, 14, 15, SEP, 0],
        [CLS, 21, 22, SEP, 0, 0, 0, 0, 0],
    ]
    assert out["input_type_ids"].tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 1, 0],
        [0, 0, 0, 0, 0, 1, 1, 1, 0],
        [0] * 9,
    ]
    assert out["input_mask"].sum(axis=1).tolist() == [8, 8, 4]
    assert out["sentence_order_labels"].tolist() == [1, 0, 0]
    assert out["sentence_order_weights"].tolist() == [1, 1, 0]


sentence = st.lists(st.integers(5, 99), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(sentence, min_size=1, max_size=5), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
def test_parts_put_back_in_order_give_the_segment(segments, seed):
    rng = np.random.default_rng(seed)
    draws = rng.random((2, len(segments)), np.float32)
    out = build(segments, draws[0], draws[1], 23)
    for row, segment in enumerate(segments):
        length = out["input_mask"][row].sum()
        ids = out["input_word_ids"][row].tolist()
        types = out["input_type_ids"][row]
        assert ids[0] == CLS and ids[length - 1] == SEP and not any(ids[length:])
        len_b = types.sum()
        parts = [ids[1 : length - len_b - 1], ids[length - len_b : length - 1] if len_b else []]
        if out["sentence_order_labels"][row]:
            parts.reverse()
        assert parts[0] + parts[1] == sum(segment, [])
        assert out["sentence_order_weights"][row] == (len(segment) > 1)
        boundaries = np.cumsum([len(s) for s in segment]).tolist()
        assert len(parts[0]) in boundaries and (len(segment) == 1 or all(parts))


def test_splits_are_uniform_and_labels_balanced():
    rows = 20000
    rng = np.random.default_rng(5)
    draws = rng.random((2, rows), np.float32)
    segment = [[5], [6, 6], [7, 7, 7], [8, 8, 8, 8]]
    out = build([segment] * rows, draws[0], draws[1], 16)
    first = np.where(
        out["sentence_order_labels"] == 1,
        out["input_type_ids"].sum(axis=1) - 1,
        out["input_mask"].sum(axis=1) - out["input_type_ids"].sum(axis=1) - 2,
    )
    values, counts = np.unique(first, return_counts=True)
    assert values.tolist() == [1, 3, 6]
    sigma = np.sqrt(rows * (1 / 3) * (2 / 3))
    assert np.abs(counts - rows / 3).max() < 4 * sigma
    assert abs(out["sentence_order_labels"].mean() - 0.5) < 4 * 0.5 / np.sqrt(rows)
