"""Serving modules for pre-trained models and for encoders without a head."""

import tensorflow as tf

from albert_tf.answering import sentences
from albert_tf.answering.sentences import mask_pieces, mean_output, word_numbers
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.masks import tokenize_around_masks
from albert_tf.text.packing import FEATURES
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
    """Serves embeddings, sentence order, masked pieces and scores of a pre-trained model."""

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
