"""Masks pieces to score sentences, and pools outputs to embed them."""

import numpy as np
import tensorflow as tf

POOLINGS = ("mean", "cls")


def word_numbers(ids: tf.Tensor, mask: tf.Tensor, word_starts: np.ndarray) -> tf.Tensor:
    """Returns the number (from 1) of each piece's word, int32 [rows, L]; 0 if it is no text.

    `ids`, int32 [rows, L], are `[CLS] text [SEP]`, padded. `mask` is int32 [rows, L], 1 = real.
    `word_starts` are AlbertTokenizer.word_starts, bool [V]. The first piece always starts a word.
    """
    position = tf.range(tf.shape(ids)[1])
    is_text = (position > 0) & (position <= tf.reduce_sum(mask, axis=1, keepdims=True) - 2)
    starts = is_text & (tf.gather(word_starts, ids) | (position == 1))
    return tf.where(is_text, tf.cumsum(tf.cast(starts, tf.int32), axis=1), 0)


def mask_pieces(
    ids: tf.Tensor, places: tf.Tensor, mask_id: int, words: tf.Tensor | None
) -> tf.Tensor:
    """Masks the piece at `places`, int32 [rows], and later pieces of its word, in ids [rows, L].

    `words` are the word_numbers. If None, only the piece itself is masked.
    """
    places, position = places[:, tf.newaxis], tf.range(tf.shape(ids)[1])
    is_masked = tf.equal(position, places)
    if words is not None:
        of_piece = tf.gather(words, places, batch_dims=1)
        is_masked |= (position > places) & tf.equal(words, of_piece)
    return tf.where(is_masked, mask_id, ids)


def mean_output(sequence_output: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Averages outputs, float32 [rows, L, H], over all real positions (mask 1), to [rows, H]."""
    weights = tf.cast(mask, tf.float32)[:, :, tf.newaxis]
    return tf.reduce_sum(sequence_output * weights, axis=1) / tf.reduce_sum(weights, axis=1)


def pooled(sequence_output: tf.Tensor, mask: tf.Tensor, pooling: str) -> tf.Tensor:
    """Returns a vector per text, float32 [rows, H]: mean_output, or the output at [CLS] ("cls")."""
    output = tf.cast(sequence_output, tf.float32)
    return output[:, 0] if pooling == "cls" else mean_output(output, mask)


def unit_length(vectors: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns `embedding`, [..., H] of length 1 or 0. See answering.classes for the ops to use."""
    squares = tf.reduce_sum(vectors * vectors, tf.constant([-1], tf.int64), keepdims=True)
    return {"embedding": vectors / tf.sqrt(tf.maximum(squares, 1e-12))}
