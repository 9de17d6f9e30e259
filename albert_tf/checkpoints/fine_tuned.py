"""Fine-tuned models to and from Hugging Face's transformers, with their labels."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints import huggingface, model_directory, name_map
from albert_tf.checkpoints.model_card import model_card
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError, shown
from albert_tf.models import (
    AlbertForAnswerableQuestionAnswering,
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albert_tf.tokenization import TOKENIZER_CONFIG_FILE, AlbertTokenizer

# config.json's problem_type of the kinds that have the same class there.
_PROBLEMS = {
    "classifier": "single_label_classification",
    "regressor": "regression",
    "multilabel": "multi_label_classification",
}

# What fine-tuning would record by default, where a foreign model does not say it.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "token_classifier": {"doc_stride": 128},
    "question_answering": {
        "may_be_impossible": False,
        "has_answerability_head": False,
        "doc_stride": 128,
        "max_query_length": 64,
        "max_answer_length": 30,
        "n_best_size": 20,
        "null_threshold": 0.0,
    },
    "multiple_choice": {"max_qa_length": 128},
}


class _Architecture(NamedTuple):
    """How a kind of model is called there.

    Attributes:
      name: of the class in transformers.
      torch_head, our_head: the names of its dense layer.
      has_pooler: whether that reads the pooler's output.
      task: the name of the task here, and its name in their hub.
    """

    name: str
    torch_head: str
    our_head: str
    has_pooler: bool
    task: str
    pipeline: str


_SEQUENCE = _Architecture(
    "AlbertForSequenceClassification",
    "classifier",
    "classifier/output",
    True,
    "classification",
    "text-classification",
)
_ARCHITECTURES = {
    "classifier": _SEQUENCE,
    "regressor": _SEQUENCE._replace(task="regression"),
    "multilabel": _SEQUENCE._replace(task="multilabel"),
    "multiple_choice": _SEQUENCE._replace(
        name="AlbertForMultipleChoice", task="multiple_choice", pipeline="multiple-choice"
    ),
    "token_classifier": _Architecture(
        "AlbertForTokenClassification",
        "classifier",
        "classifier/output",
        False,
        "token_classification",
        "token-classification",
    ),
    "question_answering": _Architecture(
        "AlbertForQuestionAnswering",
        "qa_outputs",
        "span/output",
        False,
        "squad_v1",
        "question-answering",
    ),
}


def create_model(config: AlbertConfig, task: dict) -> tf.keras.Model:
    """Returns the model of a task, without variables.

    Args:
      config: the encoder's shape; the head's width follows from `task`.
      task: the content of task.json.
    """
    kind = task["kind"]
    if kind == "multiple_choice":
        return AlbertForMultipleChoice(config, task["num_choices"])
    if kind == "question_answering":
        if task["has_answerability_head"]:
            return AlbertForAnswerableQuestionAnswering(config)
        return AlbertForQuestionAnswering(config)
    if kind == "token_classifier":
        return AlbertForTokenClassification(config, len(task["labels"]))
    num_labels = 1 if kind == "regressor" else len(task["labels"])
    return AlbertForSequenceClassification(config, num_labels)


def find(path: str) -> bool:
    """Tells whether `path` is a fine-tuned model: a model directory, or Hugging Face's."""
    if tf.io.gfile.exists(os.path.join(path, model_directory.TASK_FILE)):
        return True
    if not huggingface.find_weights(path):
        return False
    values = files.read_config(os.path.join(path, huggingface.CONFIG_FILE))
    names = {architecture.name for architecture in _ARCHITECTURES.values()}
    return bool(names & {*(values.get("architectures") or ())})


def load(path: str) -> tuple[tf.keras.Model, dict]:
    """Reads the best weights of a fine-tuned model directory.

    Returns:
      The model, and the content of task.json.

    Raises:
      UserError: if task.json describes no model, or there are no weights for it.
    """
    task = _read_ours(path)
    best = os.path.join(path, model_directory.BEST_DIR)
    has_best = bool(model_directory.list_checkpoints(best))
    _, checkpoint = model_directory.find_checkpoint(best if has_best else path)
    model = create_model(model_directory.read_config(path, checkpoint), task)
    model.create_variables()
    model_directory.restore_weights(model, checkpoint)
    return model, task


def to_huggingface(path: str, directory: str, tokenizer: AlbertTokenizer) -> None:
    """Writes the best weights of a fine-tuned model directory, its labels and a model card.

    task.json goes along: it is what their config cannot say.

    Raises:
      UserError: if their classes have no such head.
    """
    task = files.read_json(os.path.join(path, model_directory.TASK_FILE))
    architecture = _ARCHITECTURES.get(task["kind"])
    if architecture is None or task.get("has_answerability_head"):
        raise UserError(
            f"{path!r}: Hugging Face's classes have no counterpart of this head (beams for SQuAD "
            "2.0; fine-tune with --squad_head=spans for one that they have)"
            if architecture
            else f"{path!r}: models of kind {task['kind']!r} have no counterpart there"
        )
    if huggingface.find_weights(path):
        raise UserError(f"{path!r} is a model of Hugging Face already")
    model, task = load(path)
    config = model.config
    huggingface.write(
        directory,
        config,
        name_map.arrays(model),
        architecture.name,
        _config_values(config, task),
        _table(architecture, task),
    )
    tokenizer.save(directory)
    settings = {
        TOKENIZER_CONFIG_FILE: huggingface.tokenizer_settings(
            tokenizer, config.max_position_embeddings
        ),
        model_directory.TASK_FILE: json.dumps(task, indent=2, ensure_ascii=False) + "\n",
        "README.md": model_card(path, task, config, architecture.pipeline),
    }
    for name, text in settings.items():
        files.write_atomically(os.path.join(directory, name), text)


