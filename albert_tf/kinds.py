"""Table of the kinds of fine-tuned models: model class, outputs, names in Hugging Face's code.

`kind` in task.json selects a row. A new kind also needs a Task in pipelines and a row in
export/kinds.py.
"""

from __future__ import annotations

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

# The answer of a classifier whose best label is less probable than min_probability.
UNSURE = "unsure"
# Activations of a kind that answers numbers -> an output for each of the dense layer's.
NUMBERS = {"linear": ("value",), "span": ("start_logits", "end_logits")}


@dataclasses.dataclass(frozen=True)
class Kind:
    """Properties that all models of a kind share.

    Attributes:
      name: value of `kind` in task.json, and of --kind of the exports.
      task: value of --task with which pipelines.finetune trains this kind from a table.
      create_model: (config, content of task.json, recompute) -> the model, without variables. For
        `recompute` (default False) see AlbertEncoder.
      num_outputs: content of task.json -> width of the dense layer on the encoder.
      architecture: the model's class in transformers.
      torch_head: the dense layer's name in transformers.
      pipeline: the task's name on Hugging Face's hub.
      our_head: the dense layer's name here.
      has_pooler: whether the dense layer reads the pooler's output.
      problem_type: `problem_type` in Hugging Face's config.json, which distinguishes the kinds of
        one class; "" for other kinds.
      has_labels: whether task.json has `labels`, a name for each output.
      defaults: labels -> default task.json of a Hugging Face model; None if it needs its own.
      activation: of the dense layer's output: "softmax", "sigmoid", "linear" (one number) or "span"
        (two numbers: the first and the last piece of an answer). See `answers`.
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
        """Maps the dense layer's logits, [b, width] or [b, L, width], to outputs by name.

        "span" gives logits of padding, too, which an application must ignore.
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
    # A separator that occurs in a label would divide the label.
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
            defaults=lambda _: {"doc_stride": 128},
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
            defaults=lambda _: {
                "may_be_impossible": False,
                "has_answerability_head": False,
                "doc_stride": 128,
                "max_query_length": 64,
                "max_answer_length": 30,
                "n_best_size": 20,
                "null_threshold": 0.0,
            },
        ),
    )
}
