import collections
import itertools
import random

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_predict

from pipelines.data import sentence_pairs
from pipelines.data.segments import NO_ROOM, Segment, has_order, split_document
from tests.pipelines.data.small_records import as_tensors

CLS, SEP = 2, 3
FIRST = 10  # starts each sentence of a test


def pieces_of(lengths, first=5):
    """Returns sentences of these lengths, of pieces that are all different."""
    ends = np.cumsum(lengths) + first
    return [list(range(end - length, end)) for end, length in zip(ends.tolist(), lengths)]


def build(segments, split_draws, change_draws, seq_len, objective="sop", **more):
    """Returns the examples."""
    tensors = as_tensors(segments, **more)
    draws = (tf.constant(values, tf.float32) for values in (split_draws, change_draws))
    objective = sentence_pairs.SENTENCE_OBJECTIVES[objective]
    pairs = sentence_pairs.choose_pairs(tensors, *draws, objective, seq_len)
    out = sentence_pairs.lay_out(pairs, tensors, seq_len, CLS, SEP)
    return {name: value.numpy() for name, value in out.items()}


def parts_of(out, row):
    """Returns the pieces of A and B of an example, whose layout must be what it says."""
    ids, types = out["input_word_ids"][row].tolist(), out["input_type_ids"][row].tolist()
    length, len_b = out["input_mask"][row].sum(), sum(types)
    assert out["input_mask"][row].tolist() == [1] * length + [0] * (len(ids) - length)
    assert types == [0] * (length - len_b) + [1] * len_b + [0] * (len(ids) - length)
    assert ids[0] == CLS and ids[length - 1] == ids[length - len_b - 1] == SEP
    assert not any(ids[length:])
    return ids[1 : length - len_b - 1], ids[length - len_b : length - 1] if len_b else []


def test_worked_example():
    # The third has a room before it into which the second sentence would have fitted.
    first, second = [11, 12, 13], [14, 15]
    segments, changes = [*[[first, second]] * 3, [[21, 22]]], [0.499, 0.5, 0.1, 0.1]
    out = build(segments, [0.9, 0.0, 0.5, 0.0], changes, 9, rooms=[1, 0, 2, 0])
    found = [parts_of(out, row) for row in range(4)]
    assert found == [(second, first), (first, second), (first + second, []), ([21, 22], [])]
    assert out["sentence_order_labels"].tolist() == [1, 0, 0, 0]
    assert out["sentence_order_weights"].tolist() == [1, 1, 0, 0]


sentence = st.lists(st.integers(5, 99), min_size=1, max_size=4)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(sentence, min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from(["sop", "none"]),
    st.integers(0, 2**31),
)
def test_parts_put_back_in_order_give_the_segment(segments, objective, seed):
    rng = np.random.default_rng(seed)
    draws = rng.random((2, len(segments)), np.float32)
    rooms = rng.integers(NO_ROOM, 5, len(segments)).tolist()
    out = build(segments, draws[0], draws[1], 23, objective, rooms=rooms)
    for row, segment in enumerate(segments):
        parts = list(parts_of(out, row))
        if out["sentence_order_labels"][row]:
            parts.reverse()
        assert parts[0] + parts[1] == sum(segment, [])
        boundaries = np.cumsum([len(s) for s in segment]).tolist()
        assert len(parts[0]) in boundaries
        has_label = bool(out["sentence_order_weights"][row])
        assert has_label or out["sentence_order_labels"][row] == 0
        if objective == "none":
            assert not has_label and all(parts) == (len(segment) > 1)
            continue
        # What the record job counts is what gets a label.
        counted = Segment(sum(segment, []), [0, *boundaries[:-1]], rooms[row], False)
        assert has_label == all(parts) == has_order(counted)


def test_what_opens_b_would_not_have_fitted_before_either():
    """Each sentence opens B as often as another, of so many even steps of the draw."""
    for lengths, room, objective, expected in (
        ([2, 3, 4, 1, 3, 2], 0, "sop", {2: 12, 5: 12, 9: 12, 10: 12, 13: 12}),
        ([2, 3, 4, 1, 3, 2], 1, "sop", {2: 15, 5: 15, 10: 15, 13: 15}),
        ([2, 3, 4, 1, 3, 2], 2, "sop", {2: 20, 5: 20, 10: 20}),
        ([2, 3, 4, 1, 3, 2], 3, "sop", {5: 60}),
        ([2, 3, 4, 1, 3, 2], 4, "sop", {15: 60}),
        ([2, 3, 4, 1, 3, 2], NO_ROOM, "sop", {15: 60}),
        ([1, 2, 3, 4], NO_ROOM, "none", {1: 20, 3: 20, 6: 20}),
    ):
        draws = (np.arange(60) + 0.5) / 60
        segments = [pieces_of(lengths)] * 60
        out = build(segments, draws, [0.9] * 60, sum(lengths) + 3, objective, rooms=[room] * 60)
        assert collections.Counter(len(parts_of(out, row)[0]) for row in range(60)) == expected
    # The highest draw splits before the last sentence.
    highest, counts = np.nextafter(np.float32(1), np.float32(0)), np.arange(2, 130)
    for objective in ("sop", "none"):
        out = build([[[5]] * n for n in counts], [highest] * 128, [0.9] * 128, 132, objective)
        assert (out["input_type_ids"].sum(axis=1) == 2).all()
        assert (out["input_mask"].sum(axis=1) == counts + 3).all()


