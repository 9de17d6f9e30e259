"""The layout of a model's inputs, in the graph: `[CLS] A [SEP] B [SEP]`, padded."""

from __future__ import annotations

import tensorflow as tf

NUM_SPECIAL_PIECES = 3  # [CLS] and two [SEP]


def lay_out(
    pieces: tf.Tensor,
    parts: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor],
    seq_len: int | tf.Tensor,
    special_ids: tuple[int, int],
    pad_id: int = 0,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Lays out `[CLS] A [SEP] B [SEP]` in each row, or `[CLS] A [SEP]`.

    Example: pieces `a b c d e`, A from 0 of length 3, B from 3 of length 2 and seq_len 9 give
    `[CLS] a b c [SEP] d e [SEP] [PAD]`, mask `1 1 1 1 1 1 1 1 0`, types `0 0 0 0 0 1 1 1 0`.

    Args:
      pieces: int32 [n], n > 0, the pieces of all texts.
      parts: int32 [rows] each: index of A's first piece, length of A, index of B's first piece,
        length of B. Length -1: the row has no B and no second [SEP].
      seq_len: length of the rows; no layout is longer.
      special_ids: [CLS] and [SEP].
      pad_id: the piece that fills a row behind its last [SEP].

    Returns:
      int32 [rows, seq_len] piece ids, mask (1 = real) and type ids (0 up to and with the first
      [SEP]; 0 in padding).
    """
    begin_a, len_a, begin_b, len_b = (column[:, tf.newaxis] for column in parts)
    cls_id, sep_id = special_ids
    position = tf.range(seq_len)[tf.newaxis, :]
    first_sep = 1 + len_a
    last_sep = first_sep + len_b + 1
    in_a = (position >= 1) & (position < first_sep)
    in_b = (position > first_sep) & (position < last_sep)
    source = tf.where(in_a, begin_a + position - 1, begin_b + position - first_sep - 1)
    ids = tf.gather(pieces, tf.where(in_a | in_b, source, 0))
    is_sep = (position == first_sep) | (position == last_sep)
    ids = tf.where(in_a | in_b, ids, tf.where(is_sep, sep_id, pad_id))
    ids = tf.where(position == 0, cls_id, ids)
    is_real = position <= last_sep
    is_second = (position > first_sep) & is_real
    return ids, tf.cast(is_real, tf.int32), tf.cast(is_second, tf.int32)
