"""From segment records to batches: order, parse, split and swap, mask; all computed, none stored.

What example a step sees, and with which masks, is a pure function of (seed, epoch, position): never
of how many hosts there are, how fast they are, or where a run was interrupted.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.tokenization import AlbertTokenizer
from pipelines.data.masking import MaskingVocabulary, mask_ngrams
from pipelines.data.records import SEGMENT_FEATURES, Manifest, Shard
from pipelines.data.sentence_pairs import SENTENCE_OBJECTIVES, sentence_pair_examples

# Records that are shuffled together: whole shards, in memory as they lie on disk, several times.
_GROUP_BYTES = 128_000_000
# Evaluation draws its masks for so many rows at a time, whatever the batch.
_EVALUATION_ROWS = 64


@dataclasses.dataclass(frozen=True)
class ExampleOptions:
    """How segments become examples.

    Attributes:
      max_seq_length: L, pieces in an example with [CLS] and [SEP].
      max_predictions_per_seq: P; None means ceil(masked_lm_prob * max_seq_length).
      masked_lm_prob: share of the pieces to predict.
      ngram: longest masked n-gram, in words.
      sentence_objective: one of SENTENCE_OBJECTIVES.
      seed: of order, splits, swaps and masks.

    Deviation: the reference predicts at most 20 pieces at any length: 4 % of 512.
    """

    max_seq_length: int
    max_predictions_per_seq: int | None = None
    masked_lm_prob: float = 0.15
    ngram: int = 3
    sentence_objective: str = "sop"
    seed: int = 12345

    def __post_init__(self):
        assert self.sentence_objective in SENTENCE_OBJECTIVES, self.sentence_objective
        if self.max_predictions_per_seq is None:
            predictions = math.ceil(self.masked_lm_prob * self.max_seq_length)
            object.__setattr__(self, "max_predictions_per_seq", max(1, predictions))


def pretraining_dataset(
    record_dir: str,
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    global_batch_size: int,
    start_step: int = 0,
    input_pipeline_id: int = 0,
    num_input_pipelines: int = 1,
    replica_batch_size: int | None = None,
) -> tf.data.Dataset:
    """Returns shuffled batches without end, beginning with that of `start_step`.

    Args:
      record_dir: what create_pretraining_data wrote; its split "train" is read.
      global_batch_size: examples in a step over all hosts.
      start_step: the step of the first batch. To begin late costs no more than reading a group.
      input_pipeline_id, num_input_pipelines: which of how many hosts this is; it gets its part of
        the rows of each global batch.
      replica_batch_size: rows of each batch that is returned; default all rows of this host.

    Returns:
      dicts with static shapes (b rows): int32 [b, L] `input_word_ids`, `input_mask`,
      `input_type_ids`; [b, P] int32 `masked_lm_positions`, `masked_lm_ids` and float32
      `masked_lm_weights`; [b] int32 `sentence_order_labels` and float32 `sentence_order_weights`.
    """
    shards = Manifest.read(record_dir).splits["train"].shards
    paths = [os.path.join(record_dir, shard.file) for shard in shards]
    assert global_batch_size % num_input_pipelines == 0, "rows would be lost"
    host_rows = global_batch_size // num_input_pipelines
    if options.sentence_objective == "nsp" and num_input_pipelines > 1 and host_rows % 2:
        raise ValueError(
            f"each of {num_input_pipelines} hosts gets {host_rows} rows of the global batch: "
            "--sentence_objective=nsp pairs rows and needs an even number"
        )
    first_row = input_pipeline_id * host_rows
    make_examples = _example_maker(options, tokenizer)

    def groups() -> Iterator[tuple[list[str], np.ndarray]]:
        for group, order in shuffled_groups(shards, options.seed, start_step * global_batch_size):
            yield [paths[shard] for shard in group], order

    def read_in_order(files, order):
        # One element: all records of the group, as they lie on disk.
        return tf.data.TFRecordDataset(files).batch(tf.int64.max).map(lambda r: tf.gather(r, order))

    def make_batch(step, records):
        # Draws are made for the whole batch and cut, so that they do not depend on the hosts.
        draws = _draws(options, global_batch_size, [tf.cast(options.seed, tf.int64), step])
        rows = slice(first_row, first_row + host_rows)
        return make_examples(records[rows], {name: draw[rows] for name, draw in draws.items()})

    dataset = tf.data.Dataset.from_generator(
        groups,
        output_signature=(tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64)),
    )
    # 1. Whole groups, shuffled; the next is read while this one is used.
    dataset = dataset.flat_map(read_in_order).prefetch(1)
    # 2. Global batches of raw records, across the ends of groups and epochs.
    dataset = dataset.rebatch(global_batch_size, drop_remainder=True)
    # 3. This host's rows become examples.
    dataset = tf.data.Dataset.zip((tf.data.Dataset.counter(start_step), dataset))
    dataset = dataset.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    # 4. One batch for each replica.
    if replica_batch_size not in (None, host_rows):
        dataset = dataset.rebatch(replica_batch_size, drop_remainder=True)
    rows = replica_batch_size or host_rows
    return dataset.map(lambda batch: _with_static_rows(batch, rows)).prefetch(tf.data.AUTOTUNE)


def evaluation_dataset(
    record_dir: str,
    split: str,
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    batch_size: int,
) -> tf.data.Dataset:
    """Returns one pass over a split in the order of its files, with the same masks at every call.

    The last batch is filled up with rows whose weights are all 0: each example counts once.
    """
    shards = Manifest.read(record_dir).splits[split].shards
    make_examples = _example_maker(options, tokenizer)

    def make_rows(index, records):
        draws = _draws(options, _EVALUATION_ROWS, [tf.cast(options.seed, tf.int64), index])
        num_rows = tf.shape(records)[0]
        return make_examples(records, {name: draw[:num_rows] for name, draw in draws.items()})

    def fill(batch):
        missing = batch_size - tf.shape(batch["input_mask"])[0]
        return {
            name: tf.pad(values, [[0, missing], *[[0, 0]] * (values.shape.rank - 1)])
            for name, values in batch.items()
        }

    files = [os.path.join(record_dir, shard.file) for shard in shards if shard.examples]
    dataset = tf.data.TFRecordDataset(files).batch(_EVALUATION_ROWS)
    dataset = tf.data.Dataset.zip((tf.data.Dataset.counter(), dataset))
    dataset = dataset.map(make_rows, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    dataset = dataset.rebatch(batch_size).map(fill)
    return dataset.map(lambda batch: _with_static_rows(batch, batch_size)).prefetch(2)


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


def _example_maker(options: ExampleOptions, tokenizer: AlbertTokenizer):
    """Returns (serialized records, draws of as many rows) -> batch."""
    vocabulary = MaskingVocabulary(
        tokenizer.mask_id, tokenizer.word_starts(), tokenizer.replacement_ids()
    )

    def make_examples(records, draws):
        segments = tf.io.parse_example(records, SEGMENT_FEATURES)
        for name in ("input_ids", "sentence_starts"):
            segments[name] = tf.cast(segments[name], tf.int32)
        example = sentence_pair_examples(
            segments,
            draws["split"],
            draws["change"],
            options.sentence_objective,
            options.max_seq_length,
            tokenizer.cls_id,
            tokenizer.sep_id,
        )
        masked = mask_ngrams(
            example,
            vocabulary,
            draws,
            options.max_predictions_per_seq,
            options.masked_lm_prob,
            options.ngram,
        )
        return {**example, **masked}

    return make_examples


def _draws(options: ExampleOptions, rows: int, seed) -> dict[str, tf.Tensor]:
    """Returns all random numbers of a batch, uniform in [0, 1), from one seed of two numbers."""
    spans = options.max_seq_length + 1
    shapes = {
        "split": [rows],
        "change": [rows],
        "span_length": [rows, spans],
        "span_order": [rows, spans],
        "replace": [rows, options.max_predictions_per_seq],
        "replacement": [rows, options.max_predictions_per_seq],
    }
    seeds = [tf.random.experimental.stateless_fold_in(seed, i) for i in range(len(shapes))]
    return {
        name: tf.random.stateless_uniform(shape, name_seed)
        for (name, shape), name_seed in zip(shapes.items(), seeds)
    }


def _with_static_rows(batch: dict[str, tf.Tensor], rows: int) -> dict[str, tf.Tensor]:
    return {name: tf.ensure_shape(v, [rows, *v.shape[1:]]) for name, v in batch.items()}
