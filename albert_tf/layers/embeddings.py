"""Factorized embeddings: a V x E table and an E x H projection instead of a V x H table."""

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers.primitives import (
    PACKAGE,
    FromConfig,
    LayerNorm,
    build_parts,
    dense,
    dropout,
    initializer,
    resolve_dropout_seed,
)


@tf.keras.saving.register_keras_serializable(PACKAGE)
class FactorizedEmbedding(FromConfig, tf.keras.layers.Layer):
    """Adds word, type and position embeddings, normalizes the sum and projects it to H.

    The layer has O(V*E + E*H) parameters instead of O(V*H). If E == H, there is no projection, as
    in BERT.

    Source: Lan et al. 2020, section 3.1; the reference's embedding_lookup_factorized and
    embedding_postprocessor (the projection comes after normalization and dropout).
    """

    def __init__(self, config: AlbertConfig, name: str = "embeddings", **kwargs):
        super().__init__(config, name=name, **kwargs)
        self.layer_norm = LayerNorm()
        stddev = config.initializer_range
        self.projection = (
            dense(config.hidden_size, stddev, "projection", dtype=self.dtype_policy)
            if config.embedding_size != config.hidden_size
            else None
        )

    def build(self, input_shape):
        """Creates three tables, float32 [rows, E], and the variables of the sublayers."""
        config = self.config
        tables = {
            "word_embeddings": config.vocab_size,
            "token_type_embeddings": config.type_vocab_size,
            "position_embeddings": config.max_position_embeddings,
        }
        for name, rows in tables.items():
            table = self.add_weight(
                name,
                [rows, config.embedding_size],
                tf.float32,  # under every policy, because the sum and LayerNorm use float32
                initializer=initializer(config.initializer_range),
                experimental_autocast=False,
            )
            setattr(self, name, table)
        build_parts(config.embedding_size, *filter(None, [self.layer_norm, self.projection]))
        super().build(input_shape)

    def call(self, inputs, dropout_seed=None, training=None):
        """Computes the embeddings of a batch.

        Args:
          inputs: dict of int32 [b, L] `input_word_ids` and `input_type_ids`.
          dropout_seed: see AlbertEncoder.call.
          training: see AlbertEncoder.call.

        Returns:
          The embeddings before [b * L, E] and after projection [b * L, H] (the same if E == H).
        """
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        word_ids, type_ids = inputs["input_word_ids"], inputs["input_type_ids"]
        seq_len = word_ids.shape[1] or tf.shape(word_ids)[1]
        width = self.config.embedding_size
        x = tf.gather(self.word_embeddings, word_ids) + self.position_embeddings[:seq_len]
        # Look up types by a matmul, whose gradient is a matmul instead of a scatter of b * L rows.
        one_hot = tf.one_hot(tf.reshape(type_ids, [-1]), self.config.type_vocab_size, dtype=x.dtype)
        x = tf.reshape(x, [-1, width]) + tf.matmul(one_hot, self.token_type_embeddings)
        x = tf.cast(self.layer_norm(x), self.compute_dtype)
        x = dropout(x, self.config.hidden_dropout_prob, dropout_seed)
        return x, self.projection(x) if self.projection else x
