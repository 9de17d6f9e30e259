"""Creates batches of training and evaluation examples from records, without storing examples.

The examples and masks of a step are a pure function of (seed, epoch, position). They do not depend
on the number or speed of hosts, or on where a run was interrupted.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from .examples import ExampleOptions, example_draws, example_maker
from .records import Manifest, ReferenceManifest, Shard, parse_segments
from .reference_examples import parse_examples
from .training_order import (
    BLOCK_ROWS,
    block_quotas,
    row_sources,
    rows_before,
    shuffled_groups,
)

# Evaluation draws masks for this number of rows at a time, regardless of the batch size.
_EVALUATION_ROWS = 64
# Number of slices of a group that are read in parallel. Each slice can be a remote request.
_SLICES_AT_A_TIME = 16
_READ_BYTES = 1 << 18
# Maximum number of shards that are opened to sample a split.
_MAX_SAMPLED_SHARDS = 512
# Seed of the masks, which are the same in every evaluation and differ from the training masks.
_MASK_SEED = 20200426


@dataclass(frozen=True)
class Source:
    """A record directory for training. `quota` is its number of rows per block of BLOCK_ROWS."""

    record_dir: str
    manifest: Manifest
    quota: int


def read_sources(record_dir: str, record_weights: Sequence[float] | None = None) -> list[Source]:
    """Reads the manifests of a run's record directories.

    Args:
      record_dir: comma-separated output directories of create_pretraining_data or index_records.
      record_weights: relative number of rows from each directory. Default: the directories' numbers
        of examples, so that all directories complete an epoch at the same time.

    Raises a UserError if a directory has no training records, the directories differ in format or
    in the choice of held-out documents, or the weights are invalid.
    """
    record_dirs = files.split_paths(record_dir)
    manifests = [Manifest.read(name) for name in record_dirs]
    for name, manifest in zip(record_dirs, manifests):
        if not manifest.splits["train"].examples:
            raise UserError(f"{name!r} holds no records to train on: its corpus is too small")
        if manifest.format != manifests[0].format:
            raise UserError(
                f"--record_dir: {record_dirs[0]!r} holds {manifests[0].format!r} records, {name!r} "
                f"{manifest.format!r} records: name directories of one format"
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
    """Raises a UserError if records do not match the vocabulary or the example options."""
    for source in sources:
        source.manifest.check(source.record_dir, tokenizer, options)
    shares = {source.manifest.share_with_order for source in sources}
    if options.objective.swaps and shares == {0.0}:
        names = ",".join(source.record_dir for source in sources)
        raise UserError(
            f"--sentence_objective={options.sentence_objective}: no segment of {names!r} has two "
            "sentences whose order can be predicted: write records with a larger --max_seq_length "
            "(with --input_format=sentences a line is a sentence), or pass "
            "--sentence_objective=none"
        )


@tf.autograph.experimental.do_not_convert
def pretraining_dataset(
    sources: Sequence[Source],
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    global_batch_size: int,
    start_step: int = 0,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Returns an infinite dataset of shuffled training batches that starts at step `start_step`.

    Args:
      sources: see `read_sources`.
      options: example options. The seed determines order, splits and masks.
      tokenizer: the tokenizer of the records.
      global_batch_size: number of examples per step over all hosts.
      start_step: step of the first batch. Starting at a later step reads at most one extra group.
      context: identifies this host. Each batch contains the rows of one replica. Default: one host
        with one replica.

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
    # Split this host's batch into one batch per replica, with static shapes.
    rows = context.get_per_replica_batch_size(global_batch_size)
    return dataset.rebatch(rows, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def evaluation_options(
    manifests: Sequence[Manifest], max_seq_length: int, sentence_objective: str
) -> ExampleOptions:
    """Returns the evaluation options, with a fixed seed and the published masking settings.

    The masking settings of a run are ignored, so that metrics are comparable between runs. Static
    examples are already masked, and are not masked again.
    """
    static = [m.max_predictions_per_seq for m in manifests if isinstance(m, ReferenceManifest)]
    options = ExampleOptions(max_seq_length, sentence_objective=sentence_objective, seed=_MASK_SEED)
    return dataclasses.replace(options, max_predictions_per_seq=max(static)) if static else options


@tf.autograph.experimental.do_not_convert
def evaluation_dataset(
    record_dir: str,
    split: str,
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    batch_size: int,
    num_examples: int | None = None,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Returns one pass over a split in file order, with the same masks at every call.

    The examples are divided among the hosts. Each batch contains the rows of one replica, and all
    replicas get the same number of batches. Batches are padded with rows of weight 0, so each
    example counts once. "nsp" takes B from the neighbouring row, and neighbouring rows of a file
    can be from the same document. For "nsp", rows of the first half of the split therefore
    alternate with rows of the second half.

    `batch_size` is the number of rows over all replicas. `num_examples` is the size of the sample,
    which is the same at every call; None means the whole split. For the other arguments see
    pretraining_dataset.
    """
    context = context or tf.distribute.InputContext()
    rows = context.get_per_replica_batch_size(batch_size)
    manifest = Manifest.read(record_dir)
    make_examples = _example_maker(manifest, options, tokenizer)

    def make_rows(index, records):
        seed = tf.stack([tf.cast(options.seed, tf.int64), index])
        return make_examples(records, example_draws(options, tf.shape(records)[0], seed))

    def fill(batch):
        missing = rows - tf.shape(batch["input_mask"])[0]
        for name, values in batch.items():
            padded = tf.pad(values, [[0, missing], *[[0, 0]] * (values.shape.rank - 1)])
            batch[name] = tf.ensure_shape(padded, [rows, *values.shape[1:]])
        return batch

    records = sampled_records(record_dir, manifest, split, num_examples)
    total = int(sample_counts(manifest.splits[split].shards, num_examples).sum())
    if options.objective.pairs_rows:
        half = total // 2
        turns = tf.data.Dataset.zip((records.take(half), records.skip(half).take(half)))
        turns = turns.flat_map(lambda *pair: tf.data.Dataset.from_tensor_slices(tf.stack(pair)))
        records = turns.concatenate(records.skip(2 * half))
    # Each host gets whole blocks of _EVALUATION_ROWS rows. Masks are drawn once per block.
    hosts = context.num_input_pipelines
    dataset = tf.data.Dataset.zip((tf.data.Dataset.counter(), records.batch(_EVALUATION_ROWS)))
    dataset = dataset.shard(hosts, context.input_pipeline_id)
    dataset = dataset.map(make_rows, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    dataset = dataset.rebatch(rows).map(fill)
    if hosts > 1 or rows < batch_size:
        # Hosts take turns, so the first host gets the most rows.
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
    """Returns serialized records of a split in file order, sampled by `sample_counts`."""
    # The dtype is required, because TensorFlow converts an empty list to float32.
    files = tf.constant(manifest.paths(record_dir, split), tf.string)
    counts = sample_counts(manifest.splits[split].shards, num_examples)
    slices = tf.data.Dataset.from_tensor_slices((files, counts)).filter(lambda _, count: count > 0)
    return slices.flat_map(lambda file, count: tf.data.TFRecordDataset(file).take(count))


def sample_counts(shards: Sequence[Shard], num_examples: int | None) -> np.ndarray:
    """Returns the number of records to take from the start of each shard, int64 [number of shards].

    Records of a shard are in random order, so the first records are a random sample. The counts are
    proportional to shard sizes. A sample uses at most _MAX_SAMPLED_SHARDS shards, chosen at random.
    """
    counts = np.array([shard.examples for shard in shards], np.int64)
    if num_examples is None or num_examples >= counts.sum():
        return counts
    rng = np.random.Generator(np.random.Philox(key=[_MASK_SEED, 0]))
    chosen = np.zeros(len(shards), bool)
    chosen[rng.permutation(len(shards))[:_MAX_SAMPLED_SHARDS]] = True
    ends = np.cumsum(np.where(chosen, counts, 0))
    # Round the cumulative sums, so that the rounding error of each count is at most one record.
    ends = np.round(ends * (min(num_examples, ends[-1]) / ends[-1])).astype(np.int64)
    return np.diff(ends, prepend=0)


def _host_records(
    sources: Sequence[Source],
    seed: int,
    start: int,
    global_batch_size: int,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Returns the raw records of this host's rows of each global batch.

    This is simple and exact, but every host reads the whole data set. Each source has its own
    epochs and keeps one group in memory.
    """
    if len(sources) == 1:
        dataset = _shuffled_records(sources[0], seed, start)
        dataset = dataset.rebatch(global_batch_size, drop_remainder=True)
    else:
        quotas = [source.quota for source in sources]
        starts = rows_before(quotas, seed, start)
        streams = [_shuffled_records(of, seed, row).unbatch() for of, row in zip(sources, starts)]
        dataset = tf.data.Dataset.choose_from_datasets(streams, row_sources(quotas, seed, start))
        dataset = dataset.batch(global_batch_size, drop_remainder=True)
    hosts, host = context.num_input_pipelines, context.input_pipeline_id
    host_rows = global_batch_size // hosts
    return dataset.map(lambda records: records[host * host_rows :][:host_rows])


def _shuffled_records(source: Source, seed: int, start: int) -> tf.data.Dataset:
    """Returns an infinite dataset of the raw records of a source, one element per group.

    `start` is the number of the first record, counted from the start of the run. It can be past the
    first epoch.
    """
    paths = tf.constant(source.manifest.paths(source.record_dir, "train"))

    def read_in_order(slices, order):
        places = (tf.gather(paths, slices.shards), slices.offsets, slices.counts)
        # Interleave whole slices. Interleaving single records takes ten times as long as reading.
        records = tf.data.Dataset.from_tensor_slices(places).interleave(
            _read_slice, cycle_length=_SLICES_AT_A_TIME, num_parallel_calls=_SLICES_AT_A_TIME
        )
        # Combine all records of the group, which are in disk order, into one element.
        return records.rebatch(tf.int64.max).map(lambda r: tf.gather(r, order))

    # Prefetching reads the next group while the current group is used.
    groups = shuffled_groups(source.manifest.splits["train"].shards, seed, start)
    return groups.flat_map(read_in_order).prefetch(1)


def _read_slice(file: tf.Tensor, offset: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
    """Returns a dataset with one element: `count` records of a file, starting at byte `offset`.

    Uses the raw op, because tf.data.TFRecordDataset cannot seek.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[file], compression_type="", buffer_size=_READ_BYTES, byte_offsets=[offset]
    )
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    return records.take(count).batch(count)


def _example_maker(
    manifest: Manifest, options: ExampleOptions, tokenizer: AlbertTokenizer
) -> Callable[[tf.Tensor, dict[str, tf.Tensor]], dict[str, tf.Tensor]]:
    """Returns a function that maps serialized records and their random draws to a batch."""
    if isinstance(manifest, ReferenceManifest):
        return lambda records, _: parse_examples(records, options)
    make_examples = example_maker(options, tokenizer)
    return lambda records, draws: make_examples(parse_segments(records), draws)