def _config_values(config: AlbertConfig, task: dict) -> dict:
    """Returns what config.json says of the task."""
    values: dict[str, Any] = {"classifier_dropout_prob": config.classifier_dropout_prob}
    labels = task.get("labels", ["LABEL_0"] if task["kind"] == "regressor" else None)
    if labels:
        values["id2label"] = {str(place): label for place, label in enumerate(labels)}
        values["label2id"] = {label: place for place, label in enumerate(labels)}
    if task["kind"] in _PROBLEMS:
        values["problem_type"] = _PROBLEMS[task["kind"]]
    return values


def _table(architecture: _Architecture, task: dict) -> name_map.Table:
    num_outputs = len(task["labels"]) if "labels" in task else 1
    if task["kind"] == "question_answering":
        num_outputs = 2
    return name_map.fine_tuned_table(
        architecture.torch_head, architecture.our_head, num_outputs, architecture.has_pooler
    )


def from_huggingface(path: str, directory: str, has_pairs: bool = False) -> list[str]:
    """Writes a fine-tuned model directory of a model of Hugging Face, without the vocabulary.

    Args:
      path: a local directory.
      directory: where to write the config, task.json and, in `best`, the weights.
      has_pairs: whether it labels pairs of texts, if no task.json of ours says so.

    Returns:
      Notes for the user, a sentence each.

    Raises:
      UserError: if the files are damaged, or do not say what the model's task needs.
    """
    if not huggingface.find_weights(path):
        raise UserError(
            f"{path!r} is a fine-tuned model of this project: --output_format=huggingface"
        )
    model, task, notes = load_huggingface(path, has_pairs)
    model.config.write(os.path.join(directory, model_directory.CONFIG_FILE))
    prefix = os.path.join(directory, model_directory.BEST_DIR, "ckpt")
    tf.train.Checkpoint(model=model).save(prefix)
    text = json.dumps(task, indent=2, ensure_ascii=False) + "\n"
    files.write_atomically(os.path.join(directory, model_directory.TASK_FILE), text)
    return notes


def load_huggingface(path: str, has_pairs: bool = False) -> tuple[tf.keras.Model, dict, list[str]]:
    """Reads a fine-tuned model of Hugging Face.

    Args:
      path: a local directory with config.json and weights.
      has_pairs: whether it labels pairs of texts, if no task.json of ours says so.

    Returns:
      The model, the content of task.json for it, and notes for the user.
    """
    task = _read_task(path, has_pairs)
    architecture = _ARCHITECTURES[task["kind"]]
    table = _table(architecture, task)
    unused = None if architecture.has_pooler else r"^albert[./]pooler"
    imported = huggingface.read(path, allow_unused=unused, table=table)
    model = create_model(imported.config, task)
    fresh = name_map.assign(model, imported, path)
    notes = list(imported.notes)
    if fresh:
        notes.append(f"without effect, freshly initialised: {', '.join(fresh)}")
    return model, task, notes


def _read_ours(path: str) -> dict:
    file = os.path.join(path, model_directory.TASK_FILE)
    task = files.read_json(file)
    if task.get("kind") not in _ARCHITECTURES:
        raise UserError(
            f"{file}: kind is {shown(task.get('kind'))}, expected one of "
            f"{', '.join(_ARCHITECTURES)}"
        )
    return task


def _read_task(path: str, has_pairs: bool) -> dict:
    """Returns the content of task.json: ours, or what config.json tells."""
    if tf.io.gfile.exists(os.path.join(path, model_directory.TASK_FILE)):
        return _read_ours(path)
    config_file = os.path.join(path, huggingface.CONFIG_FILE)
    values = files.read_config(config_file)
    by_place = values.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    labels = [by_place[key] for key in sorted(by_place, key=int)]
    kind = next(
        kind for kind, a in _ARCHITECTURES.items() if a.name in values.get("architectures", ())
    )
    if kind == "classifier":
        by_problem = {problem: kind for kind, problem in _PROBLEMS.items()}
        kind = by_problem.get(values.get("problem_type", ""), kind)
        if len(labels) == 1 and kind != "multilabel":
            kind = "regressor"
    task = {"task": _ARCHITECTURES[kind].task, "kind": kind, **_DEFAULTS.get(kind, {})}
    if kind in _PROBLEMS:
        task["has_pairs"] = has_pairs
    if kind in ("classifier", "multilabel", "token_classifier"):
        if len(labels) < 2:
            raise UserError(
                f"{config_file}: id2label has {len(labels)} label, expected two or more"
            )
        task["labels"] = labels
    if kind == "multilabel":
        text = "".join(labels)
        task["label_separator"] = next((mark for mark in ",;|" if mark not in text), "\t")
    if kind == "multiple_choice":
        raise UserError(
            f"{path!r} does not say among how many options it chooses: put a task.json beside it, "
            'such as {"task": "multiple_choice", "kind": "multiple_choice", "num_choices": 4, '
            '"max_qa_length": 128, "max_seq_length": 512}'
        )
    return {**task, "max_seq_length": AlbertConfig.read(config_file).max_position_embeddings}
