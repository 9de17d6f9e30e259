"""Serving modules for pre-trained models and for encoders without a head."""

import tensorflow as tf

from albert_tf.answering import sentences
from albert_tf.answering.sentences import mean_output
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.masks import tokenize_around_masks
from .. import signatures
from ..batches import map_rows
from ..checks import MAX_OUTPUT_VALUES
from .serving_module import TextModule


class EncoderModule(TextModule):
    """Embeds texts with the encoder of any model."""

    def answer(self, tokens: dict) -> dict:
        encoded = self.encode(**tokens)
        return {
            "pooled_output": encoded["pooled_output"],
            "mean_pooled_output": mean_output(encoded["sequence_output"], tokens["input_mask"]),
            "unknown_share": self.share_of_unknown(tokens),
        }


class EmbedderModule(TextModule):
    """Embeds texts with a model that was fine-tuned to compare them."""

    def answer(self, tokens: dict) -> dict:
        output, mask = self.encode(**tokens)["sequence_output"], tokens["input_mask"]
        return sentences.unit_length(sentences.pooled(output, mask, self.served.task["pooling"]))


class PreTrainingModule(EncoderModule):
    """Serves embeddings, sentence order and masked pieces of a pre-trained model."""

    model: AlbertForPreTraining

    def answer(self, tokens: dict) -> dict:
        answers = super().answer(tokens)
        in_order = tf.nn.softmax(self.model.sentence_order(answers["pooled_output"]))[:, 0]
        has_second = tf.reduce_any(tokens["segment_ids"] * tokens["input_mask"] > 0, axis=1)
        return {"in_order_probability": tf.where(has_second, in_order, 0.5), **answers}

    def fill_mask(self, text) -> dict:
        tokens = self.packer.truncate_and_pack(self._tokenize_around_masks(text))
        return map_rows(self._fill_masks, tokens)

    def _fill_masks(self, tokens: dict) -> dict:
        sequence_output = self.encode(**tokens)["sequence_output"]
        is_mask = tf.equal(tokens["input_ids"], self.served.tokenizer.mask_id)
        is_mask &= tf.cumsum(tf.cast(is_mask, tf.int32), axis=1) <= signatures.MAX_MASKS
        num_masks = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
        # Concatenate the masked positions of all texts, so that logits are computed only for them.
        masked = tf.boolean_mask(sequence_output, is_mask)
        rows = {"output": masked, "input_mask": tf.ones([tf.shape(masked)[0], 1], tf.int32)}
        best = map_rows(self._best_pieces, rows, True, self._most_logit_rows)
        shape = [None, signatures.MAX_MASKS, signatures.NUM_CANDIDATES]
        of_texts = {
            name: tf.RaggedTensor.from_row_lengths(values, num_masks).to_tensor(shape=shape)
            for name, values in best.items()
        }
        return {**of_texts, "num_masks": num_masks}

    def _best_pieces(self, rows: dict) -> dict:
        """Returns the most probable `pieces` and their `probabilities` for outputs [rows, H]."""
        logits = self._masked_lm(rows["output"][tf.newaxis])[0]
        best = tf.math.top_k(tf.nn.softmax(logits), signatures.NUM_CANDIDATES)
        return {
            "pieces": tf.gather(self.served.tokenizer.pieces, best.indices),
            "probabilities": best.values,
        }

    @property
    def _most_logit_rows(self) -> int:
        """Rows of masked-LM logits that are computed at once."""
        return max(MAX_OUTPUT_VALUES // self.sizes["vocab_size"], 1)

    def _tokenize_around_masks(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return tokenize_around_masks(self.read(texts), self.served.tokenizer, self.tokenizer)

    def mlm(self, mlm_positions, **tokens) -> dict:
        encoded = self.encode(**tokens)
        masked = tf.gather(encoded["sequence_output"], mlm_positions, batch_dims=1)
        return {**encoded, "mlm_logits": self._masked_lm(masked)}

    def _masked_lm(self, outputs: tf.Tensor) -> tf.Tensor:
        """Computes masked-LM logits [..., V] from outputs of the last block [..., H]."""
        return self.model.masked_lm(outputs, self.encoder.embeddings.word_embeddings)

    def sop(self, **tokens) -> dict:
        encoded = self.encode(**tokens)
        logits = self.model.sentence_order(encoded["pooled_output"])
        return {**encoded, "sop_log_probs": tf.nn.log_softmax(logits)}
