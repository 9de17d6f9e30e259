"""Batches of a task's sequences: their order, their length, and the model's outputs for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from ...training.strategy import has_several_hosts
from ..task import Outputs, Sequences

# Lengths are multiples of _LENGTH_STEP: few shapes, little padding. Each new length compiles the
# element-wise passes of training once, in 0.15 s.
_LENGTH_STEP = 8
# The examples of this many batches are sorted together to make batches of similar lengths.
_BATCHES_SORTED_TOGETHER = 16
# Tensors with one row per sequence, not per example.
_OF_SEQUENCES = ("input_word_ids", "input_mask", "input_type_ids")


def make_batch(
    sequences: Sequences, examples: tf.Tensor, length: tf.Tensor | int
) -> dict[str, tf.Tensor]:
    """Returns examples padded to `length`; it also works in a graph.

    Args:
      sequences: the sequences of all examples.
      examples: int64 [rows], numbers of the examples; -1 for a row that only fills up the batch.
      length: pieces per row, at least the length of the longest of these examples.

    Returns:
      int32 [rows * sequences_per_example, length] `input_word_ids`, `input_mask` and
      `input_type_ids`; the labels, [rows]; `example`, int32 [rows]; and `weight`, float32 [rows], 0
      = a row that only fills up the batch.
    """
    k = sequences.sequences_per_example
    taken = tf.maximum(examples, 0)
    rows = tf.reshape(taken[:, tf.newaxis] * k + tf.range(k, dtype=tf.int64), [-1])
    begins, ends = (tf.gather(sequences.row_splits, row) for row in (rows, rows + 1))
    positions = tf.range(tf.cast(length, tf.int64))
    is_real = positions < (ends - begins)[:, tf.newaxis]
    places = tf.where(is_real, begins[:, tf.newaxis] + positions, 0)
    first_lengths = tf.cast(tf.gather(sequences.first_lengths, rows), tf.int64)
    is_second = positions >= first_lengths[:, tf.newaxis]
    return {
        "input_word_ids": tf.where(is_real, tf.gather(sequences.pieces, places), 0),
        "input_mask": tf.cast(is_real, tf.int32),
        "input_type_ids": tf.cast(is_real & is_second, tf.int32),
        **{name: tf.gather(values, taken) for name, values in sequences.labels.items()},
        "example": tf.cast(examples, tf.int32),
        "weight": tf.cast(examples >= 0, tf.float32),
    }


def training_order(
    lengths: np.ndarray, batch_size: int, seed: int, start_step: int, by_length: bool
) -> tf.data.Dataset:
    """Returns the numbers of the examples of each batch from `start_step` on, int64, without end.

    Every example is used once per epoch. The order is a pure function of (seed, step): a resumed
    run gets the same batches.

    Args:
      lengths: lengths of the examples.
      batch_size: examples per batch, over all replicas.
      seed: seed of the order, which differs in each epoch.
      start_step: the step of the first batch.
      by_length: whether to make batches of examples of similar length.
    """
    num_examples, lengths = len(lengths), tf.constant(lengths, tf.int64)
    # At most one epoch is sorted: otherwise copies of one example would fill whole batches.
    sorted_together = max(1, min(_BATCHES_SORTED_TOGETHER, num_examples // batch_size))
    window = batch_size * (sorted_together if by_length else 1)
    first_window, skipped = divmod(start_step * batch_size, window)
    first_epoch, passed = divmod(first_window * window, num_examples)

    def shuffled(values, place, stream):
        # A fixed algorithm: TensorFlow's automatic choice depends on the device.
        seeds = tf.random.experimental.stateless_fold_in(
            tf.stack([tf.constant(seed, tf.int64), place]), tf.constant(stream, tf.int64), "philox"
        )
        return tf.random.experimental.stateless_shuffle(values, seeds, alg="philox")

    def order(epoch):
        examples = shuffled(tf.range(num_examples, dtype=tf.int64), epoch, 0)
        return examples[tf.where(epoch == first_epoch, passed, 0) :]

    def batches(number, examples):
        if by_length:
            examples = tf.gather(examples, tf.argsort(tf.gather(lengths, examples), stable=True))
        return shuffled(tf.reshape(examples, [-1, batch_size]), number, 1)

    # Join the epochs, cut them into windows, and cut the windows into batches.
    epochs = tf.data.Dataset.counter(first_epoch).map(order)
    windows = tf.data.Dataset.zip(
        (tf.data.Dataset.counter(first_window), epochs.rebatch(window, drop_remainder=True))
    )
    return windows.map(batches).unbatch().skip(skipped // batch_size)


def training_dataset(
    sequences: Sequences,
    batch_size: int,
    seed: int,
    start_step: int,
    max_seq_length: int,
    has_fixed_length: bool,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Returns the batches of this host's replicas, one after the other.

    With `has_fixed_length` every batch has the greatest length, for devices that need it; otherwise
    a batch is about as long as its longest example. For other arguments see training_order.
    """
    lengths = example_lengths(sequences)
    order = training_order(lengths, batch_size, seed, start_step, not has_fixed_length)
    dataset = _dataset(sequences, order, batch_size, max_seq_length, has_fixed_length, context)
    # Otherwise several replicas would get batches without a static number of rows.
    return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def example_lengths(sequences: Sequences) -> np.ndarray:
    """Returns each example's length: the length of its longest sequence."""
    rows = np.diff(sequences.row_splits)
    return rows.reshape(-1, sequences.sequences_per_example).max(axis=1)


