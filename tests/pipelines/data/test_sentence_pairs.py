"""Sentence pairs: layout, labels, lone sentences, uniform splits."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.sentence_pairs import sentence_pair_examples

CLS, SEP = 2, 3


def build(segments, split_draws, change_draws, seq_len, objective="sop", documents=None):
    starts = [
        np.cumsum([0] + [len(sentence) for sentence in segment[:-1]]).tolist()
        for segment in segments
    ]
    documents = documents or range(len(segments))
    out = sentence_pair_examples(
        {
            "input_ids": tf.ragged.constant([sum(s, []) for s in segments], dtype=tf.int32),
            "sentence_starts": tf.ragged.constant(starts, dtype=tf.int32),
            "document_id": tf.constant([[d] for d in documents], tf.int64),
        },
        tf.constant(split_draws, tf.float32),
        tf.constant(change_draws, tf.float32),
        objective,
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


def test_the_highest_draw_splits_before_the_last_sentence():
    highest = np.nextafter(np.float32(1), np.float32(0))
    counts = np.arange(2, 130)
    segments = [[[5]] * count for count in counts]
    out = build(segments, [highest] * len(counts), [0.9] * len(counts), 132)
    assert (out["input_type_ids"].sum(axis=1) == 2).all()
    assert (out["input_mask"].sum(axis=1) == counts + 3).all()


class TestNextSentence:
    SEGMENTS = (
        [[11, 12], [13]],
        [[21], [22, 23, 24], [25]],
        [[31, 32, 33]],
        [[41], [42]],
        [[51], [52]],
    )

    def ids(self, change, documents=(1, 2, 3, 4, 5), seq_len=9):
        return build(self.SEGMENTS, [0.0] * 5, change, seq_len, "nsp", list(documents))

    def test_second_segment_of_the_neighbour(self):
        out = self.ids([0.1, 0.9, 0.1, 0.1, 0.1])
        assert out["input_word_ids"].tolist() == [
            [CLS, 11, 12, SEP, 22, 23, 24, 25, SEP],
            [CLS, 21, SEP, 22, 23, 24, 25, SEP, 0],
            [CLS, 31, 32, 33, SEP, 0, 0, 0, 0],  # one sentence: no pair
            [CLS, 41, SEP, 42, SEP, 0, 0, 0, 0],  # its neighbour has no second segment
            [CLS, 51, SEP, 52, SEP, 0, 0, 0, 0],  # no neighbour
        ]
        assert out["sentence_order_labels"].tolist() == [1, 0, 0, 0, 0]
        assert out["sentence_order_weights"].tolist() == [1, 1, 0, 1, 1]

    def test_cut_to_what_fits(self):
        out = self.ids([0.1, 0.1, 0.9, 0.9, 0.9], seq_len=8)
        assert out["input_word_ids"][0].tolist() == [CLS, 11, 12, SEP, 22, 23, 24, SEP]
        assert out["input_word_ids"][1].tolist() == [CLS, 21, SEP, 13, SEP, 0, 0, 0]

    def test_never_of_the_same_document(self):
        out = self.ids([0.1] * 5, documents=(7, 7, 3, 4, 5))
        assert out["sentence_order_labels"].tolist() == [0] * 5


def test_no_objective_no_label():
    segment = [[11, 12, 13], [14, 15]]
    out = build([segment] * 2, [0.9, 0.0], [0.1, 0.9], 9, "none")
    assert out["input_word_ids"].tolist() == [[CLS, 11, 12, 13, SEP, 14, 15, SEP, 0]] * 2
    assert not out["sentence_order_weights"].any() and not out["sentence_order_labels"].any()
