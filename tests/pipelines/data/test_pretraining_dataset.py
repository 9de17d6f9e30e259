"""Order and randomness of training: functions of (seed, epoch, position) and nothing else."""

from __future__ import annotations

import collections
import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_tf.tokenization import AlbertTokenizer
from pipelines.data import records, training_order
from pipelines.data.examples import ExampleOptions, example_draws
from pipelines.data.pretraining_dataset import (
    evaluation_dataset,
    pretraining_dataset,
    read_sources,
)
from pipelines.data.segments import Segment
from pipelines.data.training_order import shuffled_groups

COUNTS = {"train": [7, 0, 13, 3], "heldout": [5, 6]}
OPTIONS = ExampleOptions(max_seq_length=24, seed=77)
GLOBAL_BATCH = 4


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return AlbertTokenizer(str(tiny_vocabulary))


@pytest.fixture(scope="module")
def record_dir(tmp_path_factory, tokenizer):
    return write_records(tmp_path_factory.mktemp("records"), tokenizer, COUNTS)


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory, tokenizer):
    """Another directory, of 9 records, numbered from 40 on."""
    directory = tmp_path_factory.mktemp("other")
    return write_records(directory, tokenizer, {"train": [2, 7], "heldout": []}, number=40)


def write_records(directory, tokenizer, counts_of, number=0, records_per_document=1):
    """Writes records whose first two pieces number them."""
    rng = np.random.default_rng(5)
    splits = {}
    for split, counts in counts_of.items():
        shards = []
        for index, count in enumerate(counts):
            name = f"{split}-{index:05d}-of-{len(counts):05d}.tfrecord"
            sizes = []
            with tf.io.TFRecordWriter(str(directory / name)) as writer:
                for _ in range(count):
                    pieces = rng.integers(20, 100, rng.integers(6, 20)).tolist()
                    pieces[0] = 110 + number % 54
                    starts = [0, *sorted(rng.choice(range(1, 6), 2, replace=False).tolist())]
                    document = number // records_per_document
                    segment = Segment(pieces, starts, 0)
                    record = records.serialize_segment(segment, document)
                    writer.write(record)
                    sizes.append(len(record))
                    number += 1
            shards.append(shard(sizes, name))
        splits[split] = records.Split(tuple(shards))
    records.SegmentManifest(
        max_seq_length=24,
        short_seq_prob=0.1,
        heldout_fraction=0.1,
        seed=1,
        vocab_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        do_lower_case=True,
        code_version="0",
        documents=3,
        sentences=9,
        segments=34,
        segments_with_order=34,
        pieces=99,
        skipped_lines=0,
        splits=splits,
    ).write(str(directory))
    return str(directory)


