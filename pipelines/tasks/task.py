"""The interface of fine-tuning tasks."""

import abc
import copy
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.kinds import KINDS
from albert_tf.storage.errors import UserError
from albert_tf.text.in_graph import on_host
from albert_tf.text.tokenization import AlbertTokenizer
from .reading.examples import required
from .reading.sequences import Encoder, Packed, Sequences, pack_in_blocks
from .reading.tables import Row, read_rows, write_table

Outputs = list[dict[str, Any]]  # arrays, or scalars such as bytes
Files = Mapping[str, str | Sequence[str]]  # maps a split to its file or files
Columns = Mapping[str, str | None]  # maps a field to its column, or to None


class Answers(NamedTuple):
    """A model's answers to examples, as columns with one value per example.

    `columns` contains JSON values: `id`, `prediction`, task-specific columns, and `label` if all
    examples have answers. `exact` contains other values for metrics and fine-tuning's output files.
    """

    columns: dict[str, list]
    exact: Mapping[str, Any]

    def rows(self) -> Iterator[dict]:
        """Yields the values of each example as a dict with column names as keys."""
        columns = {**self.columns, **self.exact}
        for values in zip(*columns.values()):
            yield dict(zip(columns, values))


class Description(NamedTuple):
    """The content of task.json, in three parts."""

    model: dict[str, Any]  # values that affect the weights or that exports need, such as `kind`
    decoding: dict[str, Any]  # settings for converting outputs to answers; may be empty
    source: dict[str, Any]  # settings for reading the files to predict


class Task(abc.ABC):
    """A task and its data files. A task without `files` overrides `read` and `other_splits`.

    Args:
      name: see --task.
      files: maps a split to its file or files. Answers are optional in the test split.
      columns: maps a field to its column. Default: `fields`. Unknown fields are ignored.

    Attributes:
      files: maps a split to its files. Splits without files are omitted.
      columns: maps a field to its column, or to None if there is no such column.
      fields: maps a field to its default column. Empty if the task has its own file format.
      stored: names of the constructor's arguments that are stored in task.json.
      quoting: see tables.read_table.
      block_size: maximum number of examples to tokenize at once.
      has_dev_loss: whether a prediction has the outputs that `losses` needs.
    """

    fields: ClassVar[dict[str, str | None]] = {}
    stored: ClassVar[tuple[str, ...]] = ()
    quoting = "csv"
    block_size = 1000
    has_dev_loss = True

    def __init__(self, name: str, files: Files, columns: Columns | None = None):
        self.name = name
        self.columns = {name: (columns or {}).get(name, of) for name, of in self.fields.items()}
        self.files: dict[str, list[str]] = {
            split: [paths] if isinstance(paths, str) else list(paths)
            for split, paths in files.items()
            if paths
        }

    @property
    @abc.abstractmethod
    def best_metric(self) -> str:
        """Metric in `score` whose highest value selects the best checkpoint (then: loss on dev)."""

    @property
    def hidden_dropout_prob(self) -> float | None:
        """The default of --hidden_dropout_prob. None: the config's value."""
        return None

    def column(self, field: str) -> str:
        """Returns the column of a field that has one."""
        return required(self.columns[field])

    def numbered(self) -> "Task":
        """Returns a copy that numbers the rows instead of reading their ids."""
        task = copy.copy(self)
        task.columns = {**self.columns, **dict.fromkeys(self.columns.keys() & {"id"})}
        return task

    @classmethod
    def restore(cls, description: dict, columns: Mapping[str, str], quoting: str | None) -> "Task":
        """Creates the task of a finished model, without files. For the arguments see task_of."""
        for field, column in columns.items():
            if field not in cls.fields:
                raise UserError(
                    f"--{field}_column does not apply to a model of kind {description['kind']}"
                )
            if not column and field != "label" and cls.fields[field]:
                raise UserError(f"--{field}_column=: the model reads this column; give its name")
        given = {**description.get("columns", {}), **columns}
        named = {field: column or None for field, column in given.items()}
        if quoting:
            if "quoting" not in cls.stored:
                raise UserError(
                    f"--quoting does not apply to a model of kind {description['kind']}"
                )
            description = {**description, "quoting": quoting}
        arguments = {name: description[name] for name in cls.stored if name in description}
        return cls(description["task"], {}, named, **arguments)

    def read(self, split: str) -> list | None:
        """Returns the examples of a split in file order, or None if there is no such split.

        `split` is "train", "dev" or one of `other_splits`. Answers are required in train and dev.
        """
        paths = self.files.get(split)
        return paths and list(read_files(self, paths, needs_answers=split != "test"))

    def other_splits(self) -> list[str]:
        """Returns the splits to predict in addition to dev, with or without answers."""
        return ["test"] if "test" in self.files else []

    def read_file(self, path: str, first: int = 0, needs_answers: bool = False) -> Iterator:
        """Yields the examples of a file, numbered from `first`. All or none must have answers."""
        return self.examples(read_rows(path, first, needs_answers, self.columns, self.quoting))

    @abc.abstractmethod
    def examples(self, rows: Iterable[Row]) -> Iterator:
        """Yields the examples of rows with the columns `columns`, in files or in memory."""

    def summarise(self, examples: list) -> list[str]:
        """Returns lines for the run's plan: statistics of the answers, and warnings."""
        return []

    def weighted(self, examples: list) -> "Task":
        """Returns a task that weights its losses as the training examples require; checks them."""
        return self

    def initialise(self, model: tf.keras.Model) -> None:  # noqa: B027 - most tasks need nothing
        """Sets variables of a new model to values of the training data."""

    def objection(self, config: AlbertConfig, settings: Any, strategy: Any) -> str:
        """Returns why the task cannot be trained with these FinetuneSettings, or ""."""
        return ""

    def encode(
        self, examples: list, tokenizer: AlbertTokenizer, max_seq_length: int, training: bool
    ) -> tuple[Sequences, list]:
        """Returns sequences (at most `max_seq_length` pieces; labels if `training`), features."""
        encoder = Encoder(tokenizer, max_seq_length)
        sequences, features = pack_in_blocks(
            examples, self.block_size, lambda block, first: self.pack(block, first, encoder)
        )
        labels = self.targets(examples, features, max_seq_length) if training else {}
        number = len(sequences) // max(1, len(features)) or 1
        return dataclasses.replace(sequences, labels=labels, sequences_per_example=number), features

    @abc.abstractmethod
    def pack(self, examples: list, first: int, encoder: Encoder) -> Packed:
        """Returns packed sequences, their full lengths, and the features.

        A feature contains what `answers` needs about a sequence, or about all sequences of an
        example. Every example must have a feature. `first` is the index of the first example.
        """

    @abc.abstractmethod
    def targets(self, examples: list, features: list, max_seq_length: int) -> dict[str, np.ndarray]:
        """Returns a dict of label arrays for `losses`. Each has shape [features, ...]."""

    def owners(self, features: list) -> Sequence[int]:
        """Returns the index of the example for each feature. Indices are in ascending order."""
        return range(len(features))

    @abc.abstractmethod
    def description(self) -> Description:
        """Returns the content of task.json."""

    @abc.abstractmethod
    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the loss of each example, float32 [b]. `batch` contains the label tensors."""

    @abc.abstractmethod
    def answers(self, examples: list, features: list | None, outputs: Outputs) -> Answers:
        """Converts a model's outputs to answers.

        `outputs` contains one dict per feature, in order. Arrays [L, ...] may be padded. If
        `features` is None, they are the final outputs of a classifier or regressor that was
        exported, with one dict per example.
        """

    @abc.abstractmethod
    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """Returns the task's metrics, or an empty dict if the rows have no `label`.

        `rows` come from Answers.rows. Without `exact` the metrics that need it are omitted.
        """

    def intervals(self, rows: Iterable[dict]) -> dict[str, list[float]]:
        """Maps metrics of `score` to intervals [low, high], if known. Rows must have a `label`."""
        return {}

    def baseline_sample(self, train: list) -> list:
        """Returns the examples for `baselines` to fit on: all, or as many as take seconds."""
        return train

    def baselines(self, train: list, dev: list) -> dict[str, Iterable[dict]]:
        """Maps names of simple models, fitted on `train`, to rows of `dev` for `score`."""
        return {}

    def details(self, examples: list, answers: Answers) -> dict:
        """Returns JSON values of a split for results.json, in addition to the metrics."""
        return {"intervals": found} if (found := self.intervals(answers.rows())) else {}

    def write(self, directory: str, split: str, examples: list, answers: Answers) -> list[str]:
        """Writes SPLIT_predictions.tsv or other files and pictures. Returns the files' paths."""
        path = os.path.join(directory, f"{split}_predictions.tsv")
        write_table(path, answers.columns)
        return [path]


