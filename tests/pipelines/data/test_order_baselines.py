"""Lengths of sentences tell nothing of the label; and where they would, the baselines say so."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data import order_baselines as baselines
from pipelines.data import records, sentence_pairs
from pipelines.data.examples import ExampleOptions
from pipelines.data.order_baselines import order_baselines
from pipelines.data.segments import Segment
from tests.benchmarks.sentence_lengths import tell_by_lengths
from tests.pipelines.data.small_records import write_manifest

# Three standard errors of the accuracy of so many pairs at chance.
PAIRS = 5_000
CHANCE = 50 + 3 * 50 / PAIRS**0.5


@pytest.fixture(scope="module")
def documents():
    """200 documents of sentences as long as those of novels; their order means nothing."""
    rng = random.Random(1)
    return [
        [[0] * max(1, round(rng.lognormvariate(2.9, 0.75))) for _ in range(rng.randint(60, 160))]
        for _ in range(200)
    ]


def tell(documents, objective, seq_length):
    options = ExampleOptions(seq_length, sentence_objective=objective)
    return tell_by_lengths(documents, [True], options, 0.1, PAIRS, shuffle_sentences=True)


@pytest.mark.parametrize(("objective", "seq_length"), [("sop", 32), ("nsp", 64)])
def test_lengths_do_not_tell_the_label(documents, objective, seq_length):
    told = tell(documents, objective, seq_length)
    assert told["logistic_regression"] < CHANCE
    assert told["boosted_trees"] < CHANCE
    assert told["text_lost"] < 1


def test_a_split_drawn_uniformly_is_told_by_lengths(documents, monkeypatch):
    # The control: this is how pairs were once drawn. A opens with a sentence that did not fit.
    draw_split = sentence_pairs._draw_split

    def uniform(can_open, draws, num_sentences):
        later = tf.range(tf.shape(can_open)[1]) > 0
        return draw_split(later & tf.sequence_mask(num_sentences), draws, num_sentences)

    monkeypatch.setattr(sentence_pairs, "_draw_split", uniform)
    assert tell(documents, "sop", 64)["boosted_trees"] > 62


def test_parts_that_are_not_cut_alike_are_told_by_lengths(documents, monkeypatch):
    # The control for "nsp": a B of another row that is not cut fills the example otherwise.
    def uncut(segments, sentences, split_draws, change_draws, seq_length):
        count = tf.reduce_sum(tf.cast(sentences > 0, tf.int32), axis=1)
        middle = tf.maximum(count // 2, 1)
        first, second = sentence_pairs._parts(sentences, middle, count)
        neighbour = tf.bitwise.bitwise_xor(tf.range(tf.size(count)), 1)
        has_label = (count > 1) & tf.gather(count > 1, neighbour)
        changed = has_label & (change_draws < 0.5)
        source = tf.where(changed, neighbour, tf.range(tf.size(count)))
        second = sentence_pairs.Part(*(tf.gather(values, source) for values in second))
        room = seq_length - 3 - first.length
        second = second._replace(length=tf.minimum(second.length, room))
        return sentence_pairs.Pairs(first, second, changed, has_label, tf.zeros_like(has_label))

    monkeypatch.setattr(sentence_pairs, "_next_sentence", uncut)
    assert tell(documents, "nsp", 64)["boosted_trees"] > 62


@pytest.fixture(scope="module")
def record_dir(tmp_path_factory, tiny_vocabulary):
    """3,000 segments of two sentences, the longer one always first."""
    directory = tmp_path_factory.mktemp("records")
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    rng = np.random.default_rng(3)
    splits = {}
    for split, count in (("train", 2_000), ("heldout", 1_000)):
        sizes = []
        with tf.io.TFRecordWriter(str(directory / f"{split}.tfrecord")) as writer:
            for number in range(count):
                short = int(rng.integers(5, 9))
                segment = Segment([20] * (9 + short), [0, 9], 3, number % 6 == 0)
                record = records.serialize_segment(segment, number)
                writer.write(record)
                sizes.append(len(record))
        layout = records.shard_layout(sizes)
        shard = records.Shard(f"{split}.tfrecord", "x", pieces=1, sha256=split, **layout)
        splits[split] = records.Split((shard,))
    write_manifest(directory, tokenizer, splits)
    return str(directory)


def test_lengths_that_tell_the_label_are_found(record_dir, tiny_vocabulary):
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    found = order_baselines(record_dir, "train", ExampleOptions(24), tokenizer)
    assert found.keys() == {"openings", "inside"}
    # The shorter sentence comes second, unless the parts are swapped.
    for kind, least in (("openings", 70), ("inside", 400)):
        told = found[kind]["lengths"]
        assert told.correct == told.total > least
    # All pieces are the same.
    for kind in found.values():
        for name in ("words", "overlap"):
            assert abs(kind[name].correct / kind[name].total - 0.5) < 0.15


def test_labels_of_a_coin_are_not_told(record_dir, tiny_vocabulary, monkeypatch):
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    labelled = baselines.labelled_pairs
    rng = np.random.default_rng(1)

    def with_labels_of_a_coin(dataset):
        pairs = labelled(dataset)
        return pairs._replace(labels=rng.integers(0, 2, len(pairs.labels)))

    monkeypatch.setattr(baselines, "labelled_pairs", with_labels_of_a_coin)
    found = order_baselines(record_dir, "heldout", ExampleOptions(24), tokenizer)
    for told in found["inside"].values():
        assert abs(told.correct / told.total - 0.5) < 3 * 0.5 / told.total**0.5


def test_no_labels_no_baseline(record_dir, tiny_vocabulary):
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    options = ExampleOptions(24, sentence_objective="none")
    assert order_baselines(record_dir, "heldout", options, tokenizer) == {}


def labelled(windows, labels):
    """Pairs inside documents, whose lengths say nothing."""
    count = len(labels)
    nothing = np.zeros([count, 1], np.int32)
    return baselines.Pairs(np.array(labels), np.zeros(count, bool), nothing, np.array(windows))


def test_words_and_overlap_find_what_they_look_for(tiny_vocabulary, monkeypatch):
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 600)
    windows = rng.integers(20, 150, [600, 4, 20])
    for row, label in enumerate(labels):
        # The beginnings of A and B: what came first holds the piece 7.
        windows[row, 1 if label else 3, 4] = 7
    monkeypatch.setattr(baselines, "labelled_pairs", lambda _: labelled(windows, labels))
    monkeypatch.setattr(baselines, "evaluation_dataset", lambda *_, **__: None)
    found = order_baselines("", "train", ExampleOptions(24), tokenizer)["pairs"]
    assert found["words"].correct > 570 and found["overlap"].correct < 400
    windows[:, 1, 4] = windows[:, 3, 4] = 8
    for row, label in enumerate(labels):
        # The end of what came first repeats a rare piece of the beginning of what came second.
        rare = 151 + row % 4
        pair = (2, 3) if label else (0, 1)
        windows[row, pair[0], 6] = windows[row, pair[1], 9] = rare
    found = order_baselines("", "train", ExampleOptions(24), tokenizer)["pairs"]
    assert found["overlap"].correct > 400 > found["lengths"].correct


def test_overlap_counts_rare_pieces_at_the_junction_and_at_the_far_ends():
    # A = 9 7 7 5 6, B = 7 8 6: both have 7 and 6, and parts so short meet whole at both ends.
    ids = np.array([[2, 9, 7, 7, 5, 6, 3, 7, 8, 6, 3, 0]])
    types = np.array([[0] * 7 + [1] * 4 + [0]])
    mask = np.array([[1] * 11 + [0]])
    windows = baselines._windows(ids, mask, types)
    assert windows[0, 0, :6].tolist() == [6, 5, 7, 7, 9, -1]
    assert windows[0, 1, :4].tolist() == [7, 8, 6, -1]
    assert windows[0, 2, :4].tolist() == [6, 8, 7, -1]
    assert windows[0, 3, :6].tolist() == [9, 7, 7, 5, 6, -1]
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
