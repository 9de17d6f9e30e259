"""Splits large batches of sequences into parts to limit memory use."""

from collections.abc import Callable

import tensorflow as tf

from albert_tf.text.packing import rounded_up

# Maximum number of pieces in a part, including padding. Attention scores of a part need 50 MB with
# 12 heads and 512 pieces per sequence. 1,000 sequences would need 13 GB.
_PIECES_AT_ONCE = 2048


def map_rows(
    function: Callable[[dict], dict],
    rows: dict[str, tf.Tensor],
    keep_padding: bool = False,
    most_rows: int = _PIECES_AT_ONCE,
) -> dict[str, tf.Tensor]:
    """Applies a function to parts of a batch with rows of similar lengths, which limits memory.

    Args:
      function: maps a part of `rows`, with 2-D tensors truncated to the longest row in the part, to
        tensors with the same number of rows.
      rows: tensors [rows] and [rows, seq_len], including `input_mask`.
      keep_padding: if True, 2-D tensors are not truncated. Required if outputs have seq_len
        positions, or if the columns of a tensor are not positions.
      most_rows: maximum number of rows in a part, for outputs that are large in each row.
    """
    outputs, places = map_sorted_rows(function, rows, keep_padding, most_rows)
    return {name: tf.gather(output, places) for name, output in outputs.items()}


def map_sorted_rows(
    function: Callable[[dict], dict],
    rows: dict[str, tf.Tensor],
    keep_padding: bool = False,
    most_rows: int = _PIECES_AT_ONCE,
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Same as map_rows, but returns the outputs in the order of computation.

    Outputs may have more or fewer rows than the inputs. Also returns the index of each input row in
    the order of computation, int32 [rows].
    """
    asked_rows, seq_len = tf.unstack(tf.shape(rows["input_mask"]))
    # Some ops fail for empty batches, so a row of padding is added to an empty batch.
    num_rows = tf.maximum(asked_rows, 1)
    rows = {
        name: tf.pad(tensor, [[0, num_rows - asked_rows]] + [[0, 0]] * (tensor.shape.rank - 1))
        for name, tensor in rows.items()
    }
    lengths = tf.reduce_max(rows["input_mask"] * tf.range(1, seq_len + 1), axis=1)
    if keep_padding:
        lengths = tf.fill([num_rows], seq_len)
    order = tf.argsort(lengths, stable=True)
    lengths = tf.minimum(rounded_up(tf.maximum(tf.gather(lengths, order), 1)), seq_len)
    rows = {name: tf.gather(tensor, order) for name, tensor in rows.items()}
    # Traced once for parts of any size. The output shapes are used to define the arrays below.
    compute = tf.function(function, autograph=False).get_concrete_function(
        {name: tf.TensorSpec([None] * t.shape.rank, t.dtype) for name, t in rows.items()}
    )

    def compute_part(number, begin, arrays):
        # Lengths are ascending, so n rows are padded to the length of the n-th row.
        pieces = lengths[begin:] * tf.range(1, num_rows - begin + 1)
        fitting = tf.reduce_sum(tf.cast(pieces <= _PIECES_AT_ONCE, tf.int32))
        end = tf.minimum(begin + tf.clip_by_value(fitting, 1, most_rows), num_rows)
        longest = lengths[end - 1]
        part = {name: tensor[begin:end] for name, tensor in rows.items()}
        if not keep_padding:
            part = {name: t[:, :longest] if t.shape.rank == 2 else t for name, t in part.items()}
        outputs = compute(part)
        arrays = {name: array.write(number, outputs[name]) for name, array in arrays.items()}
        return number + 1, end, arrays

    arrays = {
        name: tf.TensorArray(
            of.dtype, 0, True, infer_shape=False, element_shape=[None, *of.shape[1:]]
        )
        for name, of in compute.structured_outputs.items()
    }
    _, _, arrays = tf.while_loop(
        lambda _number, begin, _arrays: begin < num_rows,
        compute_part,
        (0, 0, arrays),
        parallel_iterations=1,
    )
    # argsort inverts the permutation. The row that was added to an empty batch is removed.
    return {name: array.concat() for name, array in arrays.items()}, tf.argsort(order)[:asked_rows]
