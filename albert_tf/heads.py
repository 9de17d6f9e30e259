"""What is put on the encoder to train it and to ask it."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers.elementwise import LayerNorm, activation, dense


class MaskedLMHead(tf.keras.layers.Layer):
    """Predicts the pieces at given positions; its output matrix is the word embedding table.

    Source: the reference's run_pretraining.get_masked_lm_output.
    """

    def __init__(self, config: AlbertConfig, name: str = "masked_lm"):
        super().__init__(name=name)
        self.config = config
        self.transform = dense(
            config.embedding_size,
            config.initializer_range,
            "transform",
            activation(config.hidden_act),
        )
        self.layer_norm = LayerNorm()

    def build(self, input_shape):
        """Creates the output bias, float32 [V]."""
        self.output_bias = self.add_weight(
            "output_bias", [self.config.vocab_size], initializer="zeros"
        )
        super().build(input_shape)

    def call(self, sequence_output, positions, word_embeddings):
        """Scores every piece of the vocabulary at each position.

        Args:
          sequence_output: [b, L, H].
          positions: int32 [b, P].
          word_embeddings: [V, E].

        Returns:
          float32 [b, P, V] logits.
        """
        # Only the asked positions meet the vocabulary: P/L of the cost of the largest product.
        x = tf.gather(sequence_output, positions, batch_dims=1)
        num_positions = positions.shape[1] or tf.shape(positions)[1]
        x = self.layer_norm(self.transform(tf.reshape(x, [-1, self.config.hidden_size])))
        # In float32 under mixed precision too: bfloat16 would round the logits to ties.
        table = tf.cast(word_embeddings, tf.float32)
        logits = tf.matmul(tf.cast(x, tf.float32), table, transpose_b=True)
        logits += tf.cast(self.output_bias, tf.float32)
        return tf.reshape(logits, [-1, num_positions, self.config.vocab_size])


class SentenceOrderHead(tf.keras.layers.Layer):
    """Tells segments in order (0) from swapped ones (1).

    Source: Lan et al. 2020, section 3.1; the reference's get_sentence_order_output.
    """

    def __init__(self, config: AlbertConfig, name: str = "sentence_order"):
        super().__init__(name=name)
        self.classifier = dense(2, config.initializer_range, "classifier")

    def call(self, pooled_output):
        """Maps [b, H] to float32 [b, 2] logits."""
        return tf.cast(self.classifier(pooled_output), tf.float32)
