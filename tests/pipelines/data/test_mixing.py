"""How well batches are mixed: by the project's own order of 16 GB of text, which nobody writes."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.data.records import MAX_PARTS, Shard
from pipelines.data.training_order import shuffled_groups

BATCH = 4096
SHARDS, SHARD_EXAMPLES, SHARD_BYTES = 250, 125_000, 28_000_000  # of 64 MB of text each, length 128
BOOKS_PER_SHARD = 100  # of 640 KB


def shard(number: int, examples=SHARD_EXAMPLES, size=SHARD_BYTES) -> Shard:
    offsets = [size * part // MAX_PARTS for part in range(MAX_PARTS)]
    return Shard(f"{number}.tfrecord", "text", examples, examples * 120, size, "", offsets)


def batches(shards, count: int, seed: int = 7):
    """Yields the shard of each record of a batch, from the first one on."""
    left = np.zeros(0, np.int64)
    for slices, order, _ in shuffled_groups(shards, seed, 0).as_numpy_iterator():
        left = np.concatenate([left, np.repeat(slices.shards, slices.counts)[order]])
        while len(left) >= BATCH:
            yield left[:BATCH]
            left, count = left[BATCH:], count - 1
            if not count:
                return


def test_shares_of_sources_in_files_of_their_own_vary_as_in_a_full_shuffle():
    share_of_first = 0.1
    is_first = np.arange(SHARDS) < share_of_first * SHARDS
    shares = [is_first[b].mean() for b in batches([shard(n) for n in range(SHARDS)], 400)]
    full = (share_of_first * (1 - share_of_first) / BATCH) ** 0.5
    assert np.mean(shares) == pytest.approx(share_of_first, abs=4 * full / 400**0.5)
    assert np.std(shares) < 1.1 * full


def test_a_batch_holds_as_many_books_as_in_a_full_shuffle():
    rng = np.random.default_rng(1)
    books = SHARDS * BOOKS_PER_SHARD
    expected = books * (1 - (1 - 1 / books) ** BATCH)
    for batch in batches([shard(n) for n in range(SHARDS)], 20):
        # Records of a shard are in random order: which book one is of is drawn.
        found = len(set(batch * BOOKS_PER_SHARD + rng.integers(BOOKS_PER_SHARD, size=BATCH)))
        assert found == pytest.approx(expected, rel=0.03)
        assert found > 3000


def test_a_corpus_beyond_one_set_is_dealt_evenly():
    # 1 TB of text: 32 sets of shards, each of which has one of every 32 neighbours.
    shards = [shard(n) for n in range(15_600)]
    group = next(shuffled_groups(shards, 7, 0).as_numpy_iterator()).slices
    assert group.counts.sum() * SHARD_BYTES / SHARD_EXAMPLES < 70e6
    assert len(group.shards) > 250
    neighbours = group.shards // (len(shards) // len(group.shards) + 1)
    assert len(set(neighbours)) > 0.9 * len(group.shards)
