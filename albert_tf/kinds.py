"""Kinds of fine-tuned models, with model class, outputs and names in Hugging Face transformers.

`kind` in task.json selects an entry of KINDS. A new kind also needs a Task in pipelines and an
entry in export/kinds.py.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.models import (
    AlbertForAnswerableQuestionAnswering,
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)

# Prediction of a classifier if the probability of the best label is below min_probability.
UNSURE = "unsure"
# Maps activations of kinds with numeric outputs to the names of these outputs.
DOC_STRIDE = 128  # pieces between the starts of two windows of a long text
# The default content of task.json for a model that answers questions.
SQUAD_DEFAULTS: dict[str, Any] = {
    "may_be_impossible": False,
    "has_answerability_head": False,
    "doc_stride": DOC_STRIDE,
    "max_query_length": 64,
    "max_answer_length": 30,
    "n_best_size": 20,
    "null_threshold": 0.0,
}
NUMBERS = {"linear": ("value",), "span": ("start_logits", "end_logits")}


@dataclasses.dataclass(frozen=True)
class Kind:
    """Properties that are common to all models of a kind.

    Attributes:
      name: value of `kind` in task.json and of the flag --kind of the exports.
      task: value of --task for training this kind from a table with pipelines.finetune.
      create_model: function of (config, content of task.json, recompute) that returns the model
        without variables. `recompute` defaults to False. See AlbertEncoder.
      num_outputs: function that maps the content of task.json to the output layer's width.
      architecture: class name of the model in transformers.
      torch_head: name of the output layer in transformers.
      pipeline: name of the task on the Hugging Face Hub.
      our_head: name of the output layer in this package.
      has_pooler: whether the input of the output layer is the pooler's output.
      problem_type: `problem_type` in Hugging Face's config.json, which distinguishes kinds with the
        same class. "" for other kinds.
      has_labels: whether task.json contains `labels`, a list with one name per output.
      defaults: function that maps labels to the default content of task.json for a Hugging Face
        model. None if the model needs its own task.json.
      activation: activation of the output layer: "softmax", "sigmoid", "linear" (one number) or
        "span" (two logits, for the first and the last piece of an answer). See `answers`.
    """

    name: str
    task: str
    create_model: Callable[..., tf.keras.Model]
    num_outputs: Callable[[dict], int]
    architecture: str
    torch_head: str
    pipeline: str
    our_head: str = "classifier/output"
    has_pooler: bool = True
    problem_type: str = ""
    has_labels: bool = False
    defaults: Callable[[Sequence[str]], dict[str, Any]] | None = lambda _: {}
    activation: str = "softmax"

    def answers(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Converts logits, [b, width] or [b, L, width], to a dict of named outputs.

        The outputs of "span" include logits at padding, which the caller must ignore.
        """
        if self.activation in NUMBERS:
            return {name: logits[..., i] for i, name in enumerate(NUMBERS[self.activation])}
        activation = {"softmax": tf.nn.softmax, "sigmoid": tf.sigmoid}[self.activation]
        return {"probabilities": activation(logits)}


def _question_answering(
    config: AlbertConfig, task: dict, recompute: bool = False
) -> tf.keras.Model:
    if task["has_answerability_head"]:
        return AlbertForAnswerableQuestionAnswering(config, recompute)
    return AlbertForQuestionAnswering(config, recompute)


def _separator(labels: Sequence[str]) -> str:
    text = "".join(labels)
    # A separator that occurs in a label would split the label.
    return next((mark for mark in ",;|" if mark not in text), "\t")


_CLASSIFIER = Kind(
    name="classifier",
    task="classification",
    create_model=lambda config, task, recompute=False: AlbertForSequenceClassification(
        config, len(task["labels"]), recompute
    ),
    num_outputs=lambda task: len(task["labels"]),
    architecture="AlbertForSequenceClassification",
    torch_head="classifier",
    pipeline="text-classification",
    problem_type="single_label_classification",
    has_labels=True,
)

KINDS = {
    kind.name: kind
    for kind in (
        _CLASSIFIER,
        dataclasses.replace(
            _CLASSIFIER,
            name="regressor",
            task="regression",
            create_model=lambda config, _, recompute=False: AlbertForSequenceClassification(
                config, 1, recompute
            ),
            num_outputs=lambda _: 1,
            problem_type="regression",
            has_labels=False,
            activation="linear",
        ),
        dataclasses.replace(
            _CLASSIFIER,
            name="multilabel",
            task="multilabel",
            problem_type="multi_label_classification",
            defaults=lambda labels: {"label_separator": _separator(labels)},
            activation="sigmoid",
        ),
        Kind(
            name="multiple_choice",
            task="multiple_choice",
            create_model=lambda config, task, recompute=False: AlbertForMultipleChoice(
                config, task["num_choices"], recompute
            ),
            num_outputs=lambda _: 1,
            architecture="AlbertForMultipleChoice",
            torch_head="classifier",
            pipeline="multiple-choice",
            defaults=None,
            activation="linear",
        ),
        Kind(
            name="token_classifier",
            task="token_classification",
            create_model=lambda config, task, recompute=False: AlbertForTokenClassification(
                config, len(task["labels"]), recompute
            ),
            num_outputs=lambda task: len(task["labels"]),
            architecture="AlbertForTokenClassification",
            torch_head="classifier",
            pipeline="token-classification",
            has_pooler=False,
            has_labels=True,
            defaults=lambda _: {"doc_stride": DOC_STRIDE},
        ),
        Kind(
            name="question_answering",
            task="squad_v1",
            create_model=_question_answering,
            num_outputs=lambda _: 2,
            architecture="AlbertForQuestionAnswering",
            torch_head="qa_outputs",
            pipeline="question-answering",
            our_head="span/output",
            has_pooler=False,
            activation="span",
            defaults=lambda _: {**SQUAD_DEFAULTS},
        ),
    )
}
