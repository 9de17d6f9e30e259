"""Texts of any length cut into overlapping windows, in the graph."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from albert_tf.text.words import row_ids


class Windows(NamedTuple):
    """Windows over the pieces of texts; the windows of a text are side by side.

    Attributes:
      counts: int64 [batch], windows of each text.
      text: int64 [windows], which text a window shows.
      first: int64 [windows], its first piece, counted through all texts.
      pieces: int64 [windows, (pieces)], counted through all texts.
      is_max_context: bool [pieces of all windows], true in exactly one window for each piece: the
        one that shows the most of what is on both sides of it.
    """

    counts: tf.Tensor
    text: tf.Tensor
    first: tf.Tensor
    pieces: tf.RaggedTensor
    is_max_context: tf.Tensor


def cut(texts: tf.RaggedTensor, room: tf.Tensor, doc_stride: int) -> Windows:
    """Cuts each text into windows, one of no pieces where it has none.

    Args:
      texts: [batch, (pieces)].
      room: int64 [batch], pieces of a window, at least one.
      doc_stride: pieces from the beginning of one window to the beginning of the next, <= room.
    """
    num_pieces = texts.row_lengths()
    stride = tf.minimum(room, doc_stride)
    counts = 1 + -(-tf.maximum(num_pieces - room, 0) // stride)
    text = tf.repeat(tf.range(texts.nrows()), counts)
    first = tf.ragged.range(counts).flat_values * tf.gather(stride, text)
    last = tf.minimum(first + tf.gather(room, text), tf.gather(num_pieces, text))
    first, last = (x + tf.gather(texts.row_starts(), text) for x in (first, last))

    pieces = tf.ragged.range(first, last)
    piece, window = pieces.flat_values, row_ids(pieces)
    first_seen, last_seen = tf.gather(first, window), tf.gather(last, window)
    context = tf.cast(tf.minimum(piece - first_seen, last_seen - 1 - piece), tf.float64)
    # The longer window wins where the sides are about equal; the earlier where all is.
    context += 0.01 * tf.cast(last_seen - first_seen, tf.float64)
    num_pieces = tf.size(texts.flat_values)
    most = tf.math.unsorted_segment_max(context, piece, num_pieces)
    candidates = tf.where(tf.equal(context, tf.gather(most, piece)), window, tf.int64.max)
    chosen = tf.math.unsorted_segment_min(candidates, piece, num_pieces)
    return Windows(counts, text, first, pieces, tf.equal(tf.gather(chosen, piece), window))