class Prediction:
    """Computes a model's outputs, once per example, in batches of similar lengths.

    Several hosts share the examples, and each host gets all outputs. All replicas together share a
    batch of `batch_size`. For `has_fixed_length` see training_dataset.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: tf.keras.Model,
        batch_size: int,
        max_seq_length: int,
        has_fixed_length: bool,
    ):
        self._strategy, self._model = strategy, model
        self._batch_size, self._max_seq_length = batch_size, max_seq_length
        self._has_fixed_length = has_fixed_length
        self._score: Callable | None = None

    def __call__(
        self, sequences: Sequences, is_stopped: Callable[[], bool] = lambda: False
    ) -> Outputs | None:
        """Returns the outputs of each example in order; None if `is_stopped` ended the pass."""
        # The model does not need labels.
        sequences = dataclasses.replace(sequences, labels={})
        order = np.argsort(example_lengths(sequences), kind="stable")
        order = np.concatenate([order, np.full(-len(order) % self._batch_size, -1, order.dtype)])
        order = order.reshape(-1, self._batch_size)
        found: Outputs = [{}] * len(sequences)
        for batch in self._outputs(sequences, order):
            if is_stopped():
                return None
            outputs = {
                name: _rows(self._strategy.experimental_local_results(values), self._batch_size)
                for name, values in batch.items()
            }
            examples = outputs.pop("example")
            for row, example in enumerate(examples):
                if example >= 0:
                    assert not found[example], "an example was asked twice"
                    found[example] = {name: values[row] for name, values in outputs.items()}
        return found

    def _outputs(self, sequences: Sequences, order: np.ndarray) -> Iterator[dict]:
        """Yields the outputs of each batch in `order`, int64 [batches, batch_size]."""
        length = (self._max_seq_length, self._has_fixed_length)
        if self._strategy.num_replicas_in_sync == 1:
            # To build a dataset takes 60 ms: too long for a single text.
            lengths = example_lengths(sequences)
            tables = (sequences.pieces, sequences.row_splits, sequences.first_lengths)
            tables = tuple(map(tf.constant, tables))
            self._score = self._score or self._traced_with_tables(sequences.sequences_per_example)
            for examples in order:
                longest = _length(lengths[np.maximum(examples, 0)].max(), *length)
                yield self._score(*tables, examples, longest)
            return

        def dataset_fn(context):
            batches = tf.data.Dataset.from_tensor_slices(order)
            return _dataset(sequences, batches, self._batch_size, *length, context)

        batches = self._strategy.distribute_datasets_from_function(dataset_fn)
        if self._score is None:
            # The signature has any length, so the function is traced once.
            self._score = tf.function(self._score_batch, input_signature=[batches.element_spec])
        yield from map(self._score, batches)

    def _traced_with_tables(self, sequences_per_example: int) -> Callable:
        """Returns (pieces, row_splits, first_lengths, examples, length) -> outputs, traced once."""
        rows = self._batch_size
        fixed_length = self._max_seq_length if self._has_fixed_length else None

        def score(pieces, row_splits, first_lengths, examples, length):
            found = Sequences(pieces, row_splits, first_lengths, {}, sequences_per_example)
            return self._score_batch(_with_shape(make_batch(found, examples, length), fixed_length))

        shapes = ([None], tf.int32), ([None], tf.int64), ([None], tf.int32), ([rows], tf.int64)
        signature = [tf.TensorSpec(*shape) for shape in (*shapes, ([], tf.int64))]
        return tf.function(score, input_signature=signature)

    def _score_batch(self, batch):
        def score_replica(batch):
            outputs = {**self._model(batch), "example": batch["example"]}
            if has_several_hosts(self._strategy):
                outputs = _of_all_replicas(outputs, self._batch_size, self._max_seq_length)
            return outputs

        return self._strategy.run(score_replica, (batch,))


def _of_all_replicas(
    outputs: dict[str, tf.Tensor], batch_size: int, max_seq_length: int
) -> dict[str, tf.Tensor]:
    """Gathers the outputs of all replicas into the outputs of the global batch.

    This is a sum in which each replica has zeros for the rows of the others. strategy.gather fails
    on outputs of several lengths ("Shape mismatch in the collective instance").
    """
    replica = tf.distribute.get_replica_context()
    # With several hosts, the rows per batch of a finite dataset are not static.
    rows = batch_size // replica.num_replicas_in_sync
    before = replica.replica_id_in_sync_group * rows

    def widen(value):
        # TensorFlow needs the same shape in every call of a collective, so pad to the longest.
        unknown = [
            [0, max_seq_length - tf.shape(value)[axis] if value.shape[axis] is None else 0]
            for axis in range(1, value.shape.rank)
        ]
        value = tf.ensure_shape(value, [rows, *value.shape[1:]])
        padded = tf.pad(value, [[before, batch_size - rows - before], *unknown])
        known = [max_seq_length if size is None else size for size in value.shape[1:]]
        return tf.ensure_shape(padded, [batch_size, *known])

    def narrow(value, own):
        return value[(slice(None), *(slice(size) for size in tf.unstack(tf.shape(own)[1:])))]

    wide = tf.nest.map_structure(widen, outputs)
    # Tensors of different types cannot be summed in one call.
    examples = replica.all_reduce(tf.distribute.ReduceOp.SUM, wide.pop("example"))
    wide = replica.all_reduce(tf.distribute.ReduceOp.SUM, wide)
    return tf.nest.map_structure(narrow, {**wide, "example": examples}, outputs)


def _rows(values: Sequence[tf.Tensor], batch_size: int) -> np.ndarray:
    """Returns the rows of the global batch from the values of this host's replicas."""
    has_all = values[0].shape[0] == batch_size
    return values[0].numpy() if has_all else np.concatenate(values)


