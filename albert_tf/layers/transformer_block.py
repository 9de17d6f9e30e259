"""The block that ALBERT applies L times."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.layers.attention import SelfAttention
from albert_tf.layers.feed_forward import FeedForward
from albert_tf.layers.primitives import seeds


class TransformerBlock(tf.keras.layers.Layer):
    """Self-attention, then feed-forward, each with its residual and layer normalization.

    The halves are handed in, so that blocks can share one half and own the other: under
    `parameter_sharing="attention"` L blocks hold one attention and L feed-forwards. Each layer
    normalization belongs to the half that it ends.

    Source: Lan et al. 2020, section 3.1, "cross-layer parameter sharing".
    """

    def __init__(self, attention: SelfAttention, feed_forward: FeedForward, name: str = "block"):
        super().__init__(name=name)
        self.attention = attention
        self.feed_forward = feed_forward

    def call(self, x, bias, dropout_seed=None, positions=None):
        """Maps [b * L, H] to [b * L, H], or to the [b * P, H] asked; see SelfAttention.call."""
        attention_seed, feed_forward_seed = seeds(dropout_seed, 2)
        x = self.attention(x, bias, attention_seed, positions)
        return self.feed_forward(x, feed_forward_seed)
