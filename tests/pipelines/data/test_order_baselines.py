import random

import numpy as np
import pytest

from pipelines.data import order_baselines as baselines
from pipelines.data import records
from pipelines.data.examples import ExampleOptions
from pipelines.data.order_baselines import order_baselines
from pipelines.data.segments import Segment, split_document
from tests.pipelines.data.small_records import write_shards


def test_lengths_do_not_tell_the_label(tmp_path, tokenizer):
    """Of sop; that nsp's labels have the same lengths is exact: test_sentence_pairs.py."""
    # Documents of sentences as long as those of novels; their order means nothing.
    rng = random.Random(1)
    starts, found = [True] * tokenizer.vocab_size, {"train": [], "heldout": []}
    for number in range(500):
        count = rng.randint(60, 160)
        document = [[20] * max(1, round(rng.lognormvariate(2.9, 0.75))) for _ in range(count)]
        for segment in split_document(document, 64, 0.1, starts, rng):
            record = records.serialize_segment(segment, number)
            found["train" if number % 2 else "heldout"].append(record)
    record_dir = write_shards(tmp_path, tokenizer, found)

    found = order_baselines(record_dir, "heldout", ExampleOptions(64), tokenizer)
    correct, total = found["inside"]["lengths"]
    assert total > 5_000 and correct / total < 0.5 + 3 * 0.5 / total**0.5


def test_lengths_that_tell_the_label_are_found(tmp_path, tokenizer):
    # Two sentences, the longer one always first.
    rng, written = np.random.default_rng(3), {}
    for split, count in (("train", 2_000), ("heldout", 1_000)):
        lengths = 9 + rng.integers(5, 9, count)
        segments = [Segment([20] * n, [0, 9], 3, i % 6 == 0) for i, n in enumerate(lengths)]
        written[split] = [records.serialize_segment(*pair[::-1]) for pair in enumerate(segments)]
    record_dir = write_shards(tmp_path, tokenizer, written)
    found = order_baselines(record_dir, "heldout", ExampleOptions(24), tokenizer)
    assert found.keys() == {"openings", "inside"}
    # The shorter sentence comes second, unless the parts are swapped.
    for kind, least in (("openings", 70), ("inside", 400)):
        correct, total = found[kind]["lengths"]
        assert correct == total > least
        # All pieces are the same.
        for name in ("words", "overlap"):
            assert abs(found[kind][name][0] / found[kind][name][1] - 0.5) < 0.15
    no_labels = ExampleOptions(24, sentence_objective="none")
    assert order_baselines(record_dir, "heldout", no_labels, tokenizer) == {}


def test_words_and_overlap_find_what_they_look_for(tokenizer, monkeypatch):
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 600)
    windows = rng.integers(20, 150, [600, 4, 20])
    # Pairs inside documents, whose lengths say nothing.
    inside, nothing = np.zeros(600, bool), np.zeros([600, 1], np.int32)
    pairs = baselines.Pairs(labels, inside, nothing, windows)
    monkeypatch.setattr(baselines, "labelled_pairs", lambda *_: pairs)

    def told():
        found = order_baselines("", "train", ExampleOptions(24), tokenizer)["pairs"]
        return {name: correct for name, (correct, _) in found.items()}

    # The beginnings of A and B: what came first holds the piece 7.
    windows[np.arange(600), np.where(labels, 1, 3), 4] = 7
    found = told()
    assert found["words"] > 570 and found["overlap"] < 400
    windows[:, 1, 4] = windows[:, 3, 4] = 8
    for row, label in enumerate(labels):
        # The end of what came first repeats a rare piece of the beginning of what came second.
        first, second = (2, 3) if label else (0, 1)
        windows[row, first, 6] = windows[row, second, 9] = 151 + row % 4
    found = told()
    assert found["overlap"] > 400 > found["lengths"]


def test_overlap_counts_rare_pieces_at_the_junction_and_at_the_far_ends():
    # A = 9 7 7 5 6, B = 7 8 6: both have 7 and 6, and parts so short meet whole at both ends.
    ids = np.array([[2, 9, 7, 7, 5, 6, 3, 7, 8, 6, 3, 0]])
    types, mask = np.array([[0] * 7 + [1] * 4 + [0]]), np.array([[1] * 11 + [0]])
    windows = baselines._windows(ids, mask, types)
    for window, pieces in zip(windows[0], ([6, 5, 7, 7, 9], [7, 8, 6], [6, 8, 7], [9, 7, 7, 5, 6])):
        assert window[: len(pieces) + 1].tolist() == [*pieces, -1]
    frequencies = np.array([0, 0, 0, 0, 0, 0, 9, 89, 0, 0])
    junction, far = baselines.overlaps(windows, frequencies)[0]
    expected = -np.log(10 / 108) - np.log(90 / 108)
    assert junction == pytest.approx(expected) and far == pytest.approx(expected)
    # Of long parts only 20 pieces are compared: here those at the far ends are alike.
    ids = np.arange(10, 93)[np.newaxis]
    ids[0, 1:21], ids[0, 62:82] = 5, 5
    types, mask = np.repeat([[0, 1]], [41, 42], axis=1), np.ones([1, 83], np.int64)
    windows = baselines._windows(ids, mask, types)
    junction, far = baselines.overlaps(windows, np.ones(100))[0]
    assert junction == 0 and far > 0