def shard(sizes, name="", part_bytes=300):
    """A shard of records of these sizes, in parts of some `part_bytes`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_MIN_PART_BYTES", part_bytes)
        layout = records.shard_layout(sizes)
    return records.Shard(name, "corpus.txt", pieces=9 * len(sizes), sha256=name, **layout)


def take(dataset, count):
    return [
        {name: value.numpy() for name, value in batch.items()}
        for batch in itertools.islice(dataset, count)
    ]


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def numbers(batches):
    """Returns which record each row is of: its numbering piece is in the ids or masked."""
    found = []
    for batch in batches:
        for row in range(len(batch["input_mask"])):
            ids = batch["input_word_ids"][row].copy()
            count = int(batch["masked_lm_weights"][row].sum())
            positions = batch["masked_lm_positions"][row][:count]
            ids[positions] = batch["masked_lm_ids"][row][:count]
            found.extend((ids[ids >= 110] - 110).tolist())
    return found


def test_contract(record_dir, tokenizer):
    dataset = pretraining_dataset(record_dir, OPTIONS, tokenizer, GLOBAL_BATCH)
    length, predictions = 24, 4  # ceil(0.15 * 24)
    assert {
        name: (spec.shape.as_list(), spec.dtype) for name, spec in dataset.element_spec.items()
    } == {
        "input_word_ids": ([GLOBAL_BATCH, length], tf.int32),
        "input_mask": ([GLOBAL_BATCH, length], tf.int32),
        "input_type_ids": ([GLOBAL_BATCH, length], tf.int32),
        "masked_lm_positions": ([GLOBAL_BATCH, predictions], tf.int32),
        "masked_lm_ids": ([GLOBAL_BATCH, predictions], tf.int32),
        "masked_lm_weights": ([GLOBAL_BATCH, predictions], tf.float32),
        "sentence_order_labels": ([GLOBAL_BATCH], tf.int32),
        "sentence_order_weights": ([GLOBAL_BATCH], tf.float32),
    }
    for batch in take(dataset, 5):
        assert (batch["input_word_ids"][:, 0] == tokenizer.cls_id).all()
        seps = (batch["input_word_ids"] == tokenizer.sep_id).sum(axis=1)
        assert (seps == 1 + batch["sentence_order_weights"]).all()


@pytest.mark.parametrize("group_bytes", [1, 500, 10**6])
def test_each_epoch_is_another_permutation(record_dir, tokenizer, monkeypatch, group_bytes):
    # 23 records in batches of 4: batches run across the ends of groups and epochs.
    monkeypatch.setattr(training_order, "_GROUP_BYTES", group_bytes)
    seen = numbers(take(pretraining_dataset(record_dir, OPTIONS, tokenizer, 4), 23))
    epochs = [seen[i : i + 23] for i in range(0, 92, 23)]
    assert all(sorted(epoch) == list(range(23)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_masks_are_fresh_in_every_epoch(record_dir, tokenizer):
    batches = take(pretraining_dataset(record_dir, OPTIONS, tokenizer, 23), 2)
    masks = [
        {
            number: batch["masked_lm_positions"][row].tolist()
            for row, number in enumerate(numbers([batch]))
        }
        for batch in batches
    ]
    assert sum(masks[0][n] != masks[1][n] for n in range(23)) > 12


@pytest.mark.parametrize("group_bytes", [1, 150, 10**6])
def test_starting_late_is_going_on(record_dir, tokenizer, monkeypatch, group_bytes):
    monkeypatch.setattr(training_order, "_GROUP_BYTES", group_bytes)
    whole = take(pretraining_dataset(record_dir, OPTIONS, tokenizer, GLOBAL_BATCH), 19)
    for step in (1, 5, 6, 12, 17):
        late = pretraining_dataset(record_dir, OPTIONS, tokenizer, GLOBAL_BATCH, start_step=step)
        assert_equal(take(late, 19 - step), whole[step:])


@pytest.mark.parametrize("hosts, replica_batch", [(2, None), (2, 3), (3, 1), (1, 4)])
def test_hosts_and_replicas_share_the_global_batch(record_dir, tokenizer, hosts, replica_batch):
    whole = take(pretraining_dataset(record_dir, OPTIONS, tokenizer, 12, start_step=1), 3)
    host_batches = [
        take(
            pretraining_dataset(record_dir, OPTIONS, tokenizer, 12, 1, host, hosts, replica_batch),
            3 * (12 // hosts) // (replica_batch or 12 // hosts),
        )
        for host in range(hosts)
    ]
    rows = {
        name: [np.concatenate([batch[name] for batch in batches]) for batches in host_batches]
        for name in whole[0]
    }
    for step, batch in enumerate(whole):
        part = slice(step * 12 // hosts, (step + 1) * 12 // hosts)
        for name, value in batch.items():
            ours = np.concatenate([host_rows[part] for host_rows in rows[name]])
            np.testing.assert_array_equal(ours, value, err_msg=name)


@pytest.mark.parametrize("seq_length", [24, 25, 26, 28])  # 60, 62, 64, 70 numbers a row
@pytest.mark.parametrize("rows, first_row", [(12, 0), (5, 0), (4, 3), (1, 11)])
def test_draws_of_some_rows_are_those_of_the_whole(seq_length, rows, first_row):
    options = ExampleOptions(seq_length)
    seed = tf.constant([77, 3], tf.int64)
    whole = example_draws(options, 12, seed)
    part = example_draws(options, rows, seed, first_row)
    assert part.keys() == whole.keys()
    for name, draws in part.items():
        np.testing.assert_array_equal(draws, whole[name][first_row : first_row + rows])


def test_draws_are_uniform_and_independent():
    seeds = [tf.constant(seed, tf.int64) for seed in ([1, 5], [1, 6], [2, 5])]
    draws = [tf.concat(list(example_draws(OPTIONS, 500, seed).values()), 1) for seed in seeds]
    draws = np.stack(draws)  # [3, 500, columns]
    assert draws.min() >= 0 and draws.max() < 1
    means = draws.mean(axis=1)
    assert np.abs(means - 0.5).max() < 5 * np.sqrt(1 / 12 / 500)
    # No two columns of a batch, or of two batches, are alike.
    correlations = np.corrcoef(np.concatenate(draws, axis=1).T) - np.eye(3 * draws.shape[2])
    assert np.abs(correlations).max() < 6 / np.sqrt(500)


def records_of(group, shards):
    """Returns which records the slices of a group hold: (shard, number of the record)."""
    found = []
    for index, offset, count in zip(*(values.tolist() for values in group)):
        begin = shards[index].first_record(list(shards[index].part_offsets).index(offset))
        found.extend((index, begin + i) for i in range(count))
    return found


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=9).filter(any),
    st.integers(0, 60),
    st.sampled_from([1, 40, 100, 1000, 10**5]),
)
@settings(max_examples=100, deadline=None)
def test_order_from_any_record_is_the_tail_of_the_order(counts, start, group_bytes):
    shards = [shard([34] * count, part_bytes=100) for count in counts]

    def order(first, length):
        found = []
        for group, indices in shuffled_groups(shards, 3, first):
            local = records_of(group, shards)
            found.extend(local[index] for index in indices)
            if len(found) >= length:
                return found[:length]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_order, "_GROUP_BYTES", group_bytes)
        patch.setattr(training_order, "MAX_PARTS", 4)
        assert order(start, 50) == order(0, start + 50)[start:]
        # Every record once an epoch, in two epochs.
        everything = [(i, n) for i, count in enumerate(counts) for n in range(count)]
        both = order(0, 2 * len(everything))
        assert sorted(both[: len(everything)]) == everything
        assert sorted(both[len(everything) :]) == everything


def epoch(shards, seed=3):
    """Returns the groups of an epoch."""
    left, groups = sum(shard.examples for shard in shards), []
    for group, _ in shuffled_groups(shards, seed, 0):
        groups.append(group)
        left -= group.counts.sum()
        if not left:
            return groups


def test_a_group_is_of_all_the_corpus():
    def big_shard(megabytes):
        return shard([10**5 - 16] * 10 * megabytes, part_bytes=1 << 17)

    # 13 GB in 240 shards: two sets of them, of each of which a group takes a part.
    shards = [big_shard(64)] * 160 + [big_shard(32)] * 80
    groups = epoch(shards)
    assert len(groups) == 2 * records.MAX_PARTS
    for group in groups:
        assert len(set(group.shards)) == len(group.shards) == 120
        assert group.counts.sum() * 10**5 < training_order._GROUP_BYTES
        # One of every two neighbours, throughout.
        assert np.diff(group.shards).max() <= 3 and group.shards[0] <= 1 and group.shards[-1] > 237
    # Which of them go together changes from epoch to epoch.
    sets = [{frozenset(group.shards.tolist()) for group in epoch(shards, seed)} for seed in (3, 4)]
    assert len(sets[0]) == len(sets[1]) == 2 and not sets[0] & sets[1]
    # One file of any size is read in parts too.
    assert [group.counts.sum() for group in epoch([big_shard(2000)])] == [625] * 32


def test_small_shards_come_at_any_time():
    big, small = shard([1000] * 5000, part_bytes=1000), shard([1000] * 3, part_bytes=10**6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_order, "_GROUP_BYTES", 1_100_000)
        places = collections.Counter()
        for seed in range(40):
            groups = epoch([big, *[small] * 20], seed)
            assert len(groups) == 8
            for place, group in enumerate(groups):
                assert 0 in group.shards
                places[place] += len(group.shards) - 1
    # 800 of them over eight groups.
    assert sum(places.values()) == 800 and len(places) == 8
    assert all(abs(count - 100) < 5 * np.sqrt(100) for count in places.values())


@pytest.mark.parametrize("batch_size", [1, 4, 11, 17])
def test_evaluation_scores_each_example_once(record_dir, tokenizer, batch_size):
    dataset = evaluation_dataset(record_dir, "heldout", OPTIONS, tokenizer, batch_size)
    assert dataset.element_spec["input_mask"].shape.as_list() == [batch_size, 24]
    batches = take(dataset, 99)
    assert sorted(numbers(batches)) == list(range(23, 34))
    assert sum(batch["sentence_order_weights"].sum() for batch in batches) == 11
    # The masks are the same at every call and for every size of the batch.
    whole = take(evaluation_dataset(record_dir, "heldout", OPTIONS, tokenizer, 11), 1)[0]
    for name, value in whole.items():
        rows = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(rows[:11], value, err_msg=name)
        assert not rows[11:].any()


def test_an_empty_split_has_no_batches(other_dir, tokenizer):
    assert not list(evaluation_dataset(other_dir, "heldout", OPTIONS, tokenizer, 4))


def test_a_sample_has_records_of_every_file(record_dir, tokenizer):
    found = [
        numbers(take(evaluation_dataset(record_dir, "heldout", OPTIONS, tokenizer, 2, 4), 99))
        for _ in range(2)
    ]
    # Numbers 23 to 27 are in the first file, 28 to 33 in the second.
    assert [n < 28 for n in found[0]] == [True, True, False, False]
    assert found[0] == found[1]


def test_next_sentence_evaluation_has_foreign_segments(tmp_path, tokenizer):
    # Two long documents: all neighbours in the file but one pair are of one document.
    counts = {"train": [3], "heldout": [81, 80]}
    write_records(tmp_path, tokenizer, counts, records_per_document=82)
    options = ExampleOptions(max_seq_length=24, seed=77, sentence_objective="nsp")
    batches = take(evaluation_dataset(str(tmp_path), "heldout", options, tokenizer, 50), 99)
    labels = np.concatenate([batch["sentence_order_labels"] for batch in batches])
    weights = np.concatenate([batch["sentence_order_weights"] for batch in batches])
    # Of many pairs both second parts can be of one length.
    assert 40 < weights.sum() < 161
    assert 0.3 < labels.sum() / weights.sum() < 0.7


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_quotas_are_the_shares_of_a_block(weights):
    quotas = training_order.block_quotas(weights)
    assert sum(quotas) == training_order.BLOCK_ROWS
    for weight, quota in zip(weights, quotas):
        assert abs(quota - weight / sum(weights) * training_order.BLOCK_ROWS) < 1


def test_quotas_by_largest_remainder(monkeypatch):
    assert training_order.block_quotas([1, 1, 1]) == [21846, 21845, 21845]
    monkeypatch.setattr(training_order, "BLOCK_ROWS", 10)
    assert training_order.block_quotas([0.19, 0.16, 0.65]) == [2, 2, 6]
    assert training_order.block_quotas([64, 17, 19]) == [6, 2, 2]


def test_a_block_is_a_shuffle_of_the_quotas():
    quotas = [40_000, 25_000, 536]
    blocks = list(itertools.islice(training_order.row_sources(quotas, 5, 0), 3))
    assert all(np.bincount(block).tolist() == quotas for block in blocks)
    assert (blocks[0] != blocks[1]).any() and (blocks[1] != blocks[2]).any()
    assert (next(training_order.row_sources(quotas, 6, 0)) != blocks[0]).any()
    # Spread over the block: each tenth has its share, within 5 standard deviations.
    for part in np.split(blocks[0][:65_530], 10):
        share = np.mean(part == 0)
        assert abs(share - 40_000 / 65_536) < 5 * (0.25 / len(part)) ** 0.5
    rows = np.concatenate(blocks)
    for start in (0, 1, 999, 65_536, 65_537, 150_000):
        assert next(training_order.row_sources(quotas, 5, start))[0] == rows[start]
        before = np.bincount(rows[:start], minlength=3).tolist()
        assert training_order.rows_before(quotas, 5, start) == before


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(training_order, "BLOCK_ROWS", 20)


def test_each_source_keeps_its_epochs(record_dir, other_dir, tokenizer, small_blocks):
    dataset = pretraining_dataset(
        f"{record_dir},{other_dir}", OPTIONS, tokenizer, 4, record_weights=[1.0, 3.0]
    )
    seen = numbers(take(dataset, 50))
    for block in range(10):
        assert sum(n < 40 for n in seen[20 * block : 20 * block + 20]) == 5
    ours, theirs = [n for n in seen if n < 40], [n for n in seen if n >= 40]
    # 50 and 150 rows: each source in the very order that it has alone.
    assert ours == numbers(take(pretraining_dataset(record_dir, OPTIONS, tokenizer, 5), 10))
    assert theirs == numbers(take(pretraining_dataset(other_dir, OPTIONS, tokenizer, 5), 30))
    assert all(sorted(theirs[i : i + 9]) == list(range(40, 49)) for i in range(0, 144, 9))


def test_a_mixed_run_starts_anywhere(record_dir, other_dir, tokenizer, small_blocks):
    both = f"{record_dir},{other_dir}"
    weights = [0.7, 0.3]

    def run(start, count, *hosts):
        dataset = pretraining_dataset(
            both, OPTIONS, tokenizer, 6, start, *hosts, record_weights=weights
        )
        return take(dataset, count)

    # Blocks of 20 rows in batches of 6: step 4 begins inside the second, step 10 with the fourth.
    whole = run(0, 17)
    for step in (4, 10):
        assert_equal(run(step, 17 - step), whole[step:])
    for ours, batch in zip(run(2, 3, 1, 2), whole[2:5]):
        for name, value in batch.items():
            np.testing.assert_array_equal(ours[name], value[3:])


def test_shares_default_to_the_numbers_of_examples(record_dir, other_dir):
    sources = read_sources(f"{record_dir}, {other_dir}")
    assert [source.record_dir for source in sources] == [record_dir, other_dir]
    assert [source.quota for source in sources] == [47104, 18432]  # 23 and 9 of 32
    assert [source.quota for source in read_sources(record_dir, [0.2])] == [65536]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5], "--record_weights has 1 numbers, --record_dir 2 directories"),
        ([1, 2, 3], "--record_weights has 3 numbers, --record_dir 2"),
        ([1, 0], "--record_weights=1,0: every weight must be positive"),
        ([1, -1], "--record_weights=1,-1: every"),
        ([1, float("inf")], "--record_weights=1,inf: every"),
        ([float("nan"), 1], "--record_weights=nan,1: every"),
        ([1, 1e-6], "would have less than one row in 65,536"),
    ],
)
def test_wrong_weights_are_one_line(record_dir, other_dir, weights, message):
    with pytest.raises(ValueError, match=message) as error:
        read_sources(f"{record_dir},{other_dir}", weights)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("changed", [{"seed": 2}, {"heldout_fraction": 0.2}])
def test_held_out_documents_of_one_are_not_trained_on_in_another(
    record_dir, other_dir, tmp_path, changed
):
    dataclasses.replace(records.Manifest.read(other_dir), **changed).write(str(tmp_path))
    with pytest.raises(ValueError, match=r"--record_dir: the held-out documents of .* drawn with"):
        read_sources(f"{record_dir},{tmp_path}")


def test_formats_do_not_mix(record_dir, other_dir, tmp_path):
    manifest = records.Manifest.read(other_dir)
    reference = records.ReferenceManifest(
        24, 4, "sop", manifest.vocab_sha256, 211, True, "0", {}, manifest.splits
    )
    reference.write(str(tmp_path))
    with pytest.raises(ValueError, match=r"'segments', .* of 'reference': mix one format only"):
        read_sources(f"{record_dir},{tmp_path}")
