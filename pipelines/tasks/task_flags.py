"""Flags that select a task and its data."""

import os
from collections.abc import Mapping

import tensorflow as tf
from absl import flags

from albert_tf.answering.sentences import POOLINGS
from albert_tf.kinds import DOC_STRIDE
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from . import glue
from .classification import ClassificationTask
from .embedding import EmbeddingTask
from .multilabel import MultiLabelTask
from .multiple_choice import MultipleChoiceTask
from .race import RaceTask
from .reading import tables
from .running.defaults import DEV_FRACTION
from .squad import SquadTask
from .task import Files, Task
from .token_classification import TokenClassificationTask

_SQUAD_FILES = {
    "squad_v1": {"train": "train-v1.1.json", "dev": "dev-v1.1.json"},
    "squad_v2": {"train": "train-v2.0.json", "dev": "dev-v2.0.json"},
}
_OF_TEXTS = ("classification", "regression", "multilabel")
_WITH_FOLDS = (*_OF_TEXTS, "multiple_choice", "token_classification")
_OWN = (*_WITH_FOLDS, "embedding")
_OFFICIAL = ("race", *glue.TASKS)  # read --data_dir alone
# Maps a flag to the tasks that use it. It is refused for all other tasks.
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "data_dir": (*_OFFICIAL, *_SQUAD_FILES),
    **dict.fromkeys(("train_file", "dev_file", "test_file"), (*_SQUAD_FILES, *_OWN)),
    **dict.fromkeys(("text_column", "label_column", "id_column"), _OWN),
    "text_pair_column": (*_OF_TEXTS, "multiple_choice", "embedding"),
    "quoting": (*_OF_TEXTS, "embedding"),
    **dict.fromkeys(("negative_column", "pooling"), ("embedding",)),
    "folds": _WITH_FOLDS,
    "labels": ("classification", "multilabel", "token_classification"),
    "label_separator": ("multilabel",),
    "class_weights": ("classification",),
    "options_column": ("multiple_choice",),
    "doc_stride": (*_SQUAD_FILES, "token_classification"),
    **dict.fromkeys(("squad_head", "null_threshold"), ("squad_v2",)),
}
# Maps the name of a task, which is `task` in task.json, to the class that restores it.
TASKS: dict[str, type[Task]] = {
    **dict.fromkeys(glue.TASKS, glue.GlueTask),
    **dict.fromkeys(_SQUAD_FILES, SquadTask),
    "race": MultipleChoiceTask,  # which reads tables
    "classification": ClassificationTask,
    "regression": ClassificationTask,
    "multilabel": MultiLabelTask,
    "multiple_choice": MultipleChoiceTask,
    "token_classification": TokenClassificationTask,
    "embedding": EmbeddingTask,
}


def define_task_flags() -> None:
    """Defines the flags that create_task reads."""
    flags.DEFINE_enum(
        "task",
        None,
        [*TASKS],
        f"GLUE, SQuAD and RACE tasks read --data_dir. {', '.join(_OWN)} read files of your own.",
        required=True,
    )
    flags.DEFINE_string("data_dir", None, "Directory of the task's downloaded files.")
    for split in ("train", "dev", "test"):
        flags.DEFINE_string(
            f"{split}_file",
            None,
            "Paths or globs. Your own data: .csv or .tsv with a header, .jsonl, .parquet, or .json "
            "with an array of objects. SQuAD: JSON files to use instead of the file in --data_dir. "
            "Files may be compressed (.gz .bz2 .xz .zst)."
            f"{' Answers are optional.' if split == 'test' else ''}",
        )
    flags.DEFINE_float(
        "dev_fraction",
        None,
        "Fraction of the training rows to use as the dev set, if there is no dev file. Default: "
        f"{DEV_FRACTION} for files of your own, unless --eval_steps=0. The split is stratified by "
        "label. Rows that share a text are kept in the same set.",
        lower_bound=0.0,
        upper_bound=0.9,
    )
    flags.DEFINE_integer(
        "folds",
        None,
        "Number of folds for cross-validation. Each fold is predicted by a model trained on the "
        "other folds. The final weights are used, unless --eval_steps is given.",
        lower_bound=2,
    )
    flags.DEFINE_enum(
        "quoting",
        "csv",
        tables.QUOTING,
        "Quoting in .csv and .tsv files. csv: the quoting of spreadsheets and pandas. none: "
        "quotation marks are ordinary characters, as in the GLUE files.",
    )
    _define_flags_of_some_tasks()


def _define_flags_of_some_tasks() -> None:
    flags.DEFINE_string(
        "text_column", "text", "Column of the text (multiple_choice: of the passage)."
    )
    flags.DEFINE_string(
        "text_pair_column", None, "Column of a second text (multiple_choice: of the question)."
    )
    flags.DEFINE_string(
        "label_column", "label", "Column of the label, number or option. embedding: may be empty."
    )
    flags.DEFINE_string("id_column", None, "Column of the row's id. Default: the row's number.")
    flags.DEFINE_string("options_column", "options", "multiple_choice: column of the options.")
    flags.DEFINE_list(
        "labels",
        None,
        "All labels, in the order of the outputs. Default: the training file's labels, sorted.",
    )
    flags.DEFINE_string("label_separator", ",", "multilabel: separator of the labels in a cell.")
    flags.DEFINE_enum(
        "class_weights",
        None,
        ["balanced"],
        "classification: balanced: all labels have the same total weight in the loss, even if they "
        "are rare.",
    )
    flags.DEFINE_integer(
        "doc_stride",
        DOC_STRIDE,
        "SQuAD, token_classification: pieces between the starts of two windows.",
        1,
    )
    flags.DEFINE_enum(
        "squad_head",
        "beams",
        ["beams", "spans"],
        "Head for SQuAD 2.0. beams: the reference's head, which predicts beams of start and end "
        "positions and whether there is an answer. spans: BERT's, as in Hugging Face.",
    )
    flags.DEFINE_float(
        "null_threshold",
        SquadTask.null_threshold,
        "SQuAD 2.0: predict no answer if the null odds exceed this threshold. results.json "
        "contains the best threshold on dev.",
    )
    flags.DEFINE_string(
        "negative_column", None, "embedding: column of a text that does not belong to the first."
    )
    flags.DEFINE_enum(
        "pooling", "mean", POOLINGS, "embedding: vectors are the mean output, or that at [CLS]."
    )