def _dataset(
    sequences: Sequences,
    order: tf.data.Dataset,
    batch_size: int,
    max_seq_length: int,
    has_fixed_length: bool,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Returns the batches of this host's replicas; `order`: examples of each global batch."""
    lengths = tf.constant(example_lengths(sequences), tf.int64)
    # Captured tensors, because constants in a graph are limited in size.
    of_all = dataclasses.replace(
        sequences,
        pieces=tf.constant(sequences.pieces),
        row_splits=tf.constant(sequences.row_splits),
        first_lengths=tf.constant(sequences.first_lengths),
        labels={name: tf.constant(values) for name, values in sequences.labels.items()},
    )
    replicas = context.num_replicas_in_sync
    ours = replicas // context.num_input_pipelines
    rows = batch_size // replicas
    first = context.input_pipeline_id * ours * rows
    fixed_length = max_seq_length if has_fixed_length else None

    def with_length(examples):
        # The longest of the global batch, so that all replicas have the same length.
        longest = tf.reduce_max(tf.gather(lengths, tf.maximum(examples, 0)))
        length = _length(longest, max_seq_length, has_fixed_length)
        # With a shape that is known here, the labels' shape is known, too.
        parts = tf.reshape(examples[first : first + ours * rows], [ours, rows])
        return parts, tf.repeat(tf.cast(length, tf.int64), ours)

    def pad(examples, length):
        return _with_shape(make_batch(of_all, examples, length), fixed_length)

    parts = order.map(with_length).unbatch()
    return parts.map(pad, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _with_shape(batch: dict[str, tf.Tensor], length: int | None) -> dict[str, tf.Tensor]:
    """Returns the batch with the length of its sequences known to the graph, if it is fixed."""
    known = {name: tf.ensure_shape(batch[name], [None, length]) for name in _OF_SEQUENCES}
    return {**batch, **known}


def _length(longest, max_seq_length: int, has_fixed_length: bool):
    """Returns the pieces of a batch whose longest example has so many; int or a tensor."""
    if has_fixed_length:
        return max_seq_length
    return tf.minimum(-(-longest // _LENGTH_STEP) * _LENGTH_STEP, max_seq_length)
