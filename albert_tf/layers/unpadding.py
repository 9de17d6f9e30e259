"""Removes padding before layers that process each position independently."""

import tensorflow as tf

# XLA recompiles functions for each new number of positions. So the number of real positions is
# rounded up to a multiple of 1/32 of all positions, by adding copies of position 0.
_STEPS = 32


class Unpadding:
    """Converts hidden states between a padded batch and a list of its real positions.

    Dense layers, activations, layer norms and residuals do not need padding, but attention does.
    Outputs and gradients are the same as with padding, up to rounding.

    Args:
      input_mask: int32 [b, L], 1 = real.

    Source: ModernBERT (Warner et al. 2024, section 2.1.3), which also unpads attention.
    """

    def __init__(self, input_mask: tf.Tensor):
        is_real = tf.reshape(input_mask, [-1]) == 1
        total = tf.size(is_real)
        places = tf.cast(tf.where(is_real)[:, 0], tf.int32)
        number = tf.size(places)
        step = tf.maximum(1, total // _STEPS)
        # A batch of padding only has one copy, because nothing can be gathered from no positions.
        rounded = -(-tf.maximum(number, tf.minimum(1, total)) // step) * step
        # Add copies of position 0, which are never read.
        self._places = tf.pad(places, [[0, rounded - number]])
        self._numbers = tf.maximum(0, tf.cumsum(tf.cast(is_real, tf.int32)) - 1)
        self._is_copy = (tf.range(rounded) >= number)[:, tf.newaxis]
        self._is_padding = ~is_real[:, tf.newaxis]

    # By default, the gradient of a gather is a scatter. Here the gradients are gathers, too.
    def remove(self, x: tf.Tensor) -> tf.Tensor:
        """Removes padding: maps [b * L, H] to [n, H], the real positions and then the copies."""

        @tf.custom_gradient
        def apply(x):
            return tf.gather(x, self._places), self._add

        return apply(x)

    def add(self, x: tf.Tensor) -> tf.Tensor:
        """Restores padding: maps [n, H] to [b * L, H], with zeros at padding."""

        @tf.custom_gradient
        def apply(x):
            return self._add(x), self._gradient_of_add

        return apply(x)

    def _add(self, x):
        return tf.where(self._is_padding, tf.zeros([], x.dtype), tf.gather(x, self._numbers))

    def _gradient_of_add(self, dy):
        return tf.where(self._is_copy, tf.zeros([], dy.dtype), tf.gather(dy, self._places))
