"""Multi-head self-attention with residual connection and layer normalization."""

import math

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers import one_pass
from albert_tf.layers.primitives import (
    PACKAGE,
    FromConfig,
    LayerNorm,
    dense,
    dropout,
    resolve_dropout_seed,
    seeds,
)

_MASKED_SCORE = -10000.0


def attention_bias(input_mask: tf.Tensor) -> tf.Tensor:
    """Converts a mask, int32 or bool [b, L], 1 = real, to a bias for attention scores.

    The bias, float32 [b, 1, 1, L], is 0 for real keys and -10000 for padding.
    """
    bias = (1.0 - tf.cast(input_mask, tf.float32)) * _MASKED_SCORE
    return bias[:, tf.newaxis, tf.newaxis, :]


@tf.keras.saving.register_keras_serializable(PACKAGE)
class SelfAttention(FromConfig, tf.keras.layers.Layer):
    """LayerNorm(x + Attention(x)): the first half of a post-layer-norm Transformer block.

    Source: Vaswani et al. 2017, section 3.2; the reference's attention_layer.
    """

    def __init__(self, config: AlbertConfig, name: str = "attention", **kwargs):
        super().__init__(config, name=name, **kwargs)
        self.supports_masking = True
        self.query, self.key, self.value, self.output_dense = (
            dense(config.hidden_size, config.initializer_range, part, dtype=self.dtype_policy)
            for part in ("query", "key", "value", "output")
        )
        self.layer_norm = LayerNorm()

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
        """Applies self-attention within each example.

        Args:
          x: [b, L, H]; or [b * L, H], which requires `bias`; or, with `unpadding`, [n, H].
          bias: float32 [b, 1, 1, L], added to the attention scores. Default: computed from `mask`.
          dropout_seed: see AlbertEncoder.call.
          training: see AlbertEncoder.call.
          positions: int32 [b, P], query positions. Default: all. Keys always use all positions.
          mask: bool [b, L], Keras mask, True = real. Default: all positions are real.
          unpadding: Unpadding of the batch, if x contains only the n real positions.

        Returns:
          Output of the same shape as x. With `positions`, [b * P, H] or [b, P, H].
        """
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        training = dropout_seed is not None
        bias = _bias_of(x, bias, positions, mask)
        seq_len, hidden_size = bias.shape[-1] or tf.shape(bias)[-1], self.config.hidden_size
        probs_seed, output_seed = seeds(dropout_seed, 2)

        def padded(y):
            return y if unpadding is None else unpadding.add(y)

        asking, num_asking = x, seq_len
        if positions is not None:
            num_asking = positions.shape[1] or tf.shape(positions)[1]
            by_example = tf.reshape(padded(x), [-1, seq_len, hidden_size])
            asking = tf.gather(by_example, positions, batch_dims=1)
            asking = asking if x.shape.rank == 3 else tf.reshape(asking, [-1, hidden_size])
        query = self.query(asking, training=training)
        query = padded(query) if positions is None else query
        key, value = (padded(part(x, training=training)) for part in (self.key, self.value))
        context = self._attend(query, key, value, num_asking, bias, probs_seed)
        shape = [-1, num_asking, hidden_size] if x.shape.rank == 3 else [-1, hidden_size]
        context = tf.reshape(context, shape)
        if unpadding is not None and positions is None:
            context = unpadding.remove(context)
        output = self.output_dense(context, training=training)
        output = dropout(output, self.config.hidden_dropout_prob, output_seed)
        return self.layer_norm(output, asking, training=training)

    def _attend(self, query, key, value, num_asking, bias, dropout_seed):
        """Computes the attention output of each head, [b, P, N, D].

        `query` is [b * P, H] or [b, P, H], where P = `num_asking`. `key` and `value` have L instead
        of P. `bias` is float32 [b, 1, 1, L]. In inference, `dropout_seed` is None.
        """
        num_heads = self.config.num_attention_heads
        head_size = self.config.hidden_size // num_heads
        scale = 1.0 / math.sqrt(head_size)
        seq_len = bias.shape[-1] or tf.shape(bias)[-1]

        def split_heads(y, length):  # [b * L, H] -> [b, N, L, D]
            return tf.transpose(tf.reshape(y, [-1, length, num_heads, head_size]), [0, 2, 1, 3])

        if dropout_seed is None:
            # Scaling the query needs D/L times the operations of scaling the scores. In training,
            # one_pass.softmax scales the scores without another pass.
            query *= scale
        query, key = split_heads(query, num_asking), split_heads(key, seq_len)
        scores = tf.matmul(query, key, transpose_b=True)
        if dropout_seed is None:
            probs = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32) + bias), scores.dtype)
        else:
            probs = one_pass.softmax(scores, scale, bias)  # [b, N, P, L]
        probs = dropout(probs, self.config.attention_probs_dropout_prob, dropout_seed)
        context = tf.matmul(probs, split_heads(value, seq_len))
        return tf.transpose(context, [0, 2, 1, 3])


def _bias_of(x, bias, positions, mask) -> tf.Tensor:
    """Checks the arguments of SelfAttention.call and returns the attention bias."""
    if bias is None and x.shape.rank != 3:
        raise ValueError("x of shape [b * L, H] needs `bias`, whose last axis defines L")
    if mask is not None and positions is not None:
        raise ValueError("with `positions` give attention_bias(mask) as `bias`, not `mask`")
    if bias is not None:
        return bias
    return attention_bias(tf.ones(tf.shape(x)[:2], tf.int32) if mask is None else mask)
