import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data import pretraining_dataset as pretraining_dataset_module
from pipelines.data import training_order
from pipelines.data.examples import ExampleOptions, example_draws, example_maker
from pipelines.data.masking import unmask
from pipelines.data.pretraining_dataset import evaluation_dataset, pretraining_dataset, read_sources
from pipelines.data.records import Manifest, parse_segments, serialize_segment
from pipelines.data.segments import Segment
from tests.builders import raises_one_line
from tests.pipelines.data.small_records import reference_manifest, write_shards

COUNTS = {"train": [7, 0, 13, 3], "heldout": [5, 6]}
OPTIONS = ExampleOptions(max_seq_length=24, seed=77)
GLOBAL_BATCH = 4


def write_records(directory, tokenizer, counts_of):
    """Writes records whose first piece numbers them."""
    rng, numbers = np.random.default_rng(5), itertools.count(110)  # of 155 pieces or more

    def record():
        pieces = rng.integers(20, 100, rng.integers(6, 20)).tolist()
        pieces[0] = next(numbers)
        starts = [0, *sorted(rng.choice(range(1, 6), 2, replace=False).tolist())]
        return serialize_segment(Segment(pieces, starts, 0, False), pieces[0])

    found = {
        split: [[record() for _ in range(count)] for count in counts]
        for split, counts in counts_of.items()
    }
    return write_shards(directory, tokenizer, found, part_bytes=300)


@pytest.fixture(scope="module")
def record_dir(tmp_path_factory, tokenizer):
    return write_records(tmp_path_factory.mktemp("records"), tokenizer, COUNTS)


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory, tokenizer):
    counts = {"train": [2, 7], "heldout": []}
    return write_records(tmp_path_factory.mktemp("other"), tokenizer, counts)


def take(dataset, count):
    batches = itertools.islice(dataset, count)
    return [{name: value.numpy() for name, value in batch.items()} for batch in batches]


def numbers(batches):
    """Returns which record each row is of: its numbering piece is in the ids or masked."""
    ids = np.concatenate([unmask(batch) for batch in batches])
    return (ids[ids >= 110] - 110).tolist()


@pytest.fixture(scope="module", autouse=True)
def small_groups():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_order, "_GROUP_BYTES", 500)
        yield


@pytest.fixture(scope="module")
def four_epochs(record_dir, tokenizer):
    """A data set, and its first 23 batches of 4 records: four epochs of 23."""
    dataset = pretraining_dataset(read_sources(record_dir), OPTIONS, tokenizer, GLOBAL_BATCH)
    return dataset, take(dataset, 23)


def test_contract(four_epochs):
    dataset, _ = four_epochs
    pieces, predictions, row = (4, 24), (4, 4), (4,)  # ceil(0.15 * 24) predictions
    expected = {
        **dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), (pieces, tf.int32)),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), (predictions, tf.int32)),
        **dict.fromkeys(("sentence_order_labels", "opens_document"), (row, tf.int32)),
        "masked_lm_weights": (predictions, tf.float32),
        "sentence_order_weights": (row, tf.float32),
    }
    specs = dataset.element_spec
    assert {name: (tuple(spec.shape), spec.dtype) for name, spec in specs.items()} == expected


