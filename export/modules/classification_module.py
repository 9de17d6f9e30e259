"""Serving modules for classification, regression and multiple choice."""

import tensorflow as tf

from albert_tf.answering.classes import best_labels, labels_above, softmax
from albert_tf.kinds import KINDS
from albert_tf.models import AlbertForMultipleChoice, AlbertForSequenceClassification
from albert_tf.text.choices import questions_with_options
from ..batches import map_rows
from .serving_module import ServingModule, TextModule


class AnswersModule(TextModule):
    """Computes the kind's `answers` for texts, or for text pairs if the task has pairs."""

    model: AlbertForSequenceClassification

    def answer(self, tokens: dict) -> dict:
        """See ServingModule.answer. Probabilities are float64 as in predict, for equal labels."""
        task, outputs = self.served.task, self.signatures["serving_default"].outputs
        logits = self.model.classifier(self.encode_to_pooled(**tokens)["pooled_output"])
        found = KINDS[self.served.kind].answers(tf.cast(logits, tf.float64))
        answers = {name: tf.cast(values, tf.float32) for name, values in found.items()}
        if "label" in outputs:
            least = task.get("min_probability", 0.0)
            answers["label"] = best_labels(found["probabilities"], task["labels"], least)
        if "predicted" in outputs:
            thresholds = task["label_thresholds"]
            predicted = labels_above(found["probabilities"], task["labels"], thresholds)
            answers["predicted"] = tf.cast(predicted, tf.int32)
        if "unknown_share" in outputs:
            answers["unknown_share"] = self.share_of_unknown(tokens)
        return answers


class MultipleChoiceModule(ServingModule):
    """Selects the best of several answers to a question about a text."""

    model: AlbertForMultipleChoice

    def serving_default(self, context, question, options) -> dict:
        task, options = self.served.task, tf.reshape(options, [-1])
        longest, num_choices, blank = task["max_qa_length"], task["num_choices"], task.get("blank")
        preprocess = self.tokenizer.preprocess
        answers = questions_with_options(preprocess, question, options, longest, blank)
        # Tokenize each context only once, and repeat its pieces for each option.
        contexts = self.pieces(context)[:, : self.max_seq_length]
        contexts = tf.gather(contexts, tf.repeat(tf.range(tf.size(context)), num_choices))
        tokens = self.packer.pack_choices(contexts, self.tokenizer(answers), longest)
        logits = tf.reshape(map_rows(self.answer, tokens)["logit"], [-1, num_choices])
        counts = tf.fill([tf.shape(logits)[0]], tf.constant(num_choices, tf.int64))
        return {
            "choice": tf.argmax(logits, axis=-1, output_type=tf.int32),
            **softmax(logits),
            "unknown_share": self.share_of_unknown(tokens, counts),
        }

    def answer(self, tokens: dict) -> dict:
        """Computes the score of each sequence; see ServingModule.answer."""
        encoded = self.encode_to_pooled(**tokens)
        return {"logit": self.model.classifier(encoded["pooled_output"])[:, 0]}
