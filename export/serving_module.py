"""A trained model and its tokenizer as one tf.Module: text in, answers out."""

from __future__ import annotations

import os

import tensorflow as tf

from albert_tf.checkpoints.model_directory import CONFIG_FILE
from albert_tf.models import AlbertForPreTraining
from albert_tf.tokenization import MASK, VOCABULARY_FILE, WORD_BOUNDARY, AlbertTokenizer
from export import signatures


class ServingModule(tf.Module):
    """What all kinds share: tokenizing, packing, encoding. A kind adds its methods and their table.

    Every entry of `signatures` names a method that takes its inputs and returns its outputs.

    Args:
      model: a model with an `encoder`, its variables created.
      tokenizer: its tokenizer.
      model_dir: where the vocabulary and the config lie; both become assets.
      max_seq_length: longest sequence made from text, special pieces included.
    """

    signatures: dict[str, signatures.Signature]

    def __init__(
        self,
        model: tf.keras.Model,
        tokenizer: AlbertTokenizer,
        model_dir: str,
        max_seq_length: int,
    ):
        super().__init__(name="albert")
        # Of the model only the variables are tracked: else Keras saves a trace of every layer.
        self._untracked_model = lambda: model
        self.model_variables = list(model.variables)
        self.vocab_file = tf.saved_model.Asset(os.path.join(model_dir, VOCABULARY_FILE))
        self.config_file = tf.saved_model.Asset(os.path.join(model_dir, CONFIG_FILE))
        self.do_lower_case = tokenizer.do_lower_case
        self.max_seq_length = max_seq_length
        self.tokenizer = tokenizer.in_graph()
        self.cls_id, self.sep_id = tokenizer.cls_id, tokenizer.sep_id
        self.pad_id, self.mask_id = tokenizer.pad_id, tokenizer.mask_id
        # Traced once and called by every signature: the graph of the encoder is saved once.
        ids = tf.TensorSpec([None, None], tf.int32)
        self.encode = tf.function(self._encode, input_signature=[ids, ids, ids])

    @property
    def model(self) -> tf.keras.Model:
        """The model, outside of TensorFlow's tracking."""
        return self._untracked_model()

    def functions(self) -> dict:
        """Returns a concrete function for each signature."""
        return {
            name: tf.function(getattr(self, name)).get_concrete_function(**signature.input_specs())
            for name, signature in self.signatures.items()
        }

    def tokens(self, input_ids, input_mask, segment_ids) -> dict:
        """Answers the signature `tokens`."""
        return self.encode(input_ids, input_mask, segment_ids)

    def tokenization_info(self) -> dict:
        """Answers the signature `tokenization_info`."""
        return {
            "vocab_file": self.vocab_file.asset_path,
            "do_lower_case": tf.constant(self.do_lower_case),
        }

    def _encode(self, input_ids, input_mask, segment_ids) -> dict:
        seq_len, longest = tf.shape(input_ids)[1], self.model.config.max_position_embeddings
        message = f"seq_len must be 1 to {longest}, the rows of the position table"
        checks = [
            tf.debugging.assert_positive(seq_len, message),
            tf.debugging.assert_less_equal(seq_len, longest, message),
        ]
        with tf.control_dependencies(checks):  # else an operation inside fails first, obscurely
            input_ids = tf.identity(input_ids)
        encoded = self.model.encoder(
            {
                "input_word_ids": input_ids,
                "input_mask": input_mask,
                "input_type_ids": segment_ids,
            }
        )
        return {name: encoded[name] for name in ("sequence_output", "pooled_output")}

    def pack(self, first: tf.RaggedTensor, second: tf.RaggedTensor) -> dict:
        """Packs `[CLS] first [SEP] second [SEP]`, or `[CLS] first [SEP]` where second is empty.

        Rows are padded to the longest of the batch. What is too long loses pieces one by one at
        the end of the longer part (of the second, if equal).

        Args:
          first: int32 [batch, (pieces)].
          second: int32 [batch, (pieces)].

        Returns:
          dict of int32 [batch, seq_len] `input_ids`, `input_mask`, `segment_ids`.

        Source: the reference's _truncate_seq_pair, in closed form.
        """
        first_length, second_length = first.row_lengths(), second.row_lengths()
        has_second = tf.cast(second_length > 0, tf.int64)
        room = self.max_seq_length - 2 - has_second
        first_length = tf.minimum(first_length, tf.maximum(room - second_length, (room + 1) // 2))
        second_length = tf.minimum(second_length, room - first_length)
        batch = first.nrows(out_type=tf.int32)
        sep = tf.fill([batch, 1], self.sep_id)
        rows = tf.concat(
            [
                tf.fill([batch, 1], self.cls_id),
                self._cut(first, first_length),
                sep,
                self._cut(second, second_length),
                tf.RaggedTensor.from_tensor(sep, lengths=has_second),
            ],
            axis=1,
        )
        # A batch of no texts has a length too: operations on [0, 0] fail.
        seq_len = tf.maximum(rows.bounding_shape(axis=1), 2)
        input_mask = tf.sequence_mask(rows.row_lengths(), seq_len, tf.int32)
        in_second = tf.range(seq_len) >= (first_length + 2)[:, tf.newaxis]
        return {
            "input_ids": rows.to_tensor(self.pad_id, shape=tf.stack([-1, seq_len])),
            "input_mask": input_mask,
            "segment_ids": input_mask * tf.cast(in_second, tf.int32),
        }

    def _cut(self, pieces: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
        return tf.RaggedTensor.from_tensor(pieces[:, : self.max_seq_length].to_tensor(), lengths)


class PreTrainingModule(ServingModule):
    """Answers with a pre-trained model: embeddings, sentence order, masked pieces."""

    signatures = signatures.PRETRAINING

    def __init__(
        self,
        model: AlbertForPreTraining,
        tokenizer: AlbertTokenizer,
        model_dir: str,
        max_seq_length: int,
    ):
        super().__init__(model, tokenizer, model_dir, max_seq_length)
        self._pieces = tuple(map(tokenizer.id_to_piece, range(tokenizer.vocab_size)))

    def serving_default(self, text, text_pair) -> dict:
        """Answers the signature `serving_default`."""
        tf.debugging.assert_equal(
            tf.size(text), tf.size(text_pair), "text and text_pair must be equally many"
        )
        second = self.tokenizer(text_pair)
        tokens = self.pack(self.tokenizer(text), second)
        encoded = self.encode(**tokens)
        weights = tf.cast(tokens["input_mask"], tf.float32)[:, :, tf.newaxis]
        weighted_sum = tf.reduce_sum(encoded["sequence_output"] * weights, axis=1)
        in_order = tf.nn.softmax(self.model.sentence_order(encoded["pooled_output"]))[:, 0]
        return {
            "in_order_probability": tf.where(second.row_lengths() > 0, in_order, 0.5),
            "pooled_output": encoded["pooled_output"],
            "mean_pooled_output": weighted_sum / tf.reduce_sum(weights, axis=1),
        }

    def fill_mask(self, text) -> dict:
        """Answers the signature `fill_mask`."""
        pieces = self._tokenize_around_masks(text)
        tokens = self.pack(pieces, pieces[:, :0])
        sequence_output = self.encode(**tokens)["sequence_output"]
        is_mask = tf.equal(tokens["input_ids"], self.mask_id)
        num_masks = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
        # The masks of all texts in one row: logits exist for them alone, not for the padding of
        # texts with fewer. A row of zeros behind makes the row never empty.
        masked = tf.boolean_mask(sequence_output, is_mask)
        masked = tf.pad(masked, [[0, 1], [0, 0]])[tf.newaxis]
        logits = self.model.masked_lm(
            masked,
            tf.range(tf.shape(masked)[1])[tf.newaxis],
            self.model.encoder.embeddings.word_embeddings,
        )
        best = tf.math.top_k(tf.nn.softmax(logits[0, :-1]), signatures.NUM_CANDIDATES)

        def per_text(values):  # [all masks, k] -> [batch, masks, k]
            return tf.RaggedTensor.from_row_lengths(values, num_masks).to_tensor()

        return {
            "pieces": per_text(tf.gather(tf.constant(self._pieces), best.indices)),
            "probabilities": per_text(best.values),
            "num_masks": num_masks,
        }

    def _tokenize_around_masks(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns int32 [batch, (pieces)] with mask_id where a text says `[MASK]`.

        Text that touches a mask goes on without a word boundary: after `the [MASK].` comes `.` as
        in training, not the `▁ .` or `▁.` of a text that begins so.
        """
        parts = tf.strings.split(texts, MASK)
        after_mask = tf.ragged.range(parts.row_lengths()).flat_values > 0
        flat = parts.flat_values
        touches = tf.equal(tf.strings.regex_replace(flat, r"^[\s\p{Z}]", ""), flat)

        pieces = self.tokenizer(flat)
        is_first = tf.equal(tf.ragged.range(pieces.row_lengths()).flat_values, 0)
        joins = is_first & tf.gather(after_mask & touches, pieces.value_rowids())
        ids = pieces.flat_values
        ids = tf.where(joins, tf.gather(self._without_boundary(), ids), ids)
        pieces = tf.ragged.boolean_mask(
            pieces.with_flat_values(ids), pieces.with_flat_values(ids >= 0)
        )

        mask = tf.fill([tf.size(flat), 1], self.mask_id)
        mask = tf.RaggedTensor.from_tensor(mask, lengths=tf.cast(after_mask, tf.int64))
        pieces = tf.concat([mask, pieces], axis=1)
        row_splits = tf.gather(pieces.row_splits, parts.row_splits)
        return tf.RaggedTensor.from_row_splits(pieces.flat_values, row_splits)

    def _without_boundary(self) -> list[int]:
        """Returns for each piece the one that says the same inside a word; -1: none is needed."""
        ids = {piece: i for i, piece in enumerate(self._pieces)}
        ids[""] = -1
        return [
            ids.get(piece[1:], i) if piece.startswith(WORD_BOUNDARY) else i
            for i, piece in enumerate(self._pieces)
        ]

    def mlm(self, input_ids, input_mask, segment_ids, mlm_positions) -> dict:
        """Answers the signature `mlm`."""
        encoded = self.encode(input_ids, input_mask, segment_ids)
        table = self.model.encoder.embeddings.word_embeddings
        logits = self.model.masked_lm(encoded["sequence_output"], mlm_positions, table)
        return {**encoded, "mlm_logits": logits}

    def sop(self, input_ids, input_mask, segment_ids) -> dict:
        """Answers the signature `sop`."""
        encoded = self.encode(input_ids, input_mask, segment_ids)
        logits = self.model.sentence_order(encoded["pooled_output"])
        return {**encoded, "sop_log_probs": tf.nn.log_softmax(logits)}
