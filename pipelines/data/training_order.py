"""Computes the order of training records from (seed, position), without storing it.

In each directory, an epoch is a sequence of groups of records. A group consists of slices of many
shards and is shuffled as a whole, so mixing does not depend on how the corpus is divided into
files. With several directories, each block of BLOCK_ROWS rows has a fixed number of rows of each.

The order is computed in the graph, because datasets on the hosts of a TPU pod cannot call Python.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from .records import MAX_PARTS, Shard

# Number of bytes of records that are shuffled together. Memory holds several copies of them.
_GROUP_BYTES = 32_000_000
BLOCK_ROWS = 65_536
_PHILOX = 1  # The automatic choice of an algorithm depends on the device.
# Numbers of the random streams of an epoch or block. example_draws uses stream 0 of a step.
_DEALING, _SHIFTS, _MIXING, _FIRST_GROUP = range(1, 5)


class Slices(NamedTuple):
    """Consecutive records in each of n shards. All fields are int64 [n]."""

    shards: tf.Tensor  # indices of the shards
    offsets: tf.Tensor  # byte offset of the first record in each shard
    counts: tf.Tensor  # number of records in each slice


class _Table(NamedTuple):
    """The shards that are not empty. All fields except the last are int64 [n]."""

    numbers: tf.Tensor
    examples: tf.Tensor
    bytes: tf.Tensor
    parts: tf.Tensor
    first_parts: tf.Tensor
    part_offsets: tf.Tensor  # int64 [all parts]


def shuffled_groups(shards: Sequence[Shard], seed: int, start: int) -> tf.data.Dataset:
    """Returns an infinite dataset of groups that starts at record number `start` of the run.

    A group is a tuple: its Slices, and the shuffled indices of their records, int64 [m].

    In each epoch the shards are assigned to as few sets as possible, with up to 8 GB of records per
    set. Neighbouring shards are in different sets, so each set covers the whole corpus. Each group
    of a set consists of some parts of all shards in the set. Records are shuffled within a group.

    At least one shard must have records. The order depends on seed and epoch. `start` is counted
    over all epochs. In the first group, the indices of the records before `start` are missing.
    """
    table = _table(shards)
    epoch, skipped = divmod(start, sum(shard.examples for shard in shards))
    # A group contains at least one part of each shard in its set.
    num_sets = -(-sum(shard.bytes for shard in shards) // (MAX_PARTS * _GROUP_BYTES))

    def locate(first, group):
        slices, epoch, number = group
        count = tf.reduce_sum(slices.counts)
        return first + count, (slices, epoch, number, first, count)

    def shuffle(slices, epoch, number, first, count):
        stream = _stream(seed, epoch, number + _FIRST_GROUP)
        order = _permutation(count, stream)[tf.maximum(start - first, 0) :]
        return slices, order

    groups = tf.data.Dataset.counter(epoch).flat_map(lambda e: _groups(table, num_sets, seed, e))
    groups = groups.scan(tf.constant(start - skipped, tf.int64), locate)
    # Skip groups before `start` without shuffling them.
    groups = groups.filter(lambda _slices, _epoch, _number, first, count: first + count > start)
    return groups.map(shuffle)


def _table(shards: Sequence[Shard]) -> _Table:
    rows = [
        (number, shard.examples, shard.bytes, len(shard.part_offsets))
        for number, shard in enumerate(shards)
        if shard.examples
    ]
    numbers, examples, sizes, parts = map(np.array, zip(*rows))
    offsets = np.concatenate([shards[number].part_offsets for number in numbers])
    columns = numbers, examples, sizes, parts, np.cumsum(parts) - parts, offsets
    return _Table(*(tf.constant(column, tf.int64) for column in columns))


def _groups(table: _Table, num_sets: int, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    """Returns a dataset of (slices, epoch, group number) of the non-empty groups of an epoch."""
    num_shards = tf.size(table.numbers, tf.int64)
    # Each row of `dealt` is a permutation of the sets, so neighbouring shards get different sets.
    shape = [-(-num_shards // num_sets), num_sets]
    dealt = tf.argsort(_random_int64(shape, _stream(seed, epoch, _DEALING)), axis=1, stable=True)
    set_of = tf.reshape(dealt, [-1])[:num_shards]
    set_bytes = tf.math.unsorted_segment_sum(table.bytes, set_of, num_sets)
    # A power of two, like MAX_PARTS, so that all groups have the same number of parts of a shard.
    powers = tf.constant([1 << i for i in range(MAX_PARTS.bit_length())], tf.int64)
    needed = tf.minimum(-(-set_bytes // _GROUP_BYTES), MAX_PARTS)
    num_groups = tf.gather(powers, tf.searchsorted(powers, needed))
    ends = tf.cumsum(num_groups)
    # Each shard starts with a random part. Otherwise the few parts of a small shard would always be
    # in the last group. The other parts follow in cyclic order, so a record is not equally likely
    # at all positions of an epoch.
    shifts = _random_int64([num_shards], _stream(seed, epoch, _SHIFTS))

    def slices_of(number):
        chosen = tf.searchsorted(ends, number[tf.newaxis], side="right")[0]
        count = num_groups[chosen]
        ours = tf.where(set_of == chosen)[:, 0]
        numbers, examples, _, parts, first_parts = (tf.gather(c, ours) for c in table[:-1])
        turn = (number - ends[chosen] + count + tf.gather(shifts, ours)) % count
        first, end = (parts * (turn + i) // count for i in (0, 1))
        # See Shard.part_offsets.
        counts = examples * end // parts - examples * first // parts
        held = counts > 0
        where = tf.gather(table.part_offsets, tf.boolean_mask(first_parts + first, held))
        return Slices(tf.boolean_mask(numbers, held), where, tf.boolean_mask(counts, held))

    groups = tf.data.Dataset.range(ends[-1]).map(lambda number: (slices_of(number), epoch, number))
    return groups.filter(lambda slices, _epoch, _number: tf.size(slices.shards) > 0)


def _stream(seed: int, place: tf.Tensor, number: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns random stream `number` of the epoch or block `place`."""
    seeds = tf.stack([tf.constant(seed, tf.int64), place])
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seeds)
    counter += tf.stack([tf.zeros([], tf.uint64), tf.cast(number, tf.uint64)])
    return {"key": key, "counter": counter, "alg": _PHILOX}


