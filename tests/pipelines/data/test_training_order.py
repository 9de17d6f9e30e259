"""The order of training as arithmetic: each record once an epoch, from any position on."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data import records, training_order
from pipelines.data.training_order import shuffled_groups
from tests.pipelines.data.small_records import shard


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
        return shard([10**5 - 16] * 10 * megabytes, part_bytes=1 << 16)

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
    counts = [group.counts.sum() for group in epoch([big_shard(2000)])]
    assert sorted(counts) == [312] * 32 + [313] * 32


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
