"""Fine-tuned models that label texts, give them numbers, or choose among them."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.models import AlbertForMultipleChoice, AlbertForSequenceClassification
from albert_tf.packing import NUM_SPECIAL_PIECES
from export.packing import map_rows
from export.serving_module import ServedCheckpoint, ServingModule, equally_many


class _TextModule(ServingModule):
    """Answers about a text, or a pair where the task has pairs, with a head on the encoder."""

    model: AlbertForSequenceClassification

    def serving_default(self, text, text_pair=None) -> dict:
        """Answers the signature `serving_default`."""
        second = None
        if text_pair is not None:
            text, text_pair = equally_many(text=text, text_pair=text_pair)
            second = self.tokenizer(text_pair)
        tokens = self.packer.truncate_and_pack(self.tokenizer(text), second)
        return map_rows(self.answer, tokens)

    def logits(self, tokens: dict) -> tf.Tensor:
        """Returns the head's outputs, float32 [batch, labels]."""
        return self.model.classifier(self.encode_to_pooled(**tokens)["pooled_output"])


class RegressorModule(_TextModule):
    """Gives a number to a text, or a pair."""

    kind = "regressor"

    def answer(self, tokens: dict) -> dict:
        """See ServingModule.answer."""
        return {"value": self.logits(tokens)[:, 0]}


class ClassifierModule(_TextModule):
    """Labels a text, or a pair."""

    kind = "classifier"

    def answer(self, tokens: dict) -> dict:
        """See ServingModule.answer."""
        logits = self.logits(tokens)
        return {
            "label": tf.gather(self.labels()["labels"], tf.argmax(logits, axis=-1)),
            "probabilities": tf.nn.softmax(logits),
        }

    def labels(self) -> dict:
        """Answers the signature `labels`."""
        return {"labels": tf.constant(self.served.task["labels"])}


class MultipleChoiceModule(ServingModule):
    """Chooses among the answers to a question about a text."""

    kind = "multiple_choice"

    def __init__(self, model: AlbertForMultipleChoice, served: ServedCheckpoint):
        super().__init__(model, served)
        self.num_choices = served.task["num_choices"]
        self.max_qa_length = served.task["max_qa_length"]

    def serving_default(self, context, question, options) -> dict:
        """Answers the signature `serving_default`.

        Source: the reference's race_utils.convert_single_example.
        """
        context, question, options = equally_many(
            context=context, question=question, options=options
        )
        message = f"options must be [batch, {self.num_choices}], as the model was trained"
        check = tf.debugging.assert_equal(tf.shape(options)[1], self.num_choices, message)
        with tf.control_dependencies([check]):
            options = tf.reshape(options, [-1])
        answers = self.tokenizer(self._questions_with_options(question, options))
        room = self.max_seq_length - NUM_SPECIAL_PIECES
        answers = answers[:, -min(self.max_qa_length, room) :]
        # Every context once, then a copy for each option.
        contexts = self.tokenizer(context)[:, :room]
        contexts = tf.gather(contexts, tf.repeat(tf.range(tf.size(context)), self.num_choices))
        lengths = tf.minimum(contexts.row_lengths(), room - answers.row_lengths())
        return self._choose(self.packer.pack(contexts, answers, lengths))

    def examples(self, examples) -> dict:
        """Answers the signature `examples`."""
        return self._choose(self.packer.parse(examples, self.num_choices))

    def _choose(self, tokens: dict) -> dict:
        """Answers sequences, [batch * num_choices, seq_len]."""
        logits = tf.reshape(map_rows(self.answer, tokens)["logit"], [-1, self.num_choices])
        return {
            "choice": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
        }

    def answer(self, tokens: dict) -> dict:
        """Scores each sequence by itself; see ServingModule.answer."""
        encoded = self.encode_to_pooled(**tokens)
        return {"logit": self.model.classifier(encoded["pooled_output"])[:, 0]}

    def _questions_with_options(self, questions: tf.Tensor, options: tf.Tensor) -> tf.Tensor:
        """Returns for each option its question with it in the blanks, or behind if there is none.

        Args:
          questions: string [batch].
          options: string [batch * num_choices].
        """
        # Looked for after the text is prepared: that makes the blank `_` of a full-width one.
        questions = tf.repeat(self.tokenizer.preprocess(questions), self.num_choices)
        options = self.tokenizer.preprocess(options)
        parts = tf.strings.split(questions, "_")
        has_blank = parts.row_lengths() > 1
        number = tf.ragged.range(parts.row_lengths()).flat_values
        is_last = tf.equal(number + 1, tf.gather(parts.row_lengths(), parts.value_rowids()))
        blanks = tf.where(is_last, "", tf.gather(options, parts.value_rowids()))
        filled = parts.with_flat_values(tf.strings.join([parts.flat_values, blanks]))
        return tf.where(
            has_blank,
            tf.strings.reduce_join(filled, axis=1),
            tf.strings.join([questions, options], " "),
        )
