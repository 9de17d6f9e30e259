"""Batches of a task's sequences: their order, their length, and the model's outputs for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ...training.strategy import has_several_hosts
from ..reading.sequences import Sequences
from ..task import Outputs

# Lengths are multiples of _LENGTH_STEP: few shapes, little padding. Each new length compiles the
# element-wise passes of training once, in 0.15 s.
_LENGTH_STEP = 8
# The examples of this many batches are sorted together to make batches of similar lengths.
_BATCHES_SORTED_TOGETHER = 16


def make_batch(
    sequences: Sequences, examples: tf.Tensor, length: tf.Tensor | int
) -> dict[str, tf.Tensor]:
    """Returns examples padded to `length` pieces, enough for the longest; also works in a graph.

    `examples`, int64 [rows], are their numbers; -1 for a row that only fills up the batch.

    Returns:
      int32 [rows * sequences_per_example, length] `input_word_ids`, `input_mask` and
      `input_type_ids`; the labels, [rows]; `example`, int32 [rows]; and `weight`, float32 [rows], 0
      = a row that only fills up the batch.
    """
    k = sequences.sequences_per_example
    taken = tf.maximum(examples, 0)
    rows = tf.reshape(taken[:, tf.newaxis] * k + tf.range(k, dtype=tf.int64), [-1])
    begins, ends = (tf.gather(sequences.row_splits, row) for row in (rows, rows + 1))
    positions = tf.range(length, dtype=tf.int64)
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
    """Returns an endless data set: the indices of each batch's examples, int64, from `start_step`.

    Every example is used once per epoch. The order is a pure function of (seed, step): a resumed
    run gets the same batches. `by_length` makes batches of examples of similar length.
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
    lengths = sequences.lengths()
    order = training_order(lengths, batch_size, seed, start_step, not has_fixed_length)
    lengths = tf.constant(lengths, tf.int64)
    # Captured tensors, because constants in a graph are limited in size.
    labels = {name: tf.constant(values) for name, values in sequences.labels.items()}
    of_all = Sequences(*_tables(sequences), labels, sequences.sequences_per_example)
    replicas = context.num_replicas_in_sync
    ours = replicas // context.num_input_pipelines
    rows = batch_size // replicas
    first = context.input_pipeline_id * ours * rows

    def with_length(examples):
        # The longest of the global batch, so that all replicas have the same length.
        longest = tf.reduce_max(tf.gather(lengths, examples))
        length = _length(longest, max_seq_length, has_fixed_length)
        # With a shape that is known here, the labels' shape is known, too.
        parts = tf.reshape(examples[first : first + ours * rows], [ours, rows])
        return parts, tf.repeat(tf.cast(length, tf.int64), ours)

    def pad(examples, length):
        return make_batch(of_all, examples, max_seq_length if has_fixed_length else length)

    parts = order.map(with_length).unbatch()
    dataset = parts.map(pad, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    # Otherwise several replicas would get batches without a static number of rows.
    return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


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
        lengths, tables = sequences.lengths(), _tables(sequences)
        order = np.argsort(lengths, kind="stable")
        order = np.concatenate([order, np.full(-len(order) % self._batch_size, -1, order.dtype)])
        # Not a dataset: to build one takes 60 ms, too long for a single text.
        self._score = self._score or self._traced(sequences.sequences_per_example)
        found: Outputs = [{}] * len(sequences)
        for examples in order.reshape(-1, self._batch_size):
            if is_stopped():
                return None
            # -1 is in the last batch only, which has the longest example.
            longest = lengths[examples].max()
            length = _length(longest, self._max_seq_length, self._has_fixed_length)
            outputs = {
                name: self._rows(values)
                for name, values in self._score(tables, examples, length).items()
            }
            for row, example in enumerate(outputs.pop("example")):
                if example >= 0:
                    assert not found[example], "an example was asked twice"
                    found[example] = {name: values[row] for name, values in outputs.items()}
        return found

    def _rows(self, values) -> np.ndarray:
        """Returns the rows of the global batch from the values of this host's replicas."""
        values = self._strategy.experimental_local_results(values)
        has_all = values[0].shape[0] == self._batch_size
        return values[0].numpy() if has_all else np.concatenate(values)

    def _traced(self, sequences_per_example: int) -> Callable:
        """Returns (result of _tables, examples, length) -> outputs, traced once."""
        rows = self._batch_size // self._strategy.num_replicas_in_sync

        def score_replica(tables, examples, length):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            batch = make_batch(
                Sequences(*tables, {}, sequences_per_example),
                tf.reshape(examples, [-1, rows])[replica],
                self._max_seq_length if self._has_fixed_length else length,
            )
            outputs = {**self._model(batch), "example": batch["example"]}
            if has_several_hosts(self._strategy):
                outputs = _of_all_replicas(outputs, self._batch_size, self._max_seq_length)
            return outputs

        tables = [tf.TensorSpec([None], dtype) for dtype in (tf.int32, tf.int64, tf.int32)]
        examples = tf.TensorSpec([self._batch_size], tf.int64)
        return tf.function(
            lambda *arguments: self._strategy.run(score_replica, arguments),
            input_signature=[tables, examples, tf.TensorSpec([], tf.int64)],
        )


def _of_all_replicas(
    outputs: dict[str, tf.Tensor], batch_size: int, max_seq_length: int
) -> dict[str, tf.Tensor]:
    """Gathers the outputs of all replicas into the outputs of the global batch.

    This is a sum in which each replica has zeros for the rows of the others. strategy.gather fails
    on outputs of several lengths ("Shape mismatch in the collective instance").
    """
    replica = tf.distribute.get_replica_context()
    rows = batch_size // replica.num_replicas_in_sync
    before = replica.replica_id_in_sync_group * rows

    def widen(value):
        # TensorFlow needs the same shape in every call of a collective, so pad to the longest.
        unknown = [
            [0, max_seq_length - tf.shape(value)[axis] if value.shape[axis] is None else 0]
            for axis in range(1, value.shape.rank)
        ]
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


def _tables(sequences: Sequences) -> list[tf.Tensor]:
    """Returns the tensors that a graph makes batches of."""
    return [*map(tf.constant, (sequences.pieces, sequences.row_splits, sequences.first_lengths))]


def _length(longest, max_seq_length: int, has_fixed_length: bool):
    """Returns the pieces of a batch whose longest example has so many; int or a tensor."""
    if has_fixed_length:
        return max_seq_length
    return tf.minimum(-(-longest // _LENGTH_STEP) * _LENGTH_STEP, max_seq_length)