def create_task(values: flags.FlagValues) -> Task:
    """Creates the task that the flags select."""
    _check_flags(values)
    name = values.task
    given = {
        split: files.match_files(patterns, f"{split}_file")
        for split in ("train", "dev", "test")
        if (patterns := values[f"{split}_file"].value)
    }
    if name in glue.TASKS:
        return glue.GlueTask(name, values.data_dir)
    if name == "race":
        return RaceTask(values.data_dir)
    if name in _SQUAD_FILES:
        return SquadTask(
            _squad_files(values, given),
            may_be_impossible=name == "squad_v2",
            has_answerability_head=name == "squad_v2" and values.squad_head == "beams",
            doc_stride=values.doc_stride,
            null_threshold=values.null_threshold,
        )
    return _table_task(values, given)


def chosen_flags(values: flags.FlagValues, task: Task) -> dict[str, float]:
    """Maps flags that were not given, and that the data alone determine, to their values."""
    has_dev = values.dev_file or values.folds or values.task not in _OWN
    chosen: dict[str, float | None] = {
        # The rows on which a fold is scored must not be used to select its weights.
        "eval_steps": 0 if values.folds else None,
        "dev_fraction": None if has_dev or values.eval_steps == 0 else DEV_FRACTION,
        "hidden_dropout_prob": task.hidden_dropout_prob,
    }
    return {n: new for n, new in chosen.items() if new is not None and values[n].value is None}


def _check_flags(values: flags.FlagValues) -> None:
    """Raises a UserError for flags of other tasks, no --data_dir, or invalid column names."""
    for flag, tasks in _ONLY_FOR.items():
        if values[flag].present and values.task not in tasks:
            raise UserError(
                f"--{flag} does not apply to --task={values.task}, only to {', '.join(tasks)}: "
                "remove it"
            )
    if values.task in _OFFICIAL:
        _require_data_dir(values)
    if values.folds and (values.dev_file or values.dev_fraction):
        raise UserError("--folds divides the training rows: remove --dev_file and --dev_fraction")
    flag_of: dict[str, str] = {}
    of_texts = ("text_column", "text_pair_column", "negative_column", "options_column")
    for flag in (*of_texts, "label_column"):
        column = values[flag].value
        if column == "" and (flag, values.task) != ("label_column", "embedding"):
            raise UserError(f"--{flag} is empty: name the column, or remove the flag")
        # Otherwise, for example, the text could also be used as the label.
        if column and flag_of.setdefault(column, flag) != flag:
            raise UserError(f"--{flag_of[column]} and --{flag} both name the column {column!r}")


def _table_task(values: flags.FlagValues, given: Mapping[str, list[str]]) -> Task:
    """Creates the task for a user's own files."""
    name = values.task
    if "train" not in given:
        raise UserError(
            f"--task={name}: give --train_file (and --dev_file, if dev is to select the weights)"
        )
    fields = ("text", "label", "id", "text_pair", "negative", "options")
    columns = {field: values[f"{field}_column"].value or None for field in fields}
    if name == "multiple_choice":
        columns.update(context=columns["text"], question=columns["text_pair"])
        return MultipleChoiceTask(name, given, columns)
    if name == "token_classification":
        return TokenClassificationTask(name, given, columns, values.labels, values.doc_stride)
    if name == "embedding":
        return EmbeddingTask(name, given, columns, pooling=values.pooling, quoting=values.quoting)
    if name == "multilabel":
        return MultiLabelTask(
            name, given, columns, values.labels, values.quoting, values.label_separator
        )
    return ClassificationTask(
        name,
        given,
        columns,
        labels=values.labels,
        is_regression=name == "regression",
        quoting=values.quoting,
        class_weights=values.class_weights,
    )


def _require_data_dir(values: flags.FlagValues) -> None:
    if not values.data_dir or not tf.io.gfile.isdir(values.data_dir):
        raise UserError(
            f"--data_dir: there is no directory {values.data_dir or ''!r}; give the directory of "
            f"the files of --task={values.task}"
        )


def _squad_files(values: flags.FlagValues, given: dict[str, list[str]]) -> Files:
    """Returns the files of each split: the given files, or else the files in --data_dir."""
    if not values.data_dir and "train" in given:
        return given
    _require_data_dir(values)
    official = {
        split: os.path.join(values.data_dir, file)
        for split, file in _SQUAD_FILES[values.task].items()
    }
    found = {split: path for split, path in official.items() if tf.io.gfile.exists(path)}
    if "train" not in {**found, **given}:
        raise UserError(f"--data_dir: there is no {official['train']!r}; or give --train_file")
    return {**found, **given}
