"""Makes batches from records: order, mix, parse, split, swap, mask; no example is stored.

The examples and masks of a step are a pure function of (seed, epoch, position). They do not depend
on the number of hosts, on their speed, or on where a run was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from .examples import ExampleOptions, example_draws, example_maker
from .records import Manifest, ReferenceManifest, Shard, parse_segments
from .reference_examples import parse_examples
from .training_order import (
    BLOCK_ROWS,
    Group,
    block_quotas,
    row_sources,
    rows_before,
    shuffled_groups,
)

# Evaluation draws masks for this number of rows at a time, whatever the batch size.
_EVALUATION_ROWS = 64
# A group is stored in slices of many files. This many are read at once: each may be a request.
_SLICES_AT_A_TIME = 16
_READ_BYTES = 1 << 18
# Largest number of shards that a sample of a split opens.
_MAX_SAMPLED_SHARDS = 512
# Every evaluation has the same masks, which differ from those in training.
_MASK_SEED = 20200426


@dataclass(frozen=True)
class Source:
    """A directory that training reads, and its number of rows in each block of BLOCK_ROWS."""

    record_dir: str
    manifest: Manifest
    quota: int


def read_sources(record_dir: str, record_weights: Sequence[float] | None = None) -> list[Source]:
    """Reads the manifests of a run's record directories.

    Args:
      record_dir: directories of create_pretraining_data or index_records, comma-separated.
      record_weights: share of each directory in the run. Default: its number of examples, so that
        all directories have equal epochs.

    Raises:
      UserError: if a directory holds no records of the split "train", their formats differ, or
        the weights do not fit the directories.
    """
    record_dirs = [name.strip() for name in record_dir.split(",")]
    manifests = [Manifest.read(name) for name in record_dirs]
    for name, manifest in zip(record_dirs, manifests):
        if not manifest.splits["train"].examples:
            raise UserError(f"{name!r} holds no records to train on: its corpus is too small")
        if manifest.format != manifests[0].format:
            raise UserError(
                f"--record_dir: {record_dirs[0]!r} holds records of format "
                f"{manifests[0].format!r}, {name!r} of {manifest.format!r}: name directories of "
                "one format"
            )
        if manifest.heldout_split != manifests[0].heldout_split:
            raise UserError(
                f"--record_dir: {record_dirs[0]!r} and {name!r} drew their held-out documents "
                f"differently, with {manifests[0].heldout_split} and {manifest.heldout_split}: "
                "training on one would include held-out documents of the other; write one of "
                "them again"
            )
    weights = record_weights or [manifest.splits["train"].examples for manifest in manifests]
    if len(weights) != len(record_dirs):
        raise UserError(
            f"--record_weights has {len(weights)} numbers, --record_dir {len(record_dirs)} "
            "directories: give one weight for each"
        )
    if not all(weight > 0 and math.isfinite(weight) for weight in weights):
        shown = ",".join(f"{weight:g}" for weight in weights)
        raise UserError(f"--record_weights={shown}: every weight must be positive and finite")
    quotas = block_quotas(weights)
    for name, quota in zip(record_dirs, quotas):
        if not quota:
            raise UserError(
                f"{name!r} would have less than one row in {BLOCK_ROWS:,}: raise its share with "
                "--record_weights, or leave it out"
            )
    return [Source(*fields) for fields in zip(record_dirs, manifests, quotas)]


def check_sources(
    sources: Sequence[Source], tokenizer: AlbertTokenizer, options: ExampleOptions
) -> None:
    """Checks that the records match the vocabulary and the options of the examples.

    Raises:
      UserError: if they do not match, or no segment can have an order label.
    """
    for source in sources:
        source.manifest.check(source.record_dir, tokenizer, options)
    shares = {source.manifest.share_with_order for source in sources}
    if options.objective.swaps and shares == {0.0}:
        names = ",".join(source.record_dir for source in sources)
        raise UserError(
            f"--sentence_objective={options.sentence_objective}: no segment of {names!r} has two "
            "sentences whose order can be asked: write records of a larger --max_seq_length (with "
            "--input_format=sentences a line is a sentence), or give --sentence_objective=none"
        )


def pretraining_dataset(
    sources: Sequence[Source],
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    global_batch_size: int,
    start_step: int = 0,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Returns endless shuffled batches of the split "train", from step `start_step` on.

    Args:
      sources: see `read_sources`.
      options: how records become examples; its seed decides order, splits and masks.
      tokenizer: has the vocabulary of the records.
      global_batch_size: examples per step over all hosts.
      start_step: the step of the first batch. A later start costs the reading of one group at most.
      context: identifies this host. A batch holds the rows of one replica. Default: one host with
        one replica.

    Returns:
      dicts with static shapes (b rows): int32 [b, L] `input_word_ids`, `input_mask`,
      `input_type_ids`; [b, P] int32 `masked_lm_positions`, `masked_lm_ids` and float32
      `masked_lm_weights`; [b] int32 `sentence_order_labels`, `opens_document` and float32
      `sentence_order_weights`.
    """
    context = context or tf.distribute.InputContext()
    hosts = context.num_input_pipelines
    assert global_batch_size % hosts == 0, "rows would be lost"
    host_rows = global_batch_size // hosts
    if options.objective.pairs_rows and hosts > 1 and host_rows % 2:
        raise UserError(
            f"each of {hosts} hosts gets {host_rows} rows of the global batch: "
            "--sentence_objective=nsp pairs rows and needs an even number"
        )
    first_row = context.input_pipeline_id * host_rows
    make_examples = _example_maker(sources[0].manifest, options, tokenizer)

    def make_batch(step, records):
        seed = tf.stack([tf.cast(options.seed, tf.int64), step])
        draws = example_draws(options, host_rows, seed, first_row)
        return make_examples(records, draws)

    start = start_step * global_batch_size
    dataset = _host_records(sources, options.seed, start, global_batch_size, context)
    dataset = tf.data.Dataset.zip((tf.data.Dataset.counter(start_step), dataset))
    dataset = dataset.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    # Divide this host's batch into one batch per replica.
    rows = context.get_per_replica_batch_size(global_batch_size)
    if rows != host_rows:
        dataset = dataset.rebatch(rows, drop_remainder=True)
    return dataset.map(lambda batch: _with_static_rows(batch, rows)).prefetch(tf.data.AUTOTUNE)


