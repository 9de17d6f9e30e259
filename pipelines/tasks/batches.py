"""Batches of a task's sequences: their order, their length, and what the model says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from pipelines.tasks.task import Outputs, Sequences
from pipelines.training.strategy import has_several_hosts

# Lengths are multiples of it: few shapes, little padding.
_LENGTH_STEP = 8
# Batches of neighbouring lengths are made of so many batches' examples.
_BATCHES_SORTED_TOGETHER = 16


def make_batch(sequences: Sequences, examples: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """Returns examples padded to `length`.

    Args:
      examples: their numbers; -1 is a row that only fills up the batch.

    Returns:
      int32 [rows * sequences_per_example, length] `input_word_ids`, `input_mask` and
      `input_type_ids`; the labels, [rows]; `example`, int32 [rows]; and `weight`, float32 [rows],
      0 for rows that fill up.
    """
    k = sequences.sequences_per_example
    taken = np.maximum(examples, 0)
    rows = (taken[:, np.newaxis] * k + np.arange(k)).reshape(-1)
    begins, ends = sequences.row_splits[rows], sequences.row_splits[rows + 1]
    positions = np.arange(length)
    is_real = positions < (ends - begins)[:, np.newaxis]
    places = np.where(is_real, begins[:, np.newaxis] + positions, 0)
    is_second = positions >= sequences.first_lengths[rows][:, np.newaxis]
    return {
        "input_word_ids": np.where(is_real, sequences.pieces[places], 0).astype(np.int32),
        "input_mask": is_real.astype(np.int32),
        "input_type_ids": (is_real & is_second).astype(np.int32),
        **{name: values[taken] for name, values in sequences.labels.items()},
        "example": examples.astype(np.int32),
        "weight": (examples >= 0).astype(np.float32),
    }


def training_order(
    lengths: np.ndarray, batch_size: int, seed: int, start_step: int, by_length: bool
) -> Iterator[np.ndarray]:
    """Yields the numbers of the examples of each batch from `start_step` on, without end.

    Every example is taken once an epoch. A pure function of (seed, step): a resumed run sees the
    same batches.

    Args:
      lengths: of the examples.
      by_length: batches are made of examples of about one length.
    """
    # No more than an epoch: sorted, the copies of an example would make up whole batches.
    sorted_together = max(1, min(_BATCHES_SORTED_TOGETHER, len(lengths) // batch_size))
    window = batch_size * (sorted_together if by_length else 1)
    first_window = start_step * batch_size // window
    skipped = (start_step * batch_size - first_window * window) // batch_size
    position = first_window * window
    epoch, order = -1, None
    while True:
        taken = []
        for place in range(position, position + window):
            if place // len(lengths) != epoch:
                epoch = place // len(lengths)
                order = np.random.default_rng([seed, 0, epoch]).permutation(len(lengths))
            taken.append(order[place % len(lengths)])
        examples = np.array(taken)
        if by_length:
            examples = examples[np.argsort(lengths[examples], kind="stable")]
        batches = examples.reshape(-1, batch_size)
        shuffled = np.random.default_rng([seed, 1, position]).permutation(len(batches))
        yield from batches[shuffled][skipped:]
        position, skipped = position + window, 0


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

    Args:
      batch_size: of all replicas together.
      max_seq_length: no sequence is longer.
      has_fixed_length: every batch has that length, for devices that need it; else each is about as
        long as its longest example.
    """
    lengths = example_lengths(sequences)
    order = training_order(lengths, batch_size, seed, start_step, not has_fixed_length)
    dataset = _dataset(sequences, order, batch_size, max_seq_length, has_fixed_length, context)
    # Several replicas take batches of a dataset that may end without their number of rows.
    return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def example_lengths(sequences: Sequences) -> np.ndarray:
    """Returns each example's length: its longest sequence's."""
    rows = np.diff(sequences.row_splits)
    return rows.reshape(-1, sequences.sequences_per_example).max(axis=1)


def make_prediction(
    strategy: tf.distribute.Strategy,
    model: tf.keras.Model,
    sequences: Sequences,
    batch_size: int,
    max_seq_length: int,
    has_fixed_length: bool,
) -> Callable[[Callable[[], bool]], Outputs | None]:
    """Returns predict(is_stopped) -> the model's outputs of every example, each asked once.

    Args:
      strategy: in whose scope the model was made.
      batch_size: of all replicas together, which divide it.
      max_seq_length, has_fixed_length: as of training_dataset.
    """
    order = np.argsort(example_lengths(sequences), kind="stable")
    order = np.concatenate([order, np.full(-len(order) % batch_size, -1, order.dtype)])
    order = order.reshape(-1, batch_size)

    def dataset_fn(context):
        if has_several_hosts(strategy):
            # Each host asks for itself: to gather from others takes outputs of one length.
            context = tf.distribute.InputContext(
                num_replicas_in_sync=len(strategy.extended.worker_devices)
            )
        return _dataset(sequences, order, batch_size, max_seq_length, has_fixed_length, context)

    batches = strategy.distribute_datasets_from_function(dataset_fn)

    # Of any length: traced once.
    @tf.function(input_signature=[batches.element_spec])
    def score(batch):
        return strategy.run(lambda batch: {**model(batch), "example": batch["example"]}, (batch,))

    def predict(is_stopped: Callable[[], bool] = lambda: False) -> Outputs | None:
        found = [{}] * len(sequences)
        for batch in batches:
            if is_stopped():
                return None
            outputs = {
                name: np.concatenate(strategy.experimental_local_results(values))
                for name, values in score(batch).items()
            }
            examples = outputs.pop("example")
            for row, example in enumerate(examples):
                if example >= 0:
                    assert not found[example], "an example was asked twice"
                    found[example] = {name: values[row] for name, values in outputs.items()}
        return found

    return predict


def _dataset(
    sequences: Sequences,
    order: Iterable[np.ndarray],
    batch_size: int,
    max_seq_length: int,
    has_fixed_length: bool,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Returns the batches of this host's replicas; `order`: examples of each global batch."""
    lengths = example_lengths(sequences)
    fixed_length = max_seq_length if has_fixed_length else None
    replicas = context.num_replicas_in_sync
    ours = replicas // context.num_input_pipelines
    first = context.input_pipeline_id * ours

    def batches():
        for examples in order:
            longest = int(lengths[np.maximum(examples, 0)].max())
            length = fixed_length or min(_rounded_up(longest), max_seq_length)
            parts = np.split(examples, replicas)
            for part in parts[first : first + ours]:
                yield make_batch(sequences, part, length)

    rows = batch_size // replicas
    example = make_batch(sequences, np.full(rows, -1), max_seq_length)
    signature = {
        name: tf.TensorSpec(
            [values.shape[0], fixed_length] if values.ndim == 2 else values.shape, values.dtype
        )
        for name, values in example.items()
    }
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(
        tf.data.AUTOTUNE
    )


def _rounded_up(length: int) -> int:
    return -(-length // _LENGTH_STEP) * _LENGTH_STEP
