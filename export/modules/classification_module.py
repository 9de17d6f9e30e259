"""Fine-tuned models that label texts, give them numbers, or choose among them."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.models import AlbertForMultipleChoice, AlbertForSequenceClassification
from albert_tf.text.choices import questions_with_options
from ..checks import mark_bad_rows
from ..text.batches import map_rows
from .serving_module import ServedCheckpoint, ServingModule


class _TextModule(ServingModule):
    """Answers about a text, or a pair where the task has pairs, with a head on the encoder."""

    model: AlbertForSequenceClassification

    def serving_default(self, text, text_pair=None) -> dict:
        """Answers the signature `serving_default`."""
        return map_rows(self.answer, self._tokens(text, text_pair))

    def unknown_share(self, text, text_pair=None) -> dict:
        """Answers the signature `unknown_share`."""
        return {"unknown_share": self.share_of_unknown(self._tokens(text, text_pair))}

    def _tokens(self, text, text_pair) -> dict:
        """Returns the sequences of texts, or of pairs."""
        if text_pair is None:
            return self.packer.truncate_and_pack(self.pieces(text))
        return self.pack_texts(text, text_pair)

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
            "unknown_share": self.share_of_unknown(tokens),
        }

    def labels(self) -> dict:
        """Answers the signature `labels`."""
        return {"labels": tf.constant(self.served.task["labels"])}


class MultiLabelModule(ClassifierModule):
    """Computes the probability of each label for a text, or a pair."""

    kind = "multilabel"

    def answer(self, tokens: dict) -> dict:
        """See ServingModule.answer."""
        return {"probabilities": tf.sigmoid(self.logits(tokens))}


class MultipleChoiceModule(ServingModule):
    """Chooses among the answers to a question about a text."""

    kind = "multiple_choice"

    def __init__(self, model: AlbertForMultipleChoice, served: ServedCheckpoint):
        super().__init__(model, served)
        self.num_choices = served.task["num_choices"]
        self.max_qa_length = served.task["max_qa_length"]
        # Version 0.2.0 wrote none, and filled `_` of every task.
        self.blank = served.task.get("blank", "_")

    def serving_default(self, context, question, options) -> dict:
        """Answers the signature `serving_default`."""
        answers = questions_with_options(
            self.tokenizer.preprocess,
            question,
            tf.reshape(options, [-1]),
            self.max_qa_length,
            self.blank,
        )
        # Every context once, then a copy for each option.
        contexts = self.pieces(context)[:, : self.max_seq_length]
        contexts = tf.gather(contexts, tf.repeat(tf.range(tf.size(context)), self.num_choices))
        answers = self.tokenizer(answers)
        return self._choose(self.packer.pack_choices(contexts, answers, self.max_qa_length))

    def examples(self, examples) -> dict:
        """Answers the signature `examples`."""
        tokens, error = self.parse(examples, self.num_choices)
        return mark_bad_rows(self._choose(tokens), error)

    def _choose(self, tokens: dict) -> dict:
        """Answers sequences, [batch * num_choices, seq_len]."""
        logits = tf.reshape(map_rows(self.answer, tokens)["logit"], [-1, self.num_choices])
        counts = tf.fill([tf.shape(logits)[0]], tf.constant(self.num_choices, tf.int64))
        return {
            "choice": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
            "unknown_share": self.share_of_unknown(tokens, counts),
        }

    def answer(self, tokens: dict) -> dict:
        """Scores each sequence by itself; see ServingModule.answer."""
        encoded = self.encode_to_pooled(**tokens)
        return {"logit": self.model.classifier(encoded["pooled_output"])[:, 0]}
