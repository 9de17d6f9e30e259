"""Serving modules for pre-trained models and for encoders without a head."""

import tensorflow as tf

from albert_tf.answering import sentences
from albert_tf.answering.sentences import mask_pieces, mean_output, word_numbers
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.masks import tokenize_around_masks
from albert_tf.text.packing import FEATURES
from .. import signatures
from ..batches import map_rows, map_sorted_rows
from ..checks import MAX_OUTPUT_VALUES
from .serving_module import TextModule


class EncoderModule(TextModule):
    """Embeds texts with the encoder of any model."""

    table = signatures.ENCODER

    def answer(self, tokens: dict) -> dict:
        """See ServingModule.answer."""
        encoded = self.encode(**tokens)
        return {
            "pooled_output": encoded["pooled_output"],
            "mean_pooled_output": mean_output(encoded["sequence_output"], tokens["input_mask"]),
            "unknown_share": self.share_of_unknown(tokens),
        }


class EmbedderModule(TextModule):
    """Embeds texts with a model that was fine-tuned to compare them."""

    table = signatures.EMBEDDER

    def answer(self, tokens: dict) -> dict:
        """See ServingModule.answer."""
        output, mask = self.encode(**tokens)["sequence_output"], tokens["input_mask"]
        return sentences.unit_length(sentences.pooled(output, mask, self.served.task["pooling"]))


class PreTrainingModule(EncoderModule):
    """Serves embeddings, sentence order, masked pieces and scores of a pre-trained model."""

    table = signatures.PRETRAINING

    model: AlbertForPreTraining

    def answer(self, tokens: dict) -> dict:
        """See ServingModule.answer."""
        answers = super().answer(tokens)
        in_order = tf.nn.softmax(self.model.sentence_order(answers["pooled_output"]))[:, 0]
        has_second = tf.reduce_any(tokens["segment_ids"] * tokens["input_mask"] > 0, axis=1)
        return {"in_order_probability": tf.where(has_second, in_order, 0.5), **answers}

    def fill_mask(self, text) -> dict:
        """Serves the `fill_mask` signature."""
        tokens = self.packer.truncate_and_pack(self._tokenize_around_masks(text))
        answers, places = map_sorted_rows(self._fill_masks, tokens)
        num_masks = answers["num_masks"]

        def per_text(name):  # [all masks, k] -> [batch, MAX_MASKS, k]
            rows = tf.RaggedTensor.from_row_lengths(answers[name], num_masks)
            shape = [None, signatures.MAX_MASKS, signatures.NUM_CANDIDATES]
            return tf.gather(rows, places).to_tensor(shape=shape)

        return {
            "pieces": per_text("pieces"),
            "probabilities": per_text("probabilities"),
            "num_masks": tf.gather(num_masks, places),
        }

    def _fill_masks(self, tokens: dict) -> dict:
        """Returns `num_masks` [batch], and `pieces` and `probabilities` [masks of all texts, k]."""
        sequence_output = self.encode(**tokens)["sequence_output"]
        is_mask = tf.equal(tokens["input_ids"], self.served.tokenizer.mask_id)
        is_mask &= tf.cumsum(tf.cast(is_mask, tf.int32), axis=1) <= signatures.MAX_MASKS
        # Concatenate the masked positions of all texts, so that logits are computed only for them.
        masked = tf.boolean_mask(sequence_output, is_mask)
        rows = {"output": masked, "input_mask": tf.ones([tf.shape(masked)[0], 1], tf.int32)}
        best = map_rows(self._best_pieces, rows, True, self._most_logit_rows)
        return {**best, "num_masks": tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)}

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

    def score(self, text) -> dict:
        """Serves the `score` signature. Same as albert_tf.SentenceScorer, but 0 for empty texts."""
        tokens = self.pack_texts(text, None)
        lengths = tf.reduce_sum(tf.cast(tokens["input_mask"], tf.int64), axis=1)
        cost, most = tf.reduce_sum((lengths - 2) * lengths), signatures.MAX_SCORED_POSITIONS
        message = (
            f"score: at most {most:,} positions in all texts together, n * (n + 2) of a text of n "
            "pieces: send fewer rows"
        )
        limit = tf.debugging.assert_less_equal(cost, tf.constant(most, tf.int64), message)
        with tf.control_dependencies([limit]):
            return map_rows(self._score, tokens)

    def _score(self, tokens: dict) -> dict:
        ids, mask = tokens["input_ids"], tokens["input_mask"]
        tokenizer = self.served.tokenizer
        words = word_numbers(ids, mask, tokenizer.word_starts())
        # Create one row per piece, in which the piece and the rest of its word are masked.
        text, place = tf.unstack(tf.cast(tf.where(words > 0), tf.int32), axis=1)
        rows = tf.gather(ids, text)
        masked = {
            "input_ids": mask_pieces(rows, place, tokenizer.mask_id, tf.gather(words, text)),
            "input_mask": tf.gather(mask, text),
            "segment_ids": tf.zeros_like(rows),
            "place": place,
            "piece": tf.gather(rows, place, batch_dims=1),
        }
        log_probs = map_rows(self._log_probs, masked, most_rows=self._most_logit_rows)["log_prob"]
        return {
            "log_likelihood": tf.math.unsorted_segment_sum(log_probs, text, tf.shape(ids)[0]),
            "num_pieces": tf.reduce_sum(tf.cast(words > 0, tf.int32), axis=1),
            "num_words": tf.reduce_max(words, axis=1),
            "unknown_share": self.share_of_unknown(tokens),
        }

    def _log_probs(self, rows: dict) -> dict:
        """Computes `log_prob` [rows], the log probability of `piece` at position `place`."""
        encoded = self.encode(*(rows[name] for name in FEATURES))["sequence_output"]
        at_place = tf.gather(encoded, rows["place"][:, tf.newaxis], batch_dims=1)
        log_probs = tf.nn.log_softmax(self._masked_lm(at_place)[:, 0])
        return {"log_prob": tf.gather(log_probs, rows["piece"], batch_dims=1)}

    def mlm(self, **tokens) -> dict:
        """Serves the `mlm` signature."""
        return self.on_good_rows(self._mlm, tokens)

    def _mlm(self, mlm_positions, **tokens) -> dict:
        encoded = self.encode(**tokens)
        masked = tf.gather(encoded["sequence_output"], mlm_positions, batch_dims=1)
        return {**encoded, "mlm_logits": self._masked_lm(masked)}

    def _masked_lm(self, outputs: tf.Tensor) -> tf.Tensor:
        """Computes masked-LM logits [..., V] from outputs of the last block [..., H]."""
        return self.model.masked_lm(outputs, self.encoder.embeddings.word_embeddings)

    def sop(self, **tokens) -> dict:
        """Serves the `sop` signature."""
        return self.on_good_rows(self._sop, tokens)

    def _sop(self, **tokens) -> dict:
        encoded = self.encode(**tokens)
        logits = self.model.sentence_order(encoded["pooled_output"])
        return {**encoded, "sop_log_probs": tf.nn.log_softmax(logits)}
