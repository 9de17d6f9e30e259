"""Turns the logits of one text, pair or piece into probabilities, numbers and labels.

The first functions are values of Kind.answers. They map logits [..., width], float32 or float64, to
a dict of named outputs. export/to_onnx.py converts their TensorFlow ops.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

# Prediction of a classifier if the probability of the best label is below min_probability.
UNSURE = "unsure"


def softmax(logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns `probabilities` [..., labels] of exactly one label."""
    return {"probabilities": tf.nn.softmax(logits)}


def sigmoid(logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns `probabilities` [..., labels] of each label, independent of the others."""
    return {"probabilities": tf.sigmoid(logits)}


def number(logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns `value` [...], the only logit."""
    return {"value": tf.unstack(logits, axis=-1)[0]}


def ends_of_spans(logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns `start_logits` and `end_logits` [..., L], at padding too."""
    return dict(zip(("start_logits", "end_logits"), tf.unstack(logits, axis=-1)))


def best_labels(
    probabilities: tf.Tensor, labels: Sequence[str], min_probability: float = 0.0
) -> tf.Tensor:
    """Returns the most probable label of each row, or UNSURE below `min_probability`, string [b].

    `probabilities` are [b, labels]. Between equal ones, the first is taken.
    """
    best = tf.gather(labels, tf.argmax(probabilities, axis=-1))
    if not min_probability:
        return best
    return tf.where(tf.reduce_max(probabilities, axis=-1) >= min_probability, best, UNSURE)


def labels_above(
    probabilities: tf.Tensor, labels: Sequence[str], thresholds: Mapping[str, float]
) -> tf.Tensor:
    """Returns whether each label is predicted, bool [b, labels].

    A label is predicted if its probability reaches its threshold in `thresholds` (default: 0.5).
    """
    least = tf.constant([thresholds.get(label, 0.5) for label in labels], tf.float64)
    return tf.cast(probabilities, tf.float64) >= least


def best_tags(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the index of each word's best label, int32 [words], and its probability, float32.

    `logits` are float32 [words, labels], at the first pieces of the words.
    """
    probabilities = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
    return tf.argmax(logits, axis=-1, output_type=tf.int32), probabilities