def test_openings_have_labels_of_their_own_kind():
    segments = [pieces_of([2, 3]), pieces_of([2, 3]), pieces_of([4])]
    more = {"rooms": [0, 1, 0], "opens": [1, 0, 1]}
    for objective, opens in (("sop", [1, 0, 0]), ("none", [0, 0, 0]), ("nsp", [0, 0, 0])):
        out = build(segments, [0.5] * 3, [0.9] * 3, 9, objective, **more)
        assert out["opens_document"].tolist() == opens
        assert objective != "sop" or out["sentence_order_weights"].tolist() == [1, 1, 0]


class TestNextSentence:
    row = st.lists(st.integers(1, 6), min_size=1, max_size=6).map(pieces_of)

    @settings(max_examples=10, deadline=None)
    @given(
        st.lists(row, min_size=1, max_size=7),
        st.lists(st.booleans(), min_size=4, max_size=4),
        st.sampled_from([40, 96]),
        st.integers(0, 2**31),
    )
    def test_both_labels_have_the_same_lengths_and_text(self, segments, same, seq_len, seed):
        # Neighbours of one document, or of two.
        documents = [row // 2 if same[row // 2] else -row for row in range(len(segments))]
        count, more = len(segments), {"objective": "nsp", "documents": documents}
        split = np.random.default_rng(seed).random(count, np.float32)
        out = {c: build(segments, split, [c] * count, seq_len, **more) for c in (0.0, 0.9)}
        has_label = out[0.0]["sentence_order_weights"]
        np.testing.assert_array_equal(has_label, out[0.9]["sentence_order_weights"])
        np.testing.assert_array_equal(has_label, out[0.0]["sentence_order_labels"])
        assert not out[0.9]["sentence_order_labels"].any()
        for row in range(0, len(segments), 2):
            rows = [row, row + 1][: len(segments) - row]
            texts = [sum(segments[r], []) for r in rows]
            alike, changed = ([parts_of(out[kind], r) for r in rows] for kind in (0.9, 0.0))
            lengths = [np.cumsum([len(s) for s in segments[r][:0:-1]]).tolist() for r in rows]
            gaps = [abs(x - y) for x, y in itertools.product(*lengths)] if len(rows) > 1 else []
            least = min(gaps, default=99)
            if least > seq_len // 16 or documents[rows[0]] == documents[rows[-1]]:
                assert not has_label[rows].any()
                assert alike == changed == [(text, []) for text in texts]
                continue
            assert has_label[rows].all()
            # No B is there twice, none is left out, and all are of one length.
            (a, b), (c, d) = alike
            assert changed == [(a, d), (c, b)] and len(b) == len(d)
            # Nothing is lost but what is cut from the longer of two Bs.
            assert (a + b, c + d) == (texts[0][: len(a + b)], texts[1][: len(c + d)])
            lost = sorted(len(text) - len(x + y) for text, (x, y) in zip(texts, alike))
            assert lost == [0, least]


def lengths_in(part):
    """Returns the number of pieces and sentences, and the lengths of the first two sentences."""
    bounds = [*np.flatnonzero(np.equal(part, FIRST)), len(part)]
    first, second = [*np.diff(bounds), -1][:2]
    return len(part), len(bounds) - 1, first, second


def test_lengths_do_not_tell_the_order():
    """Of sop; that nsp's labels have the same lengths is exact, see TestNextSentence."""
    # Documents of sentences as long as those of novels; their order means nothing.
    rng, segments = random.Random(1), []
    for _ in range(60):
        count = rng.randint(60, 160)
        lengths = [max(1, round(rng.lognormvariate(2.9, 0.75))) for _ in range(count)]
        document = [[FIRST, *[20] * (length - 1)] for length in lengths]
        segments += split_document(document, 64, 0.1, [True] * 30, rng)
    rows = [[p.tolist() for p in np.split(s.input_ids, s.sentence_starts[1:])] for s in segments]
    draws = np.random.default_rng(1).random((2, len(rows)), np.float32)
    out = build(rows, *draws, 64, rooms=[s.room_before for s in segments])
    inside = (out["sentence_order_weights"] > 0) & [not s.opens_document for s in segments]
    evidence, labels = [], out["sentence_order_labels"][inside]
    for row in np.flatnonzero(inside):
        a, b = parts_of(out, row)
        evidence.append([*lengths_in(a), *lengths_in(b)])
    # Few leaves with many pairs each, because weak evidence such as lengths is easily overfitted.
    trees = HistGradientBoostingClassifier(
        max_iter=50, max_leaf_nodes=8, min_samples_leaf=50, early_stopping=False, random_state=0
    )
    found = cross_val_predict(trees, np.array(evidence), labels, cv=2)
    assert len(labels) > 1_000 and np.mean(found == labels) < 0.5 + 3 * 0.5 / len(labels) ** 0.5