def evaluation_options(
    manifests: Sequence[Manifest], max_seq_length: int, sentence_objective: str
) -> ExampleOptions:
    """Returns the options of every evaluation: masks as published, the same each time.

    The run's --ngram, --masked_lm_prob, --mask_token_rate and --random_token_rate have no effect,
    so that metrics can be compared among runs and with pipelines.evaluate. Static examples are
    already masked.
    """
    static = {manifest.max_predictions_per_seq for manifest in manifests} - {None}
    return ExampleOptions(
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max(static, default=None),
        sentence_objective=sentence_objective,
        seed=_MASK_SEED,
    )


def evaluation_dataset(
    record_dir: str,
    split: str,
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    batch_size: int,
    num_examples: int | None = None,
    with_lengths: bool = False,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Returns one pass over a split in the order of its files, with the same masks at every call.

    Several hosts share the examples. A batch holds rows for one replica, and all replicas have the
    same number of batches. Batches are filled up with rows of weight 0, so each example counts
    once. "nsp" takes B from the neighbouring row, and neighbours in a file may be of one document.
    So rows of the first half of the split alternate with rows of the second half.

    `batch_size` counts the rows of all replicas. `num_examples` is the size of a sample, the same
    at every call; None: the whole split. `with_lengths` adds sentence_pairs.length_features. For
    the other arguments see pretraining_dataset.
    """
    context = context or tf.distribute.InputContext()
    rows = context.get_per_replica_batch_size(batch_size)
    manifest = Manifest.read(record_dir)
    make_examples = _example_maker(manifest, options, tokenizer, with_lengths)

    def make_rows(index, records):
        seed = tf.stack([tf.cast(options.seed, tf.int64), index])
        return make_examples(records, example_draws(options, tf.shape(records)[0], seed))

    def fill(batch):
        missing = rows - tf.shape(batch["input_mask"])[0]
        return {
            name: tf.pad(values, [[0, missing], *[[0, 0]] * (values.shape.rank - 1)])
            for name, values in batch.items()
        }

    records = sampled_records(record_dir, manifest, split, num_examples)
    total = int(sample_counts(manifest.splits[split].shards, num_examples).sum())
    if options.objective.pairs_rows:
        half = total // 2
        turns = tf.data.Dataset.zip((records.take(half), records.skip(half).take(half)))
        turns = turns.flat_map(lambda *pair: tf.data.Dataset.from_tensor_slices(tf.stack(pair)))
        records = turns.concatenate(records.skip(2 * half))
    # Hosts share blocks of _EVALUATION_ROWS rows, for which masks are drawn together.
    hosts = context.num_input_pipelines
    dataset = tf.data.Dataset.zip((tf.data.Dataset.counter(), records.batch(_EVALUATION_ROWS)))
    dataset = dataset.shard(hosts, context.input_pipeline_id)
    dataset = dataset.map(make_rows, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    dataset = dataset.rebatch(rows).map(fill).map(lambda batch: _with_static_rows(batch, rows))
    if hosts > 1 or rows < batch_size:
        # The first host has the most rows, as the hosts take turns.
        rounds, rest = divmod(total, _EVALUATION_ROWS * hosts)
        most = rounds * _EVALUATION_ROWS + min(rest, _EVALUATION_ROWS)
        steps = -(-most // (batch_size // hosts))
        nothing = {n: tf.zeros(spec.shape, spec.dtype) for n, spec in dataset.element_spec.items()}
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(nothing).repeat())
        dataset = dataset.take(steps * (batch_size // hosts // rows))
    return dataset.prefetch(2)


def sampled_records(
    record_dir: str, manifest: Manifest, split: str, num_examples: int | None
) -> tf.data.Dataset:
    """Returns serialized records of a split, in the order of its files; see `sample_counts`."""
    # The dtype is named, because TensorFlow makes an empty list float32.
    files = tf.constant(manifest.paths(record_dir, split), tf.string)
    counts = sample_counts(manifest.splits[split].shards, num_examples)
    slices = tf.data.Dataset.from_tensor_slices((files, counts)).filter(lambda _, count: count > 0)
    return slices.flat_map(lambda file, count: tf.data.TFRecordDataset(file).take(count))


def sample_counts(shards: Sequence[Shard], num_examples: int | None) -> np.ndarray:
    """Returns how many records to take from the beginning of each shard, int64.

    Records are in random order, so the first ones are a sample of a shard. Counts are proportional
    to the shards' sizes. If there are very many shards, only some random ones are opened.
    """
    counts = np.array([shard.examples for shard in shards], np.int64)
    if num_examples is None or num_examples >= counts.sum():
        return counts
    rng = np.random.Generator(np.random.Philox(key=[_MASK_SEED, 0]))
    chosen = np.zeros(len(shards), bool)
    chosen[rng.permutation(len(shards))[:_MAX_SAMPLED_SHARDS]] = True
    ends = np.cumsum(np.where(chosen, counts, 0))
    # Rounding the cumulative sums keeps each shard within one record of its share.
    ends = np.round(ends * (min(num_examples, ends[-1]) / ends[-1])).astype(np.int64)
    return np.diff(ends, prepend=0)


def _host_records(
    sources: Sequence[Source],
    seed: int,
    start: int,
    global_batch_size: int,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Returns this host's rows of each global batch as raw records, across groups and epochs."""
    hosts, host = context.num_input_pipelines, context.input_pipeline_id
    host_rows = global_batch_size // hosts

    def is_ours(rows):
        return rows % global_batch_size // host_rows == host

    if len(sources) == 1:
        dataset = _shuffled_records(sources[0], seed, start, is_ours if hosts > 1 else None)
        return dataset.rebatch(host_rows, drop_remainder=True)
    dataset = _mixed_records(sources, seed, start)
    dataset = dataset.batch(global_batch_size, drop_remainder=True)
    return dataset.map(lambda records: records[host * host_rows :][:host_rows])


def _shuffled_records(
    source: Source, seed: int, start: int, is_ours: Callable[[tf.Tensor], tf.Tensor] | None = None
) -> tf.data.Dataset:
    """Returns the raw records of a source without end, from number `start` on, in groups.

    `start` is counted from the beginning of the run; it may be beyond the first epoch. `is_ours`
    maps numbers of records in the run to whether to return them (int64 [n] -> bool [n]); default:
    all. The other records are read, but not kept. That is simple and exact, but every host reads
    the whole data set.
    """
    paths = tf.constant(source.manifest.paths(source.record_dir, "train"))

    def read_in_order(group: Group):
        slices, order = group.slices, group.order
        begins = tf.cumsum(slices.counts, exclusive=True)
        if is_ours:
            numbers = group.first + tf.range(tf.size(order, tf.int64))
            order = tf.boolean_mask(order, is_ours(numbers))
            total = tf.reduce_sum(slices.counts)
            kept = tf.scatter_nd(order[:, tf.newaxis], tf.ones_like(order), [total])
            # Renumber: place among the kept records.
            order = tf.gather(tf.cumsum(kept) - 1, order)

        def read(file, offset, count, begin):
            records = _read_slice(file, offset, count)
            if not is_ours:
                return records
            return records.map(lambda r: tf.boolean_mask(r, kept[begin : begin + count] > 0))

        slices = (tf.gather(paths, slices.shards), slices.offsets, slices.counts, begins)
        # Pass on whole slices: passing on single records takes ten times as long as reading them.
        records = tf.data.Dataset.from_tensor_slices(slices).interleave(
            read, cycle_length=_SLICES_AT_A_TIME, num_parallel_calls=_SLICES_AT_A_TIME
        )
        # One element: all records of the group, in the order on disk.
        return records.rebatch(tf.int64.max).map(lambda r: tf.gather(r, order))

    # Whole groups, shuffled; the next group is read while this one is used.
    groups = shuffled_groups(source.manifest.splits["train"].shards, seed, start)
    return groups.flat_map(read_in_order).prefetch(1)


def _read_slice(file: tf.Tensor, offset: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
    """Returns `count` records of a file, from a byte on, as one element.

    tf.data.TFRecordDataset cannot seek.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[file], compression_type="", buffer_size=_READ_BYTES, byte_offsets=[offset]
    )
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    return records.take(count).batch(count)


def _mixed_records(sources: Sequence[Source], seed: int, start: int) -> tf.data.Dataset:
    """Returns the raw records of several sources one by one, from row `start` of the run on.

    Each source has its own epochs and holds one group in memory.
    """
    quotas = [source.quota for source in sources]
    streams = [
        _shuffled_records(source, seed, first).unbatch()
        for source, first in zip(sources, rows_before(quotas, seed, start))
    ]
    return tf.data.Dataset.choose_from_datasets(streams, row_sources(quotas, seed, start))


def _example_maker(
    manifest: Manifest,
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    with_lengths: bool = False,
) -> Callable[[tf.Tensor, dict[str, tf.Tensor]], dict[str, tf.Tensor]]:
    """Returns (serialized records, draws for the same rows) -> batch."""
    if isinstance(manifest, ReferenceManifest):
        return lambda records, _: parse_examples(records, options, with_lengths)
    make_examples = example_maker(options, tokenizer, with_lengths)
    return lambda records, draws: make_examples(parse_segments(records), draws)


def _with_static_rows(batch: dict[str, tf.Tensor], rows: int) -> dict[str, tf.Tensor]:
    return {name: tf.ensure_shape(v, [rows, *v.shape[1:]]) for name, v in batch.items()}
