"""The Transformer block, which ALBERT applies once per layer, and its feed-forward half."""

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers.attention import SelfAttention
from albert_tf.layers.primitives import (
    PACKAGE,
    FromConfig,
    LayerNorm,
    activation,
    build_parts,
    dense,
    dropout,
    resolve_dropout_seed,
    seeds,
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


@tf.keras.saving.register_keras_serializable(PACKAGE)
class TransformerBlock(tf.keras.layers.Layer):
    """Self-attention and feed-forward layers, each with residual and layer normalization.

    Both sublayers are arguments, so that blocks can share only one of them. For example, with
    `parameter_sharing="attention"` all blocks share one attention layer, but each block has its own
    feed-forward layer. Each layer normalization is part of the sublayer that it follows. The paper
    does not specify this, and it cannot be inferred from the rounded parameter counts.

    Source: Lan et al. 2020, section 3.1, "cross-layer parameter sharing".
    """

    def __init__(
        self, attention: SelfAttention, feed_forward: FeedForward, name: str = "block", **kwargs
    ):
        super().__init__(name=name, **kwargs)
        self.supports_masking = True
        self.attention = attention
        self.feed_forward = feed_forward

    def build(self, input_shape):
        """Creates the variables of both sublayers."""
        build_parts(self.attention.config.hidden_size, self.attention, self.feed_forward)
        super().build(input_shape)

    def call(
        self,
        x,
        bias=None,
        dropout_seed=None,
        positions=None,
        training=None,
        mask=None,
        unpadding=None,
    ):
        """Applies both sublayers. For arguments and result see SelfAttention.call."""
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        attention_seed, feed_forward_seed = seeds(dropout_seed, 2)
        x = self.attention(x, bias, attention_seed, positions, mask=mask, unpadding=unpadding)
        return self.feed_forward(x, feed_forward_seed)

    def get_config(self) -> dict:
        """Returns the arguments of `__init__` as JSON-serializable values."""
        halves = {"attention": self.attention, "feed_forward": self.feed_forward}
        serialize = tf.keras.saving.serialize_keras_object
        return {**super().get_config(), **{name: serialize(half) for name, half in halves.items()}}

    @classmethod
    def from_config(cls, config: dict) -> "TransformerBlock":
        """Creates a block from its config, without weights."""
        deserialize = tf.keras.saving.deserialize_keras_object
        halves = {name: deserialize(config[name]) for name in ("attention", "feed_forward")}
        return cls(**{**config, **halves})
