"""The kinds of exports: which model, from which checkpoint, and the module that serves it."""

from __future__ import annotations

import os

import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from albert_tf.encoder import AlbertEncoder
from albert_tf.models import (
    AlbertForAnswerableQuestionAnswering,
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
)
from albert_tf.tokenization import AlbertTokenizer
from export import signatures
from export.classification_module import ClassifierModule, MultipleChoiceModule, RegressorModule
from export.pretraining_module import EncoderModule, PreTrainingModule
from export.question_answering_module import QuestionAnsweringModule
from export.serving_module import ServingModule


def find_checkpoint(path: str) -> tuple[str, str]:
    """Finds the model directory and the checkpoint that `path` means.

    Of the directory of a fine-tuned model that is the best one, whose figures fine-tuning reported.
    Otherwise as of model_directory.find_checkpoint.
    """
    best = os.path.join(path, model_directory.BEST_DIR)
    is_fine_tuned = tf.io.gfile.exists(os.path.join(path, model_directory.TASK_FILE))
    if is_fine_tuned and model_directory.list_checkpoints(best):
        return model_directory.find_checkpoint(best)
    return model_directory.find_checkpoint(path)


def read_task(model_dir: str, kind: str | None) -> tuple[str, dict | None]:
    """Returns the kind to export and what task.json says, None if there is no such file.

    Args:
      model_dir: a model directory.
      kind: one of signatures.KINDS; None: what task.json says, pretraining without it.

    Raises:
      ValueError: if a model of that kind is not there.
    """
    path = os.path.join(model_dir, model_directory.TASK_FILE)
    task = files.read_json(path) if tf.io.gfile.exists(path) else None
    found = task.get("kind") if task else "pretraining"
    if found not in signatures.KINDS:
        raise ValueError(
            f"{path}: kind is {found!r}, expected one of {', '.join(signatures.KINDS)}: was it "
            "written by pipelines.finetune?"
        )
    kind = kind or found
    if kind not in (found, "encoder"):
        made_by = "pipelines.finetune makes such a model" if task is None else f"{path} says so"
        raise ValueError(
            f"--kind={kind}, but {model_dir!r} holds a model for {found} ({made_by}): take "
            f"--kind={found} or --kind=encoder, or another --checkpoint"
        )
    return kind, task


def load_module(
    kind: str,
    task: dict | None,
    config: AlbertConfig,
    checkpoint: str,
    tokenizer: AlbertTokenizer,
    model_dir: str,
    max_seq_length: int,
) -> ServingModule:
    """Builds the model of a kind with its weights, ready to be saved.

    Args:
      kind, task: as of read_task.
      checkpoint: the prefix of one.

    Other arguments as of ServingModule.
    """
    rest = (tokenizer, model_dir, max_seq_length)
    if kind == "pretraining":
        model, _ = model_directory.load_for_pretraining(checkpoint)
        return PreTrainingModule(model, *rest)
    if kind == "encoder":
        encoder = AlbertEncoder(config)
        ids = tf.zeros([1, 2], tf.int32)
        encoder({name: ids for name in ("input_word_ids", "input_mask", "input_type_ids")})
        model_directory.restore_encoder(encoder, checkpoint)
        return EncoderModule(encoder, *rest)
    if kind == "multiple_choice":
        model, module = AlbertForMultipleChoice(config, task["num_choices"]), MultipleChoiceModule
    elif kind == "question_answering":
        module = QuestionAnsweringModule
        if task["has_answerability_head"]:
            model = AlbertForAnswerableQuestionAnswering(config)
        else:
            model = AlbertForQuestionAnswering(config)
    elif kind == "classifier":
        model = AlbertForSequenceClassification(config, len(task["labels"]))
        module = ClassifierModule
    else:
        model, module = AlbertForSequenceClassification(config, 1), RegressorModule
    model.create_variables()
    model_directory.restore_weights(model, checkpoint)
    return module(model, *rest, task)
