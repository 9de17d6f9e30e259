"""Splits texts of any length into overlapping windows, in the TensorFlow graph."""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.text.words import row_ids


class Windows(NamedTuple):
    """Overlapping windows over pieces. Windows of the same text are consecutive rows.

    Attributes:
      counts: int64 [batch], number of windows of each text.
      text: int64 [windows], index of the window's text.
      first: int64 [windows], index of the window's first piece among the pieces of all texts.
      pieces: int64 [windows, (pieces)], indices of the window's pieces among all texts' pieces.
      is_max_context: bool [pieces of all windows], True for each piece in exactly one window: the
        window with the most context on both sides of the piece.
    """

    counts: tf.Tensor
    text: tf.Tensor
    first: tf.Tensor
    pieces: tf.RaggedTensor
    is_max_context: tf.Tensor


def cut(texts: tf.RaggedTensor, room: tf.Tensor, doc_stride: int) -> Windows:
    """Splits each text, [batch, (pieces)], into windows. An empty text has one empty window.

    `room` is the maximum number of pieces per window of each text, int64 [batch], at least 1.
    Windows start min(doc_stride, room) pieces apart.
    """
    num_pieces = texts.row_lengths()
    stride = tf.minimum(room, doc_stride)
    # One window, plus one for each full or partial stride that exceeds the room.
    counts = 1 + -(-tf.maximum(num_pieces - room, 0) // stride)
    text = tf.repeat(tf.range(texts.nrows()), counts)
    first = tf.ragged.range(counts).flat_values * tf.gather(stride, text)
    last = tf.minimum(first + tf.gather(room, text), tf.gather(num_pieces, text))
    first, last = (x + tf.gather(texts.row_starts(), text) for x in (first, last))

    pieces = tf.ragged.range(first, last)
    piece, window = pieces.flat_values, row_ids(pieces)
    first_seen, last_seen = tf.gather(first, window), tf.gather(last, window)
    context = tf.cast(tf.minimum(piece - first_seen, last_seen - 1 - piece), tf.float64)
    # Among windows with about equal context, prefer the longer one, then the earlier one.
    context += 0.01 * tf.cast(last_seen - first_seen, tf.float64)
    num_pieces = tf.size(texts.flat_values)
    most = tf.math.unsorted_segment_max(context, piece, num_pieces)
    candidates = tf.where(tf.equal(context, tf.gather(most, piece)), window, tf.int64.max)
    chosen = tf.math.unsorted_segment_min(candidates, piece, num_pieces)
    return Windows(counts, text, first, pieces, tf.equal(tf.gather(chosen, piece), window))
