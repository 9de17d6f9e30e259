"""Kinds of fine-tuned models, with model class, outputs and names in Hugging Face transformers.

`kind` in task.json selects an entry of KINDS. For a new kind, see tests/README.md.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from albert_tf.answering import classes, sentences
from albert_tf.config import AlbertConfig
from albert_tf.models import (
    AlbertForAnswerableQuestionAnswering,
    AlbertForEmbedding,
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)

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


@dataclasses.dataclass(frozen=True)
class Kind:
    """Properties that are common to all models of a kind.

    Attributes:
      name: value of `kind` in task.json and of --kind of the exports.
      task: value of --task of pipelines.finetune, which trains this kind.
      create_model: function of (config, content of task.json, recompute=False) that returns the
        model without variables.
      num_outputs: function that maps the content of task.json to the output layer's width.
      architecture: class name of the model in transformers.
      torch_head: name of the output layer in transformers.
      our_head: name of the output layer in this package. "": `answers` maps the pooled outputs.
      has_pooler: whether the input of the output layer is the pooler's output.
      problem_type: `problem_type` in Hugging Face's config.json, which distinguishes kinds with the
        same class. "" for other kinds.
      has_labels: whether task.json contains `labels`, a list with one name per output.
      defaults: function that maps labels to the default content of task.json for a Hugging Face
        model. None if the model needs its own task.json.
      answers: function of albert_tf.answering that maps the output layer's logits, [b, width] or
        [b, L, width], to a dict of named outputs. `probabilities` must have one column per label.
    """

    name: str
    task: str
    create_model: Callable[..., tf.keras.Model]
    architecture: str
    num_outputs: Callable[[dict], int] = lambda _: 0
    torch_head: str = ""
    our_head: str = "classifier/output"
    has_pooler: bool = True
    problem_type: str = ""
    has_labels: bool = False
    defaults: Callable[[Sequence[str]], dict[str, Any]] | None = lambda _: {}
    answers: Callable[[tf.Tensor], dict[str, tf.Tensor]] = classes.softmax


def _question_answering(config: AlbertConfig, task: dict, recompute: bool = False):
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
            answers=classes.number,
        ),
        dataclasses.replace(
            _CLASSIFIER,
            name="multilabel",
            task="multilabel",
            problem_type="multi_label_classification",
            defaults=lambda labels: {"label_separator": _separator(labels)},
            answers=classes.sigmoid,
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
            defaults=None,
            answers=classes.number,
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
            our_head="span/output",
            has_pooler=False,
            answers=classes.ends_of_spans,
            defaults=lambda _: {**SQUAD_DEFAULTS},
        ),
        Kind(
            name="embedder",
            task="embedding",
            create_model=lambda config, task, recompute=False: AlbertForEmbedding(
                config, task["pooling"], recompute
            ),
            architecture="AlbertModel",
            our_head="",
            has_pooler=False,
            answers=sentences.unit_length,
        ),
    )
}
