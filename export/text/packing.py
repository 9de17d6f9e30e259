"""Pieces of texts put into batches of sequences, and large batches computed in parts."""

from __future__ import annotations

from typing import Callable

import tensorflow as tf

from albert_tf.text import packing
from albert_tf.text.tokenization import AlbertTokenizer

# Sequences are padded to a multiple of this: kernels that are made for a shape are made for few.
LENGTH_STEP = 16

# Pieces, padding included, that are computed at once. Scores of attention take the most memory:
# 12 heads * 2048 pieces * 512 of each sequence are 50 MB; of 1,000 sequences at once, 13 GB.
_PIECES_AT_ONCE = 2048


class Packer:
    """Puts [CLS] and [SEP] around pieces and pads them.

    Args:
      tokenizer: defines the special pieces.
      max_seq_length: the longest sequence, special pieces included; a tensor is int64.
    """

    def __init__(self, tokenizer: AlbertTokenizer, max_seq_length: int | tf.Tensor):
        self.max_seq_length = max_seq_length
        self._cls_id, self._sep_id = tokenizer.cls_id, tokenizer.sep_id
        self._pad_id = tokenizer.pad_id

    def truncate_and_pack(
        self,
        first: tf.RaggedTensor,
        second: tf.RaggedTensor | None = None,
        has_second: tf.Tensor | bool = True,
    ) -> dict[str, tf.Tensor]:
        """Packs texts of any length; see `pack`.

        What is too long loses pieces one by one at the end of the longer part (of the second, if
        equal).

        Source: the reference's _truncate_seq_pair, in closed form.
        """
        first_length = first.row_lengths()
        if second is None:
            return self.pack(first, first_length=tf.minimum(first_length, self.max_seq_length - 2))
        second_length = second.row_lengths()
        room = self.max_seq_length - 2 - tf.cast(has_second, tf.int64)
        first_length = tf.minimum(first_length, tf.maximum(room - second_length, (room + 1) // 2))
        second_length = tf.minimum(second_length, room - first_length)
        return self.pack(first, second, first_length, tf.where(has_second, second_length, -1))

    def pack(
        self,
        first: tf.RaggedTensor,
        second: tf.RaggedTensor | None = None,
        first_length: tf.Tensor | None = None,
        second_length: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Packs `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`.

        Rows are padded to the longest of the batch and on to a multiple of LENGTH_STEP, but not
        beyond max_seq_length.

        Args:
          first: int32 [rows, (pieces)].
          second: int32 [rows, (pieces)]; None: no row has a second part.
          first_length: int64 [rows], how many pieces of each row to take, short enough; default:
            all.
          second_length: int64 [rows], likewise; -1: the row has no second part.

        Returns:
          dict of int32 [rows, seq_len] `input_ids`, `input_mask`, `segment_ids`.
        """
        first_length = first.row_lengths() if first_length is None else first_length
        if second is None:
            second, second_length = first, tf.fill([first.nrows()], tf.constant(-1, tf.int64))
        second_length = second.row_lengths() if second_length is None else second_length
        second_begin = second.row_starts() + tf.size(first.flat_values, tf.int64)
        parts = (first.row_starts(), first_length, second_begin, second_length)
        # A batch of no texts has a length too: operations on [0, 0] fail.
        longest = tf.reduce_max(first_length + second_length) + packing.NUM_SPECIAL_PIECES
        longest = tf.cast(tf.maximum(longest, 2), tf.int32)
        seq_len = tf.minimum(rounded_up(longest), tf.cast(self.max_seq_length, tf.int32))
        ids, mask, types = packing.lay_out(
            # One more piece, as there may be none to gather.
            tf.concat([first.flat_values, second.flat_values, [self._pad_id]], axis=0),
            tuple(tf.cast(column, tf.int32) for column in parts),
            seq_len,
            (self._cls_id, self._sep_id),
            self._pad_id,
        )
        return {"input_ids": ids, "input_mask": mask, "segment_ids": types}

    def pad_to_longest(self, tokens: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Pads what `pack` returned to max_seq_length columns, whatever the longest row is."""
        missing = self.max_seq_length - tf.shape(tokens["input_ids"])[1]
        padding = {"input_ids": self._pad_id, "input_mask": 0, "segment_ids": 0}
        return {
            name: tf.ensure_shape(
                tf.pad(rows, [[0, 0], [0, missing]], constant_values=padding[name]),
                [None, self.max_seq_length],
            )
            for name, rows in tokens.items()
        }


def rounded_up(lengths: tf.Tensor) -> tf.Tensor:
    """Returns the next multiple of LENGTH_STEP."""
    return -(-lengths // LENGTH_STEP) * LENGTH_STEP


def map_rows(
    function: Callable[[dict], dict], rows: dict[str, tf.Tensor], keep_padding: bool = False
) -> dict[str, tf.Tensor]:
    """Computes a function of sequences in parts: rows of like length together, a few at once.

    So a batch of any size needs little memory, and the short rows do not pay for the long ones.

    Args:
      function: takes some of the rows, the 2-D tensors without positions at the end that are
        padding in all of them; returns tensors of as many rows.
      rows: tensors [rows] and [rows, seq_len], `input_mask` among them.
      keep_padding: whether `function` takes 2-D tensors with all their columns, which need not be
        positions; for outputs that have seq_len positions.

    Returns:
      What `function` does, for all rows.
    """
    outputs, places = map_sorted_rows(function, rows, keep_padding)
    return {name: tf.gather(output, places) for name, output in outputs.items()}


def map_sorted_rows(
    function: Callable[[dict], dict], rows: dict[str, tf.Tensor], keep_padding: bool = False
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Does what map_rows does, but leaves the outputs in the order of computation.

    Outputs may have more rows than the inputs, or less.

    Returns:
      The outputs, and int32 [rows] where in that order each row is.
    """
    asked_rows, seq_len = tf.unstack(tf.shape(rows["input_mask"]))
    # No rows have outputs too, but not every operation takes none: one row of padding.
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
    compute = tf.function(function).get_concrete_function(
        {name: tf.TensorSpec([None] * t.shape.rank, t.dtype) for name, t in rows.items()}
    )

    def compute_part(number, begin, arrays):
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
        return (
            number + 1,
            end,
            {name: array.write(number, outputs[name]) for name, array in arrays.items()},
        )

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
    return {name: array.concat() for name, array in arrays.items()}, tf.argsort(order)[:asked_rows]