def test_each_epoch_is_another_permutation_with_fresh_masks(four_epochs):
    # In batches of 4, which run across the ends of groups and epochs.
    _, batches = four_epochs
    seen = numbers(batches)
    epochs = [seen[i : i + 23] for i in range(0, 92, 23)]
    assert all(sorted(epoch) == list(range(23)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    masks = np.concatenate([batch["masked_lm_positions"] for batch in batches]).tolist()
    first, second = (dict(zip(seen[i : i + 23], masks[i:])) for i in (0, 23))
    assert sum(first[number] != second[number] for number in range(23)) > 12


def test_a_late_start_and_hosts_share_the_global_batches(four_epochs, record_dir, tokenizer):
    late = four_epochs[1][12:]
    rows = [{n: v[i : i + 1] for n, v in batch.items()} for batch in late for i in range(4)]
    # 4 rows a step: the second host has two, as two batches of one.
    context = tf.distribute.InputContext(2, 1, 4)
    sources = read_sources(record_dir)
    found = pretraining_dataset(sources, OPTIONS, tokenizer, GLOBAL_BATCH, 12, context)
    np.testing.assert_equal(take(found, 22), [row for i, row in enumerate(rows) if i // 2 % 2])


@pytest.mark.parametrize("seq_length", [25, 26])  # 62, 64 numbers a row
def test_draws_of_some_rows_are_those_of_the_whole(seq_length):
    options, seed = ExampleOptions(seq_length), tf.constant([77, 3], tf.int64)
    whole = example_draws(options, 12, seed)
    for rows, first_row in ((12, 0), (5, 0), (4, 3), (1, 11)):
        part = example_draws(options, rows, seed, first_row)
        assert part.keys() == whole.keys()
        for name, draws in part.items():
            np.testing.assert_array_equal(draws, whole[name][first_row : first_row + rows])


def test_evaluation_scores_each_example_once(record_dir, tokenizer):
    # The masks are the same at every call and for every size of the batch.
    paths = Manifest.read(record_dir).paths(record_dir, "heldout")
    segments = parse_segments(tf.constant([*tf.data.TFRecordDataset(paths).as_numpy_iterator()]))
    draws = example_draws(OPTIONS, 11, tf.constant([OPTIONS.seed, 0], tf.int64))
    whole = example_maker(OPTIONS, tokenizer)(segments, draws)
    dataset = evaluation_dataset(record_dir, "heldout", OPTIONS, tokenizer, 4)
    assert dataset.element_spec["input_mask"].shape.as_list() == [4, 24]
    batches = take(dataset, 99)
    assert sorted(numbers(batches)) == list(range(23, 34))
    assert sum(batch["sentence_order_weights"].sum() for batch in batches) == 11
    for name, value in whole.items():
        rows = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(rows[:11], value, err_msg=name)
        assert not rows[11:].any()


def test_hosts_share_an_evaluation(record_dir, other_dir, tokenizer, monkeypatch):
    def make_examples(records, _):
        """Returns the records' numbers alone: to trace the making of examples takes long."""
        return {"input_mask": parse_segments(records)["input_ids"].to_tensor(shape=[None, 1])}

    monkeypatch.setattr(pretraining_dataset_module, "_example_maker", lambda *_: make_examples)
    assert not list(evaluation_dataset(other_dir, "heldout", OPTIONS, tokenizer, 4))
    monkeypatch.setattr(pretraining_dataset_module, "_EVALUATION_ROWS", 2)
    hosts, replicas = 2, 4

    def numbers_of(host):
        context = tf.distribute.InputContext(hosts, host, replicas)
        where = record_dir, "heldout", OPTIONS, tokenizer, 8
        return [
            batch["input_mask"] for batch in take(evaluation_dataset(*where, context=context), 99)
        ]

    parts = [numbers_of(host) for host in range(hosts)]
    assert len({len(part) for part in parts}) == 1  # no host waits for another
    assert all(len(batch) == 8 // replicas for part in parts for batch in part)
    found = [np.concatenate(part) for part in parts]
    assert sorted(n - 110 for part in found for n in part[part > 0]) == list(range(23, 34))
    # 11 rows, two at a time.
    assert max((part > 0).sum() for part in found) <= 6

    sample = evaluation_dataset(record_dir, "heldout", OPTIONS, tokenizer, 8, num_examples=4)
    [rows] = [batch["input_mask"] for batch in take(sample, 9)]
    assert (rows > 0).sum() == 4


def test_a_mixed_run_has_the_rows_of_each_source_in_order(
    record_dir, other_dir, tokenizer, monkeypatch
):
    """Rows are numbered from 1 on, in groups of 7; those of the other directory are negative."""

    def rows_of(source, seed, start):
        sign = 1 if source.record_dir == record_dir else -1
        return tf.data.Dataset.counter(start + 1).map(lambda number: sign * number).batch(7)

    monkeypatch.setattr(training_order, "BLOCK_ROWS", 20)
    monkeypatch.setattr(pretraining_dataset_module, "_shuffled_records", rows_of)
    monkeypatch.setattr(
        pretraining_dataset_module, "_example_maker", lambda *_: lambda rows, _: {"rows": rows}
    )
    sources = read_sources(f"{record_dir},{other_dir}", [1.0, 3.0])

    def run(start, count, context=None):
        dataset = pretraining_dataset(sources, OPTIONS, tokenizer, 6, start, context)
        return [batch["rows"].numpy().tolist() for batch in dataset.take(count)]

    whole = run(0, 10)
    seen = sum(whole, [])
    for block in range(3):
        assert sum(n > 0 for n in seen[20 * block : 20 * block + 20]) == 5
    assert [n for n in seen if n > 0] == [*range(1, 16)]
    assert [-n for n in seen if n < 0] == [*range(1, 46)]
    # The second of two hosts. Blocks of 20 rows in batches of 6: step 4 begins inside the second.
    assert run(4, 6, tf.distribute.InputContext(2, 1, 2)) == [batch[3:] for batch in whole[4:]]


def test_what_mixes_by_which_shares(record_dir, other_dir, tmp_path):
    sources = read_sources(f"{record_dir}, {other_dir}")
    assert [source.record_dir for source in sources] == [record_dir, other_dir]
    assert [source.quota for source in sources] == [47104, 18432]  # 23 and 9 of 32
    assert [source.quota for source in read_sources(record_dir, [0.2])] == [65536]
    for weights, message in (
        ([0.5], "--record_weights has 1 numbers, --record_dir 2 directories"),
        ([1, 0], "--record_weights=1,0: every weight must be positive"),
        ([1, float("inf")], "--record_weights=1,inf: every"),
        ([float("nan"), 1], "--record_weights=nan,1: every"),
        ([1, 1e-6], "would have less than one row in 65,536"),
    ):
        with raises_one_line(message):
            read_sources(f"{record_dir},{other_dir}", weights)
    # Records held out otherwise or in another form do not mix.
    manifest = Manifest.read(other_dir)
    for other, message in (
        (dataclasses.replace(manifest, seed=2), "held-out documents differently"),
        (dataclasses.replace(manifest, heldout_fraction=0.2), "held-out documents differently"),
        (reference_manifest(manifest), "'segments' records, .* 'reference' records"),
    ):
        other.write(str(tmp_path))
        with pytest.raises(ValueError, match=message):
            read_sources(f"{record_dir},{tmp_path}")
