"""A label, or a number, for a text or a pair of texts."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from scipy import special

from albert_tf import losses
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.models import AlbertForSequenceClassification
from albert_tf.packing import NUM_SPECIAL_PIECES
from albert_tf.tokenization import AlbertTokenizer
from pipelines.tasks.metrics import METRICS
from pipelines.tasks.tables import (
    as_label,
    as_number,
    as_text,
    has_column,
    read_table,
    write_table,
)
from pipelines.tasks.task import Outputs, Sequences, Task, file_lists, join

# Examples tokenized at a time: as lists of Python numbers pieces take ten times the room.
_BLOCK_EXAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Example:
    """One text or a pair, and what is to be said of it.

    Attributes:
      id: its name in the file, or the number of its row, from 0.
      text: the first text.
      text_pair: the second; None: there is none.
      label: one of the task's labels, or a number; None: not known.
      part: of the split, where it has several that are scored apart.
    """

    id: str
    text: str
    text_pair: str | None
    label: str | float | None
    part: str = ""


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of the columns, or fields of JSON; None: there is no such column.

    A file whose answers are not known needs no label column.
    """

    text: str
    label: str
    text_pair: str | None = None
    id: str | None = None


class ClassificationTask(Task):
    """Labels for texts or pairs of texts, or numbers.

    Args:
      name: as of --task.
      files: "train", "dev", "test" -> its file or files, as of tables.read_table; test
        may be without answers. What there is not is left out.
      columns: where in the files it stands.
      labels: all that there are, in the order of the model's outputs; None: those of the training
        file, sorted.
      is_regression: numbers in place of labels.
      metrics: names of metrics.METRICS; the first says which checkpoint is best.
    """

    def __init__(
        self,
        name: str,
        files: Mapping[str, str | Sequence[str]],
        columns: Columns,
        labels: Sequence[str] | None = None,
        is_regression: bool = False,
        metrics: Sequence[str] | None = None,
    ):
        self.name = name
        self.files = file_lists(files)
        self.columns = columns
        self.is_regression = is_regression
        self.metrics = metrics or (
            ("pearson", "spearman") if is_regression else ("accuracy", "macro_f1")
        )
        self.best_metric = self.metrics[0]
        if labels is not None and len(set(labels)) < max(2, len(labels)):
            raise UserError(f"--labels={','.join(labels)}: expected two different labels or more")
        self._labels = tuple(labels) if labels else None

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of the model's outputs; none for numbers.

        Raises:
          ValueError: if they are to be found in the training file and it has less than two.
        """
        if self.is_regression:
            return ()
        if self._labels:
            return self._labels
        paths, column = self.files.get("train"), self.columns.label
        if not paths:
            raise UserError(
                f"the labels of {self.name} are not known: give the training file, or name them"
            )
        labels = {
            as_label(row[column], column, f"{path}:{number}")
            for path in paths
            for number, row in read_table(path, [column])
        }
        if len(labels) < 2:
            raise UserError(
                f"{', '.join(paths)}: every {column!r} is {labels.pop()!r}; expected two labels "
                "or more to tell apart"
            )
        return tuple(sorted(labels))

    def read(self, split: str) -> list[Example] | None:
        """See Task.read."""
        if split not in self.files:
            return None
        examples = []
        for path in self.files[split]:
            has_labels = split != "test" or has_column(path, self.columns.label)
            examples += self._read_file(path, has_labels, first=len(examples))
        return examples

    def _read_file(
        self, path: str, has_labels: bool, part: str = "", first: int = 0, **table_arguments
    ) -> list[Example]:
        """Returns the examples of a file.

        Args:
          first: the number of its first row.
          part: as of Example.
          table_arguments: as of tables.read_table.
        """
        names = dataclasses.replace(self.columns, label=self.columns.label if has_labels else None)
        columns = [column for column in dataclasses.astuple(names) if column]
        examples = []
        for number, row in read_table(path, columns, **table_arguments):
            where = f"{path}:{number}"
            texts = [
                None if column is None else as_text(row[column], column, where)
                for column in (names.text, names.text_pair)
            ]
            label = self._label(row[names.label], where) if has_labels else None
            name = str(first + len(examples))
            if names.id:
                name = as_text(str(row[names.id]), names.id, where)
            examples.append(Example(f"{part}-{name}" if part else name, *texts, label, part))
        return examples

    def _label(self, value: object, where: str) -> str | float:
        column = self.columns.label
        if self.is_regression:
            return as_number(value, column, where)
        label = as_label(value, column, where)
        if label not in self.labels:
            known = ", ".join(map(repr, self.labels[:20])) + ", ..." * (len(self.labels) > 20)
            source = "the labels are" if self._labels else "the training file has"
            raise UserError(f"{where}: unknown label {label!r} in {column!r}; {source} {known}")
        return label

    def encode(
        self,
        examples: list[Example],
        tokenizer: AlbertTokenizer,
        max_seq_length: int,
        training: bool,
    ) -> tuple[Sequences, list[Example]]:
        """See Task.encode; what `score` needs to know of an example is itself."""
        labels = {}
        if all(example.label is not None for example in examples):
            labels["labels"] = self._label_array(examples)
        pieces = _truncated_pieces(examples, tokenizer, max_seq_length)
        return join(tokenizer, pieces, labels), examples

    def _label_array(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns float32 [n] numbers or int32 [n] places among the labels."""
        if self.is_regression:
            return np.array([example.label for example in examples], np.float32)
        places = {label: place for place, label in enumerate(self.labels)}
        return np.array([places[example.label] for example in examples], np.int32)

    def create_model(self, config: AlbertConfig, recompute: bool) -> tf.keras.Model:
        """See Task.create_model."""
        num_labels = 1 if self.is_regression else len(self.labels)
        return AlbertForSequenceClassification(config, num_labels, recompute)

    def description(self) -> dict:
        """See Task.description."""
        has_pairs = self.columns.text_pair is not None
        if self.is_regression:
            return {"kind": "regressor", "has_pairs": has_pairs}
        return {"kind": "classifier", "has_pairs": has_pairs, "labels": list(self.labels)}

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """See Task.losses."""
        loss = losses.regression_loss if self.is_regression else losses.classification_loss
        return loss(outputs["logits"], batch["labels"])

    def predict(self, outputs: Outputs) -> np.ndarray:
        """Returns float [n] numbers or int [n] places among the labels."""
        logits = np.stack([output["logits"] for output in outputs])
        return logits[:, 0] if self.is_regression else logits.argmax(axis=1)

    def score(
        self, examples: list[Example], features: list[Example], outputs: Outputs
    ) -> dict[str, float]:
        """See Task.score."""
        if any(example.label is None for example in examples):
            return {}
        labels, predictions = self._label_array(examples), self.predict(outputs)
        return {name: float(METRICS[name](labels, predictions)) for name in self.metrics}

    def write_predictions(
        self,
        directory: str,
        split: str,
        examples: list[Example],
        features: list[Example],
        outputs: Outputs,
    ) -> list[str]:
        """Writes SPLIT_predictions.tsv: id, label if it is known, prediction, probabilities."""
        columns = {"id": [example.id for example in examples]}
        if all(example.label is not None for example in examples):
            columns["label"] = [example.label for example in examples]
        columns["prediction"] = self.predict(outputs)
        if not self.is_regression:
            columns["prediction"] = [self.labels[place] for place in columns["prediction"]]
            logits = np.stack([output["logits"] for output in outputs])
            probabilities = special.softmax(logits, axis=-1)
            for label, of_label in zip(self.labels, probabilities.T):
                columns[f"probability_{label}"] = [f"{number:.6f}" for number in of_label]
        path = os.path.join(directory, f"{split}_predictions.tsv")
        write_table(path, columns)
        return [path]


def _truncated_pieces(
    examples: Sequence[Example], tokenizer: AlbertTokenizer, max_seq_length: int
) -> Iterator[tuple[list[int], list[int] | None]]:
    """Yields the pieces of each example's texts that have room between [CLS] and [SEP]."""
    for begin in range(0, len(examples), _BLOCK_EXAMPLES):
        block = examples[begin : begin + _BLOCK_EXAMPLES]
        firsts = tokenizer.encode_batch([example.text for example in block])
        seconds = tokenizer.encode_batch([example.text_pair or "" for example in block])
        for example, first, second in zip(block, firsts, seconds):
            if example.text_pair is None:
                yield first[: max_seq_length - 2], None
            else:
                yield truncate_pair(first, second, max_seq_length - NUM_SPECIAL_PIECES)


def truncate_pair(
    first: Sequence[int], second: Sequence[int], room: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Takes pieces off the end of the longer one until both fit, of the second where none is.

    Source: the reference's classifier_utils._truncate_seq_pair.
    """
    first = first[: max(room - len(second), (room + 1) // 2)]
    return first, second[: room - len(first)]
