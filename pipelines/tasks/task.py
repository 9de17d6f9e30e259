"""The interface of a task: its answers and its methods."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.kinds import KINDS
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from .reading.sequences import Encoder, Packed, Sequences, pack_in_blocks
from .reading.tables import write_table

Outputs = list[dict[str, np.ndarray]]
Files = Mapping[str, Union[str, Sequence[str]]]  # split -> its file or files
Columns = Mapping[str, Optional[str]]  # field -> column; None: there is no such column


class Answers(NamedTuple):
    """A model's answers to examples, as columns with one value per example.

    `columns` has JSON values: `id`, `label` if all examples have answers, `prediction`, and more.
    `exact` has further values for metrics and files of fine-tuning.
    """

    columns: dict[str, list]
    exact: dict[str, Sequence]

    def rows(self) -> Iterator[dict]:
        """Yields the values of each example by name."""
        columns = {**self.columns, **self.exact}
        for values in zip(*columns.values()):
            yield dict(zip(columns, values))


class Description(NamedTuple):
    """The content of task.json in three parts.

    Attributes:
      model: values that affect the weights or that exports need; `kind` is one of KINDS.
      decoding: settings that convert the model's outputs into answers, if any.
      source: settings for reading files to predict.
    """

    model: dict[str, Any]
    decoding: dict[str, Any]
    source: dict[str, Any]


class Task(abc.ABC):
    """A task with its files. The caller has checked the flags; `read` checks the files.

    Args:
      name: see --task.
      files: split -> its file or files; the test split may be without answers.
      columns: field -> column of the files, if not the default in `fields`. Others are ignored.

    Attributes:
      files: split -> its files; splits without files are left out.
      columns: field -> column; None: there is no such column.
      fields: field -> its default column; empty for a task with files of its own format.
      stored: arguments of the class that task.json has under the same names.
      best_metric: the metric of `score` that selects the best checkpoint; higher is better.
      block_size: maximum number of examples to tokenize at a time.
      sequences_per_example: see Sequences.
    """

    best_metric: str
    fields: ClassVar[dict[str, str | None]] = {}
    stored: ClassVar[tuple[str, ...]] = ()
    block_size = 1000
    sequences_per_example = 1

    def __init__(self, name: str, files: Files, columns: Columns | None = None):
        self.name = name
        self.columns = {name: (columns or {}).get(name, of) for name, of in self.fields.items()}
        self.files: dict[str, list[str]] = {
            split: [paths] if isinstance(paths, str) else list(paths)
            for split, paths in files.items()
            if paths
        }

    @classmethod
    def restore(cls, description: dict, columns: Mapping[str, str], quoting: str | None) -> Task:
        """Returns the task of a finished model, without files; for the arguments see task_of."""
        for field, column in columns.items():
            if field not in cls.fields:
                raise UserError(
                    f"--{field}_column does not apply to a model of kind {description['kind']}"
                )
            if not column and field != "label" and cls.fields[field]:
                raise UserError(f"--{field}_column=: the model reads this column; give its name")
        given = {**description.get("columns", {}), **columns}
        named = {field: given[field] or None for field in cls.fields if field in given}
        if quoting:
            description = {**description, "quoting": quoting}
        arguments = {name: description[name] for name in cls.stored if name in description}
        return cls(description["task"], {}, named, **arguments)

    def read(self, split: str) -> list | None:
        """Returns the examples of a split, in the files' order; None if there is no such split.

        `split` is "train", "dev" or one of `other_splits`. "train" and "dev" must have answers.
        """
        paths = self.files.get(split)
        return paths and list(read_files(self, paths, needs_answers=split != "test"))

    def other_splits(self) -> list[str]:
        """Returns the splits to predict in addition to dev, with or without answers."""
        return ["test"] if "test" in self.files else []

    def read_file(self, path: str, first: int = 0, needs_answers: bool = False) -> Iterator:
        """Yields a file's examples one by one, numbered from `first`; all or none have answers.

        A task without `files` overrides `read` and `other_splits` instead.
        """
        raise NotImplementedError

    def summarise(self, examples: list) -> list[str]:
        """Returns lines for the plan: notes about the answers of examples, and warnings."""
        return []

    def encode(
        self, examples: list, tokenizer: AlbertTokenizer, max_seq_length: int, training: bool
    ) -> tuple[Sequences, list]:
        """Returns sequences (with labels in training) of at most `max_seq_length`, and features."""
        encoder = Encoder(tokenizer, max_seq_length)
        sequences, features = pack_in_blocks(
            examples, self.block_size, lambda block, first: self.pack(block, first, encoder)
        )
        labels = self.targets(examples, features, max_seq_length) if training else {}
        changes = {"labels": labels, "sequences_per_example": self.sequences_per_example}
        return dataclasses.replace(sequences, **changes), features

    @abc.abstractmethod
    def pack(self, examples: list, first: int, encoder: Encoder) -> Packed:
        """Returns packed sequences, their full lengths, and the features.

        A feature is what `answers` must know about a sequence, or about all sequences of an
        example. Every example must have a feature. `first` is the number of the first example.
        """

    @abc.abstractmethod
    def targets(self, examples: list, features: list, max_seq_length: int) -> dict[str, np.ndarray]:
        """Returns the labels for training by name, arrays [features, ...]."""

    def owners(self, features: list) -> Sequence[int]:
        """Returns the index of each feature's example, in ascending order."""
        return range(len(features))

    @abc.abstractmethod
    def description(self) -> Description:
        """Returns the content of task.json."""

    @abc.abstractmethod
    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the loss of each example, float32 [b]; `batch` holds the labels by name."""

    @abc.abstractmethod
    def answers(self, examples: list, features: list | None, outputs: Outputs) -> Answers:
        """Returns a model's answers.

        `outputs` has one dict per feature, in order; arrays [L, ...] may be padded. Without
        `features` the outputs come from an export: one dict per example.
        """

    @abc.abstractmethod
    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """Returns the task's metrics; empty if the rows have no `label`.

        `rows` are Answers.rows. If they have `columns` only, metrics that need `exact` are missing.
        """

    def intervals(self, rows: Iterable[dict]) -> dict[str, list[float]]:
        """Returns [low, high] of metrics of `score`, for rows with a `label`; empty if unknown."""
        return {}

    def details(self, examples: list, answers: Answers) -> dict:
        """Returns further JSON values of a split for results.json, besides the metrics."""
        return {}

    def write(self, directory: str, split: str, examples: list, answers: Answers) -> list[str]:
        """Writes answers (default: SPLIT_predictions.tsv) and pictures; returns answers' paths."""
        path = os.path.join(directory, f"{split}_predictions.tsv")
        write_table(path, answers.columns)
        return [path]


def create_model(task: Task, config: AlbertConfig, recompute: bool = False) -> tf.keras.Model:
    """Returns the model: (inputs, dropout_seed) -> dict of outputs, each [examples, ...]."""
    description = task.description().model
    return KINDS[description["kind"]].create_model(config, description, recompute)


def read_files(task: Task, paths: Sequence[str], needs_answers: bool = False) -> Iterator:
    """Yields the examples of files one by one; rows without an id are numbered across files."""
    number, first = 0, {}  # whether a file has answers -> the first such file
    for path in paths:
        is_answered = None
        for example in task.read_file(path, number, needs_answers):
            if is_answered is None:
                is_answered = example.is_answered
                first.setdefault(is_answered, path)
                if len(first) > 1:
                    raise UserError(
                        f"{first[True]} has answers, {first[False]} has none: give files of "
                        "one kind at a time"
                    )
            yield example
            number += 1
