"""The position-wise feed-forward half of a Transformer block."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers.primitives import LayerNorm, activation, dense, dropout


class FeedForward(tf.keras.layers.Layer):
    """LayerNorm(x + W2 act(W1 x)): the second half of a post-layer-norm Transformer block.

    Source: Vaswani et al. 2017, section 3.3; the reference's attention_ffn_block.
    """

    def __init__(self, config: AlbertConfig, name: str = "feed_forward"):
        super().__init__(name=name)
        self.config = config
        stddev = config.initializer_range
        self.intermediate = dense(config.intermediate_size, stddev, "intermediate")
        self.activation = activation(config.hidden_act)
        self.output_dense = dense(config.hidden_size, stddev, "output")
        self.layer_norm = LayerNorm()

    def call(self, x, dropout_seed=None):
        """Maps [b * L, H] to [b * L, H]; `dropout_seed` int32 [2] in training, else None."""
        inner = self.activation(self.intermediate(x), training=dropout_seed is not None)
        output = self.output_dense(inner)
        output = dropout(output, self.config.hidden_dropout_prob, dropout_seed)
        return self.layer_norm(x + output)