def _random_int64(shape: tf.Tensor, stream: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns random integers that are uniform over the whole int64 range."""
    return tf.raw_ops.StatelessRandomUniformFullIntV2(shape=shape, dtype=tf.int64, **stream)


def _permutation(count: tf.Tensor, stream: dict[str, tf.Tensor]) -> tf.Tensor:
    # index_shuffle is not used, because its permutations of few elements are not uniform.
    return tf.raw_ops.StatelessShuffle(value=tf.range(count), **stream)


def block_quotas(weights: Sequence[float]) -> list[int]:
    """Divides BLOCK_ROWS among the sources by the largest-remainder method.

    Example: the quotas for weights 1, 1, 1 are 21846, 21845, 21845.
    """
    exact = np.array(weights) / math.fsum(weights) * BLOCK_ROWS
    quotas = np.floor(exact).astype(int)
    by_remainder = np.argsort(quotas - exact, kind="stable")
    quotas[by_remainder[: BLOCK_ROWS - quotas.sum()]] += 1
    return quotas.tolist()


def row_sources(quotas: Sequence[int], seed: int, start: int) -> tf.data.Dataset:
    """Returns an infinite dataset of source indices, int64 [], one per row from row `start` on."""
    block, skipped = divmod(start, BLOCK_ROWS)
    blocks = tf.data.Dataset.counter(block).map(lambda number: _block(quotas, seed, number))
    return blocks.unbatch().skip(skipped)


def rows_before(quotas: Sequence[int], seed: int, start: int) -> list[int]:
    """Returns the number of rows of each source among the first `start` rows of the run."""
    block, rows = divmod(start, BLOCK_ROWS)
    sources = _block(quotas, seed, tf.constant(block, tf.int64)).numpy()
    counts = np.bincount(sources[:rows], minlength=len(quotas))
    return [block * quota + int(count) for quota, count in zip(quotas, counts)]


def _block(quotas: Sequence[int], seed: int, block: tf.Tensor) -> tf.Tensor:
    """Returns the source index of each row of a block, int64 [BLOCK_ROWS]."""
    sources = tf.repeat(tf.range(len(quotas), dtype=tf.int64), tf.constant(quotas, tf.int64))
    order = _permutation(tf.size(sources, tf.int64), _stream(seed, block, _MIXING))
    return tf.gather(sources, order)
