"""Which record a row of training is: computed from (seed, position), never stored or buffered.

Inside a directory an epoch goes through groups of records, each of which is a slice of many shards
and is shuffled as a whole: how well it is mixed does not depend on where the corpus lies in which
file. Over several directories, blocks of BLOCK_ROWS rows hold an exact number of rows of each, so
that where each of them stands at any row is arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pipelines.data.records import MAX_PARTS, Shard

# Records that are shuffled together; in memory as they lie on disk, several times.
_GROUP_BYTES = 32_000_000
# Rows over which the shares of several directories are exact.
BLOCK_ROWS = 65_536


class Slices(NamedTuple):
    """Consecutive records of some shards; int64 [n] each.

    Attributes:
      shards: the shards' numbers.
      offsets: the byte at which the first record begins.
      counts: how many records.
    """

    shards: np.ndarray
    offsets: np.ndarray
    counts: np.ndarray


def shuffled_groups(
    shards: Sequence[Shard], seed: int, start: int
) -> Iterator[tuple[Slices, np.ndarray]]:
    """Computes the order of training, from record number `start` of the run on, without end.

    An epoch deals the shards to as few sets as can be read in groups: each set gets one of every
    few neighbours, and so of the whole corpus. Each group of a set takes some parts of all its
    shards. The records of a group are shuffled as a whole.

    Args:
      shards: the shards; one at least holds records.
      seed: of the order; with the epoch it decides all.
      start: records of the run, over all epochs, that come before.

    Yields:
      A group, and the int64 order in which its records, in the order of reading, are to be used.
    """
    shards = [(number, shard) for number, shard in enumerate(shards) if shard.examples]
    epoch, skip = divmod(start, sum(shard.examples for _, shard in shards))
    while True:
        # One stream of random numbers for the shards and one for each group: no group is
        # shuffled only to be skipped.
        def stream(number, epoch=epoch):
            bits = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, number])
            return np.random.Generator(bits)

        for number, group in enumerate(_groups(shards, stream(0)), start=1):
            count = int(group.counts.sum())
            if skip < count:
                yield group, stream(number).permutation(count)[skip:]
            skip = max(0, skip - count)
        epoch += 1


def _groups(shards: list[tuple[int, Shard]], rng: np.random.Generator) -> Iterator[Slices]:
    """Yields the groups of an epoch; none is empty."""
    num_bytes = sum(shard.bytes for _, shard in shards)
    # A group takes one part of each shard at least.
    num_sets = -(-num_bytes // (MAX_PARTS * _GROUP_BYTES))
    neighbours = [shards[i : i + num_sets] for i in range(0, len(shards), num_sets)]
    dealt = [rng.permutation(num_sets) for _ in neighbours]
    for number in range(num_sets):
        chosen = [
            some[place]
            for some, order in zip(neighbours, dealt)
            if (place := order[number]) < len(some)
        ]
        set_bytes = sum(shard.bytes for _, shard in chosen)
        # A power of two, as MAX_PARTS is: so each group has the same number of parts of a shard.
        num_groups = min(1 << (-(-set_bytes // _GROUP_BYTES) - 1).bit_length(), MAX_PARTS)
        # Each shard begins with another of its parts: so a small one, which has few, does not
        # always come in the last group.
        shifts = rng.integers(num_groups, size=len(chosen)).tolist()
        for group in range(num_groups):
            slices = []
            for (index, shard), shift in zip(chosen, shifts):
                num_parts = len(shard.part_offsets)
                turn = (group + shift) % num_groups
                first, end = (num_parts * (turn + i) // num_groups for i in (0, 1))
                count = shard.first_record(end) - shard.first_record(first)
                if count:
                    slices.append((index, shard.part_offsets[first], count))
            if slices:
                yield Slices(*np.array(slices, np.int64).T)


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
