"""The encoder with the heads of a task."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.encoder import AlbertEncoder
from albert_tf.heads import MaskedLMHead, SentenceOrderHead


class AlbertForPreTraining(tf.keras.Model):
    """Masked-LM and sentence-order prediction on one encoder.

    Args:
      config: its shape.
      recompute: see AlbertEncoder.

    Source: Lan et al. 2020, section 3.1; the reference's run_pretraining.
    """

    def __init__(self, config: AlbertConfig, recompute: bool = False, name: str = "albert"):
        super().__init__(name=name)
        self.config = config
        self.encoder = AlbertEncoder(config, recompute)
        self.masked_lm = MaskedLMHead(config)
        self.sentence_order = SentenceOrderHead(config)

    def call(self, inputs, dropout_seed=None, num_hidden_layers=None):
        """Scores masked pieces and the order of the two segments.

        Args:
          inputs: dict of int32 [b, L] `input_word_ids`, `input_mask` (1 = real), `input_type_ids`
            and int32 [b, P] `masked_lm_positions`.
          dropout_seed: int32 [2] in training; None turns dropout off.
          num_hidden_layers: a smaller depth than the config's.

        Returns:
          dict of float32 logits, `masked_lm_logits` [b, P, V] and `sentence_order_logits` [b, 2],
          and the encoder's `hidden_states`.
        """
        encoded = self.encoder(inputs, dropout_seed, num_hidden_layers)
        return {
            "masked_lm_logits": self.masked_lm(
                encoded["sequence_output"],
                inputs["masked_lm_positions"],
                self.encoder.embeddings.word_embeddings,
            ),
            "sentence_order_logits": self.sentence_order(encoded["pooled_output"]),
            "hidden_states": encoded["hidden_states"],
        }

    def create_variables(self) -> None:
        """Creates every variable by one call on a batch of one short example."""
        ids = tf.zeros([1, 2], tf.int32)
        names = ("input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions")
        self({name: ids for name in names})