def create_model(task: Task, config: AlbertConfig, recompute: bool = False) -> tf.keras.Model:
    """Creates the model. It maps (inputs, dropout_seed) to a dict of outputs [examples, ...]."""
    description = task.description().model
    return KINDS[description["kind"]].create_model(config, description, recompute)


def final_answers(
    answers: Callable[[tf.Tensor], dict[str, tf.Tensor]],
    features: list | None,
    outputs: Outputs,
) -> np.ndarray:
    """Returns the probabilities or numbers of the examples, float64 [n, ...]; see Task.answers.

    For a run, `answers` (see Kind) computes them from the logits. The outputs of an export are
    final.
    """
    if features is None:
        name = "value" if "value" in outputs[0] else "probabilities"
        return np.stack([output[name] for output in outputs]).astype(np.float64)
    logits = np.stack([output["logits"] for output in outputs]).astype(np.float64)
    with on_host():
        [values] = answers(tf.constant(logits)).values()
    return values.numpy()


def read_files(task: Task, paths: Sequence[str], needs_answers: bool = False) -> Iterator:
    """Yields the examples of several files. Rows without an id are numbered across all files."""
    number = 0
    first: dict[bool, str] = {}  # first file with answers (True) and without (False)
    for path in paths:
        for example in task.read_file(path, number, needs_answers):
            first.setdefault(example.is_answered, path)
            if len(first) > 1:
                raise UserError(
                    f"{first[True]} has answers, {first[False]} has none: give files of one kind "
                    "at a time"
                )
            yield example
            number += 1
