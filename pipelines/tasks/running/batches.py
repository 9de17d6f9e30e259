"""Creates batches of a task's sequences, and computes the model's outputs for them."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from albert_tf.text.packing import rounded_up
from ...training.strategy import has_several_hosts
from ..reading.sequences import Sequences
from ..task import Outputs

_Tables = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
# Number of batches whose examples are sorted together by length.
_BATCHES_SORTED_TOGETHER = 16


def make_batch(
    sequences: Sequences, examples: tf.Tensor, length: tf.Tensor | int
) -> dict[str, tf.Tensor]:
    """Creates a batch of examples, padded to `length` pieces. Also works in graph mode.

    `examples`, int64 [rows], are indices of examples, or -1 for padding rows. `length` must be at
    least the length of the longest example.

    Returns:
      A dict of `input_word_ids`, `input_mask` (1 = real) and `input_type_ids`, int32
      [rows, length], with several sequences per example [rows, sequences_per_example, length]; the
      labels, [rows, ...]; `example`, int32 [rows]; and `weight`, float32 [rows], which is 0 for
      padding rows and else 1.
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
    inputs = {
        "input_word_ids": tf.where(is_real, tf.gather(sequences.pieces, places), 0),
        "input_mask": tf.cast(is_real, tf.int32),
        "input_type_ids": tf.cast(is_real & is_second, tf.int32),
    }
    if k > 1:
        shape = [-1 if examples.shape[0] is None else examples.shape[0], k, length]
        inputs = {name: tf.reshape(ids, shape) for name, ids in inputs.items()}
    return {
        **inputs,
        **{name: tf.gather(values, taken) for name, values in sequences.labels.items()},
        "example": tf.cast(examples, tf.int32),
        "weight": tf.cast(examples >= 0, tf.float32),
    }


