"""Serving modules for classification, regression and multiple choice."""

import tensorflow as tf

from albert_tf.kinds import KINDS, UNSURE
from albert_tf.models import AlbertForMultipleChoice, AlbertForSequenceClassification
from albert_tf.text.choices import questions_with_options
from .. import signatures
from ..batches import map_rows
from .serving_module import ServingModule, TextModule


class RegressorModule(TextModule):
    """Computes the kind's `answers` for texts, or for text pairs if the task has pairs."""

    table = signatures.REGRESSOR
    model: AlbertForSequenceClassification

    def logits(self, tokens: dict) -> tf.Tensor:
        """Returns the head's outputs, float32 [batch, width]."""
        return self.model.classifier(self.encode_to_pooled(**tokens)["pooled_output"])

    def answer(self, tokens: dict) -> dict:
        """See ServingModule.answer."""
        return KINDS[self.served.kind].answers(self.logits(tokens))


class MultiLabelModule(RegressorModule):
    """Computes the probability of each label for a text or text pair.

    If task.json contains `label_thresholds`, the predicted labels are also returned.
    """

    table = signatures.MULTILABEL

    def answer(self, tokens: dict) -> dict:
        """See ServingModule.answer."""
        answers, task = super().answer(tokens), self.served.task
        if "label_thresholds" not in task:
            return answers
        least = [task["label_thresholds"].get(label, 0.5) for label in task["labels"]]
        is_predicted = answers["probabilities"] >= tf.constant(least, tf.float32)
        return {**answers, "predicted": tf.cast(is_predicted, tf.int32)}


class ClassifierModule(RegressorModule):
    """Predicts the label of a text or text pair.

    If task.json contains a `temperature`, logits are divided by it. If it contains a
    `min_probability`, the label is "unsure" for lower probabilities.
    """

    table = signatures.CLASSIFIER

    def answer(self, tokens: dict) -> dict:
        """See ServingModule.answer."""
        logits = self.logits(tokens)
        if temperature := self.served.task.get("temperature"):
            logits /= temperature
        answers = KINDS[self.served.kind].answers(logits)
        label = tf.gather(self.labels()["labels"], tf.argmax(logits, axis=-1))
        if minimum := self.served.task.get("min_probability"):
            is_sure = tf.reduce_max(answers["probabilities"], axis=-1) >= minimum
            label = tf.where(is_sure, label, UNSURE)
        return {
            "label": label,
            **answers,
            "unknown_share": self.share_of_unknown(tokens),
        }


class MultipleChoiceModule(ServingModule):
    """Selects the best of several answers to a question about a text."""

    table = signatures.MULTIPLE_CHOICE
    model: AlbertForMultipleChoice

    def serving_default(self, context, question, options) -> dict:
        """Serves the `serving_default` signature."""
        task, options = self.served.task, tf.reshape(options, [-1])
        longest, num_choices = task["max_qa_length"], task["num_choices"]
        preprocess = self.tokenizer.preprocess
        answers = questions_with_options(preprocess, question, options, longest, task.get("blank"))
        # Tokenize each context only once, and repeat its pieces for each option.
        contexts = self.pieces(context)[:, : self.max_seq_length]
        contexts = tf.gather(contexts, tf.repeat(tf.range(tf.size(context)), num_choices))
        tokens = self.packer.pack_choices(contexts, self.tokenizer(answers), longest)
        logits = tf.reshape(map_rows(self.answer, tokens)["logit"], [-1, num_choices])
        counts = tf.fill([tf.shape(logits)[0]], tf.constant(num_choices, tf.int64))
        return {
            "choice": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
            "unknown_share": self.share_of_unknown(tokens, counts),
        }

    def answer(self, tokens: dict) -> dict:
        """Computes the score of each sequence; see ServingModule.answer."""
        encoded = self.encode_to_pooled(**tokens)
        return {"logit": self.model.classifier(encoded["pooled_output"])[:, 0]}
