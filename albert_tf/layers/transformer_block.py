"""The Transformer block, which ALBERT applies once per layer."""

import tensorflow as tf

from albert_tf.layers.attention import SelfAttention
from albert_tf.layers.feed_forward import FeedForward
from albert_tf.layers.primitives import PACKAGE, build_parts, resolve_dropout_seed, seeds


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
