import numpy as np

from pipelines.data import records, training_order
from pipelines.data.training_order import shuffled_groups
from tests.pipelines.data.small_records import shard


def records_of(slices, shards):
    """Returns which records the slices of a group hold: (shard, number of the record)."""
    found = []
    for index, offset, count in zip(*(values.tolist() for values in slices)):
        offsets = list(shards[index].part_offsets)
        begin = shards[index].examples * offsets.index(offset) // len(offsets)
        found.extend((index, begin + i) for i in range(count))
    return found


def test_order_from_any_record_is_the_tail_of_the_order(monkeypatch):
    monkeypatch.setattr(training_order, "_GROUP_BYTES", 1000)
    monkeypatch.setattr(training_order, "MAX_PARTS", 4)
    counts = [20, 1, 0, 0, 19, 4, 5, 20, 6]
    shards = [shard([34] * count, part_bytes=100) for count in counts]

    def order(first, length):
        found = []
        for slices, order in shuffled_groups(shards, 3, first).as_numpy_iterator():
            local = records_of(slices, shards)
            assert len(order) < 9 or (np.diff(order) != 1).any()
            found.extend(local[index] for index in order)
            if len(found) >= length:
                return found[:length]

    everything = [(i, n) for i, count in enumerate(counts) for n in range(count)]
    whole = order(0, 2 * len(everything))
    assert order(40, 50) == whole[40:90]
    # Every record once an epoch, in two epochs.
    for first in (0, len(everything)):
        assert sorted(whole[first : first + len(everything)]) == everything


def test_a_group_is_of_all_the_corpus(monkeypatch):
    for module in (records, training_order):
        monkeypatch.setattr(module, "MAX_PARTS", 32)
    monkeypatch.setattr(training_order, "_GROUP_BYTES", 4_000_000)
    # 160 MB in 240 shards: two sets of them, of each of which a group takes a part.
    shards = [shard([10**4 - 16] * 80, part_bytes=10**4)] * 160 + [
        shard([10**4 - 16] * 40, part_bytes=10**4)
    ] * 80
    number = 2 * records.MAX_PARTS
    found = shuffled_groups(shards, 3, 0).take(2 * number).as_numpy_iterator()
    groups = [slices for slices, _ in found]
    groups, others = groups[:number], groups[number:]
    assert sum(group.counts.sum() for group in groups) == sum(shard.examples for shard in shards)
    for group in groups:
        assert len(set(group.shards)) == len(group.shards) == 120
        assert group.counts.sum() * 10**4 < training_order._GROUP_BYTES
        # One of every two neighbours, throughout.
        assert np.diff(group.shards).max() <= 3 and group.shards[0] <= 1 and group.shards[-1] > 237
    # Which of them go together changes from epoch to epoch.
    sets = [{frozenset(group.shards.tolist()) for group in epoch} for epoch in (groups, others)]
    assert len(sets[0]) == len(sets[1]) == 2 and not sets[0] & sets[1]


def test_quotas_by_largest_remainder(monkeypatch):
    assert training_order.block_quotas([1, 1, 1]) == [21846, 21845, 21845]
    monkeypatch.setattr(training_order, "BLOCK_ROWS", 10)
    assert training_order.block_quotas([0.19, 0.16, 0.65]) == [2, 2, 6]
    assert training_order.block_quotas([64, 17, 19]) == [6, 2, 2]


def test_a_block_is_a_shuffle_of_the_quotas(monkeypatch):
    quotas, size = [4_000, 2_500, 53], 6_553
    monkeypatch.setattr(training_order, "BLOCK_ROWS", size)

    def sources(seed, start, count):
        rows = training_order.row_sources(quotas, seed, start).batch(count)
        return next(rows.as_numpy_iterator())

    blocks = np.split(sources(5, 0, 3 * size), 3)
    assert all(np.bincount(block).tolist() == quotas for block in blocks)
    assert (blocks[0] != blocks[1]).any() and (blocks[1] != blocks[2]).any()
    assert (sources(6, 0, size) != blocks[0]).any()
    # Spread over the block: each tenth has its share, within 5 standard deviations.
    for part in np.split(blocks[0][:6_550], 10):
        assert abs(np.mean(part == 0) - 4_000 / size) < 5 * (0.25 / len(part)) ** 0.5
    rows = np.concatenate(blocks)
    assert (sources(5, 15_000, 100) == rows[15_000:15_100]).all()
    for start in (1, 15_000):
        before = np.bincount(rows[:start], minlength=3).tolist()
        assert training_order.rows_before(quotas, 5, start) == before
