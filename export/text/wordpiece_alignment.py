"""Pieces of a WordPiece vocabulary and where in the texts they stand, in the graph."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.text.wordpiece import InGraphWordPiece
from albert_tf.text.words import row_ids
from .alignment import WHITE_SPACE, AlignedPieces, matches, split_characters


class AligningWordPiece(InGraphWordPiece):
    """An InGraphWordPiece that also locates the pieces in the texts.

    The places equal WordPieceTokenizer.align's.
    """

    def align(self, texts: tf.Tensor) -> AlignedPieces:
        """Tokenizes texts, string [batch], which are valid UTF-8."""
        prepared = self.tokenize(texts)
        first = tf.gather(prepared.origins, prepared.starts)
        last = tf.maximum(
            tf.gather(prepared.origins, prepared.limits) - 1,
            tf.gather(prepared.origins, prepared.limits - 1),
        )
        chars, offsets, limits = split_characters(texts)
        # What follows the last piece may be dropped, and stand in the next text.
        last_of_text = tf.gather(chars.row_limits() - 1, row_ids(prepared.pieces))
        last = tf.minimum(last, last_of_text)
        is_visible = tf.cast(~matches(chars.flat_values, WHITE_SPACE), tf.int64)
        visible_through = tf.cumsum(is_visible)
        return AlignedPieces(
            prepared.pieces,
            tf.gather(offsets, first),
            tf.gather(limits, last),
            tf.gather(visible_through - is_visible, first),
            tf.gather(visible_through, last),
        )
