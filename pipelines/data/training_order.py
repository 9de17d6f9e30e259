"""Which record a row of training is: computed from (seed, position), never stored or buffered.

Inside a directory an epoch is a shuffle of its shards. Over several directories, blocks of
BLOCK_ROWS rows hold an exact number of rows of each, so that where each of them stands at any row
is arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pipelines.data.records import Shard

# Records that are shuffled together: whole shards, in memory as they lie on disk, several times.
_GROUP_BYTES = 128_000_000
# Rows over which the shares of several directories are exact.
BLOCK_ROWS = 65_536


def shuffled_groups(
    shards: Sequence[Shard], seed: int, start: int
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Computes the order of training, from record number `start` of the run on, without end.

    Each epoch shuffles the shards, takes as many as make a group, and shuffles the records of a
    group as a whole.

    Args:
      shards: the shards; one at least holds records.
      seed: of the order; with the epoch it decides all.
      start: records of the run, over all epochs, that come before.

    Yields:
      The indices of a group's shards, and the int64 order in which their records, read one shard
      after the other, are to be used.
    """
    epoch, skip = divmod(start, sum(shard.examples for shard in shards))
    while True:
        # One stream of random numbers for the shards and one for each group: no group is
        # shuffled only to be skipped.
        def stream(number, epoch=epoch):
            bits = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, number])
            return np.random.Generator(bits)

        order = stream(0).permutation(len(shards)).tolist()
        for number, group in enumerate(_grouped(order, shards), start=1):
            count = sum(shards[index].examples for index in group)
            if skip < count:
                yield group, stream(number).permutation(count)[skip:]
            skip = max(0, skip - count)
        epoch += 1


def _grouped(order: list[int], shards: Sequence[Shard]) -> Iterator[list[int]]:
    group: list[int] = []
    group_bytes = 0
    for index in order:
        if group and group_bytes + shards[index].bytes > _GROUP_BYTES:
            yield group
            group, group_bytes = [], 0
        if shards[index].examples:
            group.append(index)
            group_bytes += shards[index].bytes
    if group:
        yield group


def block_quotas(weights: Sequence[float]) -> list[int]:
    """Returns the rows of each source in a block: largest remainders, the sum is BLOCK_ROWS.

    Example: weights 1, 1, 1 get 21846, 21845, 21845.
    """
    total = math.fsum(weights)
    exact = [weight / total * BLOCK_ROWS for weight in weights]
    quotas = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: (quotas[i] - exact[i], i))
    for index in by_remainder[: BLOCK_ROWS - sum(quotas)]:
        quotas[index] += 1
    return quotas


def row_sources(quotas: Sequence[int], seed: int, start: int) -> Iterator[np.ndarray]:
    """Yields, block by block and without end, the source of each row from row `start` on, int64."""
    block, skip = divmod(start, BLOCK_ROWS)
    while True:
        yield _block(quotas, seed, block)[skip:]
        block, skip = block + 1, 0


def rows_before(quotas: Sequence[int], seed: int, start: int) -> list[int]:
    """Returns how many of the first `start` rows of the run each source has."""
    block, rows = divmod(start, BLOCK_ROWS)
    counts = np.bincount(_block(quotas, seed, block)[:rows], minlength=len(quotas))
    return [block * quota + int(count) for quota, count in zip(quotas, counts)]


def _block(quotas: Sequence[int], seed: int, block: int) -> np.ndarray:
    # The third number keeps this stream apart from those of shuffled_groups.
    bits = np.random.Philox(key=[seed, block], counter=[0, 0, 1, 0])
    return np.random.Generator(bits).permutation(np.repeat(np.arange(len(quotas)), quotas))
