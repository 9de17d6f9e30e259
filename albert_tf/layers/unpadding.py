"""Removes padding for the layers that compute each position separately."""

from __future__ import annotations

import tensorflow as tf

# XLA compiles a step's functions again for each number of positions. So the number is rounded up to
# a multiple of 1/32 of all positions, and a few positions are computed twice.
_STEPS = 32


class Unpadding:
    """Moves states between a batch with padding and the list of its real positions.

    Dense layers, activations, layer norms and residuals need no padding; attention does. Outputs
    and gradients are the same as with padding, up to rounding.

    Args:
      input_mask: int32 [b, L], 1 = real.

    Source: ModernBERT (Warner et al. 2024, section 2.1.3); it also unpads attention.
    """

    def __init__(self, input_mask: tf.Tensor):
        is_real = tf.reshape(input_mask, [-1]) == 1
        total = tf.size(is_real)
        places = tf.cast(tf.where(is_real)[:, 0], tf.int32)
        number = tf.size(places)
        step = tf.maximum(1, total // _STEPS)
        rounded = -(-number // step) * step
        # Fill up the rounded number with copies of position 0, which are never read.
        self._places = tf.pad(places, [[0, rounded - number]])
        self._numbers = tf.maximum(0, tf.cumsum(tf.cast(is_real, tf.int32)) - 1)
        self._is_copy = (tf.range(rounded) >= number)[:, tf.newaxis]
        self._is_padding = ~is_real[:, tf.newaxis]

    # TensorFlow's gradient of a gather is a scatter. Here the gradients are gathers, too.
    def remove(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [b * L, H] to [n, H]: the real positions in order, then the copies."""

        @tf.custom_gradient
        def apply(x):
            return tf.gather(x, self._places), self._add

        return apply(x)

    def add(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [n, H] to [b * L, H], with zeros at padding."""

        @tf.custom_gradient
        def apply(x):
            return self._add(x), self._gradient_of_add

        return apply(x)

    def _add(self, x):
        return tf.where(self._is_padding, tf.zeros([], x.dtype), tf.gather(x, self._numbers))

    def _gradient_of_add(self, dy):
        return tf.where(self._is_copy, tf.zeros([], dy.dtype), tf.gather(dy, self._places))