def training_order(
    lengths: np.ndarray, batch_size: int, seed: int, start_step: int, by_length: bool
) -> tf.data.Dataset:
    """Returns an infinite dataset of batches of example indices, int64, from `start_step`.

    Every example is used once per epoch. The order only depends on (seed, step), so a resumed run
    gets the same batches. If `by_length`, examples of similar length are batched together.
    """
    num_examples, lengths = len(lengths), tf.constant(lengths, tf.int64)
    # Sort at most one epoch. Otherwise copies of the same example would fill whole batches.
    sorted_together = max(1, min(_BATCHES_SORTED_TOGETHER, num_examples // batch_size))
    window = batch_size * (sorted_together if by_length else 1)
    first_window, skipped = divmod(start_step * batch_size, window)
    first_epoch, passed = divmod(first_window * window, num_examples)

    def shuffled(values, place, stream):
        # Fix the algorithm, because TensorFlow's automatic choice depends on the device.
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

    # Concatenate the epochs, split them into windows, and split the windows into batches.
    epochs = tf.data.Dataset.counter(first_epoch).map(order)
    windows = tf.data.Dataset.zip(
        (tf.data.Dataset.counter(first_window), epochs.rebatch(window, drop_remainder=True))
    )
    return windows.map(batches).unbatch().skip(skipped // batch_size)


@tf.autograph.experimental.do_not_convert
def training_dataset(
    sequences: Sequences,
    batch_size: int,
    seed: int,
    start_step: int,
    max_seq_length: int,
    has_fixed_length: bool,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Returns a dataset with the batches of this host's replicas, one after the other.

    If `has_fixed_length`, all batches are padded to `max_seq_length`, which some devices require.
    Otherwise a batch is about as long as its longest example. For other arguments see
    training_order.
    """
    lengths = sequences.lengths()
    order = training_order(lengths, batch_size, seed, start_step, not has_fixed_length)
    lengths = tf.constant(lengths, tf.int64)
    # Use captured tensors, because the size of constants in a graph is limited.
    labels = {name: tf.constant(values) for name, values in sequences.labels.items()}
    of_all = Sequences(*_tables(sequences), labels, sequences.sequences_per_example)
    replicas = context.num_replicas_in_sync
    ours = replicas // context.num_input_pipelines
    rows = batch_size // replicas
    first = context.input_pipeline_id * ours * rows

    def with_length(examples):
        # Use the longest example of the global batch, so that all replicas have the same length.
        longest = tf.reduce_max(tf.gather(lengths, examples))
        length = _length(longest, max_seq_length, has_fixed_length)
        # A static shape of the indices makes the shape of the labels static.
        parts = tf.reshape(examples[first : first + ours * rows], [ours, rows])
        return parts, tf.repeat(tf.cast(length, tf.int64), ours)

    def pad(examples, length):
        return make_batch(of_all, examples, max_seq_length if has_fixed_length else length)

    parts = order.map(with_length).unbatch()
    dataset = parts.map(pad, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    # Without this, batches for several replicas would not have a static number of rows.
    return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


@dataclasses.dataclass(eq=False)
class Prediction:
    """Computes a model's outputs for examples, in batches of similar lengths.

    The examples are distributed over all hosts, and each host gets all outputs. `batch_size` is the
    global batch size. For `has_fixed_length` see training_dataset.
    """

    strategy: tf.distribute.Strategy
    model: tf.keras.Model
    batch_size: int
    max_seq_length: int
    has_fixed_length: bool
    _score: Callable | None = dataclasses.field(default=None, init=False)

    def __post_init__(self):
        # all_gather of several hosts fails if the shape changes between calls.
        self.has_fixed_length |= has_several_hosts(self.strategy)

    def __call__(
        self, sequences: Sequences, on_batch: Callable[[int], None] = lambda _: None
    ) -> Outputs:
        """Returns the outputs of each example in order.

        Before each batch, calls `on_batch` with the number of finished batches.
        """
        lengths, tables = sequences.lengths(), _tables(sequences)
        order = np.argsort(lengths, kind="stable")
        order = np.concatenate([order, np.full(-len(order) % self.batch_size, -1, order.dtype)])
        # Do not use a dataset: creating it takes 60 ms, which is too long for a single text.
        self._score = self._score or self._traced(sequences.sequences_per_example)
        found: Outputs = [{}] * len(sequences)
        for number, examples in enumerate(order.reshape(-1, self.batch_size)):
            on_batch(number)
            # Only the last batch contains -1. It also contains the longest example.
            longest = lengths[examples].max()
            length = _length(longest, self.max_seq_length, self.has_fixed_length)
            outputs = {
                name: self._rows(values)
                for name, values in self._score(tables, examples, length).items()
            }
            for row, example in enumerate(outputs.pop("example")):
                if example >= 0:
                    assert not found[example], "an example was predicted twice"
                    found[example] = {name: values[row] for name, values in outputs.items()}
        return found

    def _rows(self, values) -> np.ndarray:
        """Combines the values of this host's replicas into the global batch."""
        values = self.strategy.experimental_local_results(values)
        has_all = values[0].shape[0] == self.batch_size
        return values[0].numpy() if has_all else np.concatenate(values)

    def _traced(self, sequences_per_example: int) -> Callable:
        """Returns a traced function that maps (result of _tables, examples, length) to outputs."""
        rows = self.batch_size // self.strategy.num_replicas_in_sync

        def score_replica(tables: _Tables, examples, length):
            context = tf.distribute.get_replica_context()
            batch = make_batch(
                Sequences(*tables, {}, sequences_per_example),
                tf.reshape(examples, [-1, rows])[context.replica_id_in_sync_group],
                self.max_seq_length if self.has_fixed_length else length,
            )
            outputs = {**self.model(batch), "example": batch["example"]}
            several_hosts = has_several_hosts(self.strategy)
            return context.all_gather(outputs, axis=0) if several_hosts else outputs

        tables = tuple(tf.TensorSpec([None], dtype) for dtype in (tf.int32, tf.int64, tf.int32))
        examples = tf.TensorSpec([self.batch_size], tf.int64)
        return tf.function(
            lambda *arguments: self.strategy.run(score_replica, arguments),
            autograph=False,
            input_signature=[tables, examples, tf.TensorSpec([], tf.int64)],
        )


def _tables(sequences: Sequences) -> _Tables:
    """Returns the tensors from which a graph creates batches."""
    return (
        tf.constant(sequences.pieces),
        tf.constant(sequences.row_splits),
        tf.constant(sequences.first_lengths),
    )


def _length(longest, max_seq_length: int, has_fixed_length: bool):
    """Returns the length to which a batch is padded, given the length of its longest example."""
    if has_fixed_length:
        return max_seq_length
    return tf.minimum(rounded_up(longest), max_seq_length)
