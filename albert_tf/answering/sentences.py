"""Pools the outputs of texts to embed them."""

import tensorflow as tf

POOLINGS = ("mean", "cls")


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
