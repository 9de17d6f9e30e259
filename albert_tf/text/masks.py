"""Tokenizes texts in which [MASK] marks the pieces to predict."""

from collections.abc import Callable

import tensorflow as tf

from albert_tf.text.tokenization import MASK, WORD_BOUNDARY, AlbertTokenizer
from albert_tf.text.words import row_ids


def tokenize_around_masks(
    texts: tf.Tensor, tokenizer: AlbertTokenizer, tokenize: Callable[[tf.Tensor], tf.RaggedTensor]
) -> tf.RaggedTensor:
    """Tokenizes texts, string [batch], to int32 [batch, (pieces)] with mask_id for each `[MASK]`.

    Text directly after a mask is tokenized without a word boundary: `the [MASK].` ends with the
    piece `.`, as in training, instead of `▁ .` or `▁.`. `tokenize` maps texts without masks to
    their pieces, as `tokenizer.in_graph()` does.
    """
    parts = tf.strings.split(texts, MASK)
    after_mask = tf.ragged.range(parts.row_lengths()).flat_values > 0
    flat = parts.flat_values
    # True if a part does not start with white space.
    touches = tf.equal(tf.strings.regex_replace(flat, r"^[\s\p{Z}]", ""), flat)

    pieces = tokenize(flat)
    is_first = tf.equal(tf.ragged.range(pieces.row_lengths()).flat_values, 0)
    joins = is_first & tf.gather(after_mask & touches, row_ids(pieces))
    ids = pieces.flat_values
    ids = tf.where(joins, tf.gather(_without_boundary(tokenizer.pieces), ids), ids)
    pieces = tf.ragged.boolean_mask(pieces.with_flat_values(ids), pieces.with_flat_values(ids >= 0))

    mask = tf.fill([tf.size(flat), 1], tokenizer.mask_id)
    mask = tf.RaggedTensor.from_tensor(mask, lengths=tf.cast(after_mask, tf.int64))
    pieces = tf.concat([mask, pieces], axis=1)
    row_splits = tf.gather(pieces.row_splits, parts.row_splits)
    return tf.RaggedTensor.from_row_splits(pieces.flat_values, row_splits, validate=False)


def _without_boundary(pieces: list[str]) -> list[int]:
    """Maps each id to the id of the piece without `▁`, if it exists, and `▁` itself to -1."""
    ids = {**{piece: i for i, piece in enumerate(pieces)}, "": -1}
    return [ids.get(piece.removeprefix(WORD_BOUNDARY), i) for i, piece in enumerate(pieces)]
