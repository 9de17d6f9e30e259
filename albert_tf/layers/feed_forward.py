"""Position-wise feed-forward network with residual connection and layer normalization."""

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers.primitives import (
    PACKAGE,
    FromConfig,
    LayerNorm,
    activation,
    build_parts,
    dense,
    dropout,
    resolve_dropout_seed,
)


@tf.keras.saving.register_keras_serializable(PACKAGE)
class FeedForward(FromConfig, tf.keras.layers.Layer):
    """LayerNorm(x + W2 act(W1 x)): the second half of a post-layer-norm Transformer block.

    Source: Vaswani et al. 2017, section 3.3; the reference's attention_ffn_block.
    """

    def __init__(self, config: AlbertConfig, name: str = "feed_forward", **kwargs):
        super().__init__(config, name=name, **kwargs)
        self.supports_masking = True
        stddev, policy = config.initializer_range, self.dtype_policy
        self.intermediate = dense(config.intermediate_size, stddev, "intermediate", dtype=policy)
        self.activation = activation(config.hidden_act)
        self.output_dense = dense(config.hidden_size, stddev, "output", dtype=policy)
        self.layer_norm = LayerNorm()

    def build(self, input_shape):
        """Creates all variables. Their shapes depend only on the config."""
        build_parts(self.config.hidden_size, self.intermediate)
        build_parts(self.config.intermediate_size, self.output_dense)
        build_parts(self.config.hidden_size, self.layer_norm)
        super().build(input_shape)

    def call(self, x, dropout_seed=None, training=None):
        """Maps [b * L, H] or [b, L, H] to the same shape. See SelfAttention.call."""
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        training = dropout_seed is not None
        inner = self.activation(self.intermediate(x, training=training), training)
        output = self.output_dense(inner, training=training)
        output = dropout(output, self.config.hidden_dropout_prob, dropout_seed)
        return self.layer_norm(output, x, training=training)
