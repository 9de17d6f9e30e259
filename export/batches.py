"""Computes large batches of sequences in parts."""

from __future__ import annotations

from typing import Callable

import tensorflow as tf

from albert_tf.text.packing import rounded_up

# Maximum number of pieces in a part, padding included. Attention scores take the most memory: for
# 12 heads and 512 pieces per sequence, a part takes 50 MB; 1,000 sequences at once take 13 GB.
_PIECES_AT_ONCE = 2048


def map_rows(
    function: Callable[[dict], dict], rows: dict[str, tf.Tensor], keep_padding: bool = False
) -> dict[str, tf.Tensor]:
    """Applies a function to the rows of a batch, in parts of rows with similar lengths.

    So a batch of any size needs little memory, and short rows are not padded to long ones.

    Args:
      function: takes a part of the rows, with 2-D tensors cut to the part's longest row; returns
        tensors with the same number of rows.
      rows: tensors [rows] and [rows, seq_len], including `input_mask`.
      keep_padding: whether to pass 2-D tensors with all their columns. Needed if outputs have
        seq_len positions, or if columns of a tensor are not positions.
    """
    outputs, places = map_sorted_rows(function, rows, keep_padding)
    return {name: tf.gather(output, places) for name, output in outputs.items()}


def map_sorted_rows(
    function: Callable[[dict], dict], rows: dict[str, tf.Tensor], keep_padding: bool = False
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Does what map_rows does, but leaves the outputs in the order of computation.

    Outputs may have more or fewer rows than the inputs. Returns the outputs, and the place of each
    input row in the order of computation, int32 [rows].
    """
    asked_rows, seq_len = tf.unstack(tf.shape(rows["input_mask"]))
    # Some operations fail without rows, so an empty batch gets one row of padding.
    num_rows = tf.maximum(asked_rows, 1)
    for name, tensor in rows.items():
        padding = [[0, num_rows - asked_rows]] + [[0, 0]] * (tensor.shape.rank - 1)
        rows = {**rows, name: tf.pad(tensor, padding)}
    lengths = tf.reduce_max(rows["input_mask"] * tf.range(1, seq_len + 1), axis=1)
    if keep_padding:
        lengths = tf.fill([num_rows], seq_len)
    order = tf.argsort(lengths, stable=True)
    lengths = tf.minimum(rounded_up(tf.maximum(tf.gather(lengths, order), 1)), seq_len)
    rows = {name: tf.gather(tensor, order) for name, tensor in rows.items()}
    # Traced once for parts of any size. The shapes of its outputs define the arrays below.
    compute = tf.function(function).get_concrete_function(
        {name: tf.TensorSpec([None] * t.shape.rank, t.dtype) for name, t in rows.items()}
    )

    def compute_part(number, begin, arrays):
        # Lengths increase, so the first n remaining rows take n times the length of the n-th.
        pieces = lengths[begin:] * tf.range(1, num_rows - begin + 1)
        fitting = tf.reduce_sum(tf.cast(pieces <= _PIECES_AT_ONCE, tf.int32))
        end = tf.minimum(begin + tf.maximum(fitting, 1), num_rows)
        longest = lengths[end - 1]
        part = {
            name: tensor[begin:end, :longest]
            if tensor.shape.rank == 2 and not keep_padding
            else tensor[begin:end]
            for name, tensor in rows.items()
        }
        outputs = compute(part)
        arrays = {name: array.write(number, outputs[name]) for name, array in arrays.items()}
        return number + 1, end, arrays

    arrays = {
        name: tf.TensorArray(
            output.dtype,
            size=0,
            dynamic_size=True,
            infer_shape=False,
            element_shape=[None, *output.shape[1:]],
        )
        for name, output in compute.structured_outputs.items()
    }
    _, _, arrays = tf.while_loop(
        lambda _number, begin, _arrays: begin < num_rows,
        compute_part,
        (0, 0, arrays),
        parallel_iterations=1,
    )
    # argsort inverts the order: the place of each row, without the row that pads an empty batch.
    return {name: array.concat() for name, array in arrays.items()}, tf.argsort(order)[:asked_rows]
