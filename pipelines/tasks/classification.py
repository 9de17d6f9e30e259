"""A label, or a number, for a text or a pair of texts."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
from scipy import special

from albert_tf import losses
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForSequenceClassification
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.packing import Packer
from albert_tf.text.tokenization import AlbertTokenizer
from .reading.class_weights import as_array
from .reading.split_report import describe_labels, describe_texts, warn_of_rounding
from .reading.tables import (
    as_label,
    as_number,
    as_text,
    check_labels,
    has_answers,
    label_key,
    listed_labels,
    read_table,
    write_table,
)
from .scoring.classes import confusion_matrix, figures_of_labels, intervals
from .scoring.figures import MOST_LABELS, draw_confusion_matrix
from .scoring.metrics import METRICS
from .task import Outputs, Sequences, Task, file_lists, in_blocks, join, tokenize

# Examples tokenized at a time.
_BLOCK_EXAMPLES = 4000
# With more labels only the probabilities of the likeliest are written.
_MOST_PROBABILITIES = 20
_FILES = ("predictions.tsv", "errors.csv")
_SHOWN = ("id", "label", "prediction")  # of `answers`


@dataclasses.dataclass(frozen=True)
class Example:
    """One text or a pair, and what is to be said of it.

    Attributes:
      id: its name in the file, or the number of its row, from 0.
      text: the first text.
      text_pair: the second; None: there is none.
      label: one of the task's labels, or a number; None: not known.
      part: of the split, where it has several that are scored apart.
      line: FILE:LINE of its row.
    """

    id: str
    text: str
    text_pair: str | None
    label: str | float | None
    part: str = ""
    line: str = dataclasses.field(default="", repr=False, compare=False)


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
      columns: names of the files' columns.
      labels: all that there are, in the order of the model's outputs; None: the labels in the
        training file, sorted.
      is_regression: numbers in place of labels.
      metrics: names of metrics.METRICS; the first selects the best checkpoint.
      class_weights: label -> weight of its examples' losses; "balanced": each label counts alike,
        by the training examples; None: each example does.
      quoting: of the files, as of tables.read_table.

    Attributes:
      top_k: see answers.
    """

    top_k = 5

    def __init__(
        self,
        name: str,
        files: Mapping[str, str | Sequence[str]],
        columns: Columns,
        labels: Sequence[str] | None = None,
        is_regression: bool = False,
        metrics: Sequence[str] | None = None,
        quoting: str = "csv",
        class_weights: Mapping[str, float] | str | None = None,
    ):
        self.name = name
        self.files = file_lists(files)
        self.columns = columns
        self.quoting = quoting
        self.class_weights = class_weights
        self._weights: np.ndarray | None = None  # float32 [labels], known after `encode`
        self.is_regression = is_regression
        self.metrics = metrics or (
            ("pearson", "spearman") if is_regression else ("accuracy", "macro_f1")
        )
        self.best_metric = self.metrics[0]
        self._labels = listed_labels(labels)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of the model's outputs; none for numbers.

        Raises:
          UserError: if they are to be found in the training file and it has less than two, or two
            that are hardly meant to differ.
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
        labels: dict[str, str] = {}  # where each occurs first
        for path in paths:
            for number, row in read_table(path, [column], quoting=self.quoting):
                for label in self.label_names(row[column], where := f"{path}:{number}"):
                    labels.setdefault(label, where)
        check_labels(labels)
        if len(labels) < 2:
            raise UserError(
                f"{', '.join(paths)}: every {column!r} is {', '.join(labels)!r}; expected two "
                "labels or more to tell apart"
            )
        return tuple(sorted(labels))

    def read(self, split: str) -> list[Example] | None:
        """See Task.read."""
        if split not in self.files:
            return None
        if split == "test":
            return list(self.read_files(self.files[split]))
        examples = []
        for path in self.files[split]:
            examples += self._read_rows(path, True, first=len(examples))
        return examples

    def read_file(self, path: str, first: int = 0) -> Iterator[Example]:
        """See Task.read_file."""
        label = self.columns.label
        return self._read_rows(
            path, bool(label) and has_answers(path, label, self.quoting), first=first
        )

    def _read_rows(
        self, path: str, has_labels: bool, part: str = "", first: int = 0, **table_arguments
    ) -> Iterator[Example]:
        """Yields the examples of a file.

        Args:
          path: of a table, as of tables.read_table.
          has_labels: whether the label column is read; without it, JSON must not have it either.
          part: as of Example.
          first: the number of its first row.
          **table_arguments: as of tables.read_table.
        """
        names = dataclasses.replace(self.columns, label=self.columns.label if has_labels else None)
        columns = [column for column in dataclasses.astuple(names) if column]
        absent = None if has_labels else self.columns.label
        rows = read_table(path, columns, quoting=self.quoting, absent=absent, **table_arguments)
        for place, (number, row) in enumerate(rows, start=first):
            where = f"{path}:{number}"
            texts = [
                None if column is None else as_text(row[column], column, where)
                for column in (names.text, names.text_pair)
            ]
            label = self.as_answer(row[names.label], where) if has_labels else None
            name = str(place)
            if names.id:
                name = as_text(str(row[names.id]), names.id, where)
            name = f"{part}-{name}" if part else name
            yield Example(name, *texts, label, part, where)

    def label_names(self, value: object, where: str) -> list[str]:
        """Returns the labels that a cell names."""
        return [as_label(value, self.columns.label, where)]

    def as_answer(self, value: object, where: str) -> str | float:
        """Returns the answer in a cell: Example.label."""
        try:
            if self.is_regression:
                return as_number(value, self.columns.label, where)
            return self.known_label(*self.label_names(value, where), where)
        except UserError as error:
            if value is not None and str(value).strip():
                raise
            raise UserError(
                f"{error}; remove the row, or, if no row has an answer, the column"
            ) from error

    def known_label(self, label: str, where: str) -> str:
        """Returns the label if the model has it.

        Raises:
          UserError: if it does not.
        """
        if label not in self.labels:
            known = ", ".join(map(repr, self.labels[:20])) + ", ..." * (len(self.labels) > 20)
            source = "the labels are" if self._labels else "the training file has"
            near = [name for name in self.labels if label_key(name) == label_key(label)]
            hint = f"; it is almost {near[0]!r}" if near else ""
            column = self.columns.label
            raise UserError(
                f"{where}: unknown label {label!r} in {column!r}; {source} {known}{hint}"
            )
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
            labels["labels"] = self.label_array(examples)
            if self.is_regression:
                labels["labels"] = labels["labels"].astype(np.float32)
        if training and self.class_weights:
            self._weights = as_array(self.class_weights, self.labels, labels["labels"])
        return join(_blocks(examples, tokenizer, max_seq_length), labels), examples

    def summarise(self, examples: list[Example]) -> list[str]:
        """See Task.summarise."""
        lines = []
        if any(example.label is None for example in examples):
            lines.append("without answers")
        elif self.is_regression:
            numbers = np.array([example.label for example in examples])
            low, mean, high = numbers.min(), numbers.mean(), numbers.max()
            lines.append(f"numbers from {low:.4g} to {high:.4g}, mean {mean:.4g}")
            lines += warn_of_rounding(numbers)
        else:
            counts = collections.Counter(example.label for example in examples)
            lines.append(describe_labels(self.labels, counts))
        return lines + describe_texts(examples)

    def group(self, example: Example) -> str:
        """Returns the texts: copies of an example stay together."""
        return "\0".join(text for text in (example.text, example.text_pair) if text)

    def classes(self, example: Example) -> tuple[str, ...]:
        """See Task.classes."""
        return () if self.is_regression else (example.label,)

    def label_array(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns float64 [n] numbers or int32 [n] places among the labels."""
        if self.is_regression:
            return np.array([example.label for example in examples], np.float64)
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
        weights = {"class_weights": self.class_weights} if self.class_weights else {}
        return {
            "kind": "classifier",
            "has_pairs": has_pairs,
            "labels": list(self.labels),
            **weights,
        }

    def source(self) -> dict:
        """See Task.source."""
        return {"columns": dataclasses.asdict(self.columns), "quoting": self.quoting}

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """See Task.losses."""
        if self.is_regression:
            return losses.regression_loss(outputs["logits"], batch["labels"])
        loss = losses.classification_loss(outputs["logits"], batch["labels"])
        if self._weights is None:
            return loss
        return loss * tf.gather(tf.constant(self._weights), batch["labels"])

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
        labels, predictions = self.label_array(examples), self.predict(outputs)
        return {name: float(METRICS[name](labels, predictions)) for name in self.metrics}

    def details(self, examples: list[Example], outputs: Outputs) -> dict:
        """See Task.details: intervals, figures of each label, the confusion matrix if it is small.

        Of the examples without a `part`, as the metrics without a further name.
        """
        chosen = [i for i, example in enumerate(examples) if not example.part]
        if not chosen or not _has_one_label(examples):
            return {}
        labels = self.label_array([examples[i] for i in chosen])
        predictions = self.predict([outputs[i] for i in chosen])
        counts = confusion_matrix(labels, predictions, len(self.labels))
        is_small = len(self.labels) <= MOST_LABELS
        return {
            "intervals": intervals(counts, self.metrics),
            "labels": figures_of_labels(counts, self.labels),
            **({"confusion": counts.tolist()} if is_small else {}),
        }

    def draw(
        self, directory: str, split: str, examples: list[Example], outputs: Outputs
    ) -> list[str]:
        """Writes SPLIT_confusion.png of labels, if they are known and not too many to read."""
        path = os.path.join(directory, f"{split}_confusion.png")
        if not _has_one_label(examples) or len(self.labels) > MOST_LABELS:
            files.remove(path)  # of other examples
            return []
        answers, predictions = self.label_array(examples), self.predict(outputs)
        return [draw_confusion_matrix(path, self.labels, answers, predictions)]

    def answers(
        self, examples: list[Example], features: list[Example], outputs: Outputs
    ) -> dict[str, list]:
        """See Task.answers: id, label if it is known, prediction, probabilities.

        With more than 20 labels only the likeliest `top_k` have columns: `label_1`,
        `probability_1` and so on.
        """
        columns = {"id": [example.id for example in examples]}
        if all(example.label is not None for example in examples):
            columns["label"] = [example.label for example in examples]
        predictions = self.predict(outputs)
        if self.is_regression:
            # The shortest spelling of each float32.
            return {**columns, "prediction": [float(str(number)) for number in predictions]}
        columns["prediction"] = [self.labels[place] for place in predictions]
        logits = np.stack([output["logits"] for output in outputs])
        probabilities = special.softmax(logits.astype(np.float64), axis=-1)
        return {**columns, **self.probability_columns(probabilities)}

    def probability_columns(self, probabilities: np.ndarray) -> dict[str, list]:
        """Returns columns of probabilities, float64 [n, labels], as described at `answers`."""
        columns = {}
        if len(self.labels) <= _MOST_PROBABILITIES:
            for label, of_label in zip(self.labels, probabilities.T):
                columns[f"probability_{label}"] = [round(number, 6) for number in of_label.tolist()]
            return columns
        best = np.argsort(-probabilities, axis=-1, kind="stable")[:, : self.top_k]
        for rank, places in enumerate(best.T, start=1):
            columns[f"label_{rank}"] = [self.labels[place] for place in places]
            of_rank = np.take_along_axis(probabilities, places[:, np.newaxis], axis=1)[:, 0]
            columns[f"probability_{rank}"] = [round(number, 6) for number in of_rank.tolist()]
        return columns

    def score_rows(self, rows: Iterable[dict]) -> dict[str, float]:
        """See Task.score_rows."""
        kind = "d" if self.is_regression else "i"
        labels, predictions = array.array(kind), array.array(kind)
        places = {label: place for place, label in enumerate(self.labels)}
        for row in rows:
            if "label" not in row:
                continue
            for name, values in (("label", labels), ("prediction", predictions)):
                values.append(row[name] if self.is_regression else places[row[name]])
        if not labels:
            return {}
        found = np.array(labels), np.array(predictions)
        return {name: float(METRICS[name](*found)) for name in self.metrics}

    def write_predictions(
        self,
        directory: str,
        split: str,
        examples: list[Example],
        features: list[Example],
        outputs: Outputs,
    ) -> list[str]:
        """Writes SPLIT_predictions.tsv, the columns of `answers`; of labels SPLIT_errors.csv, too.

        The latter has the texts, those first whose own label the model finds least likely.
        """
        columns = self.answers(examples, features, outputs)
        paths = [os.path.join(directory, f"{split}_{name}") for name in _FILES]
        write_table(paths[0], columns)
        if not _has_one_label(examples):
            files.remove(paths[1])  # of other examples
            return paths[:1]
        places = self.label_array(examples)
        logits = np.stack([output["logits"] for output in outputs]).astype(np.float64)
        likely = special.softmax(logits, axis=-1)[np.arange(len(places)), places]
        order = np.argsort(likely, kind="stable")
        listed = [examples[place] for place in order]
        errors = {
            "line": [example.line for example in listed],
            **{name: [columns[name][place] for place in order] for name in _SHOWN},
            "probability_of_label": [round(float(likely[place]), 6) for place in order],
            "text": [example.text for example in listed],
        }
        if listed and listed[0].text_pair is not None:
            errors["text_pair"] = [example.text_pair for example in listed]
        write_table(paths[1], errors)
        return paths


def _has_one_label(examples: Sequence[Example]) -> bool:
    """Returns whether each example has one known label: no number, and not several labels."""
    return all(isinstance(example.label, str) for example in examples)


def _blocks(
    examples: Sequence[Example], tokenizer: AlbertTokenizer, max_seq_length: int
) -> Iterator[tuple[dict[str, tf.Tensor], np.ndarray]]:
    """Yields the packed texts of examples, and how long they were before truncation."""
    packer = Packer(tokenizer, max_seq_length)
    for block in in_blocks(examples, _BLOCK_EXAMPLES):
        texts = [example.text for example in block]
        first, full_lengths = tokenize(texts, tokenizer, max_seq_length)
        has_second = np.array([example.text_pair is not None for example in block])
        if not has_second.any():
            yield packer.truncate_and_pack(first), full_lengths + 2
            continue
        texts = [example.text_pair or "" for example in block]
        second, of_second = tokenize(texts, tokenizer, max_seq_length)
        tokens = packer.truncate_and_pack(first, second, has_second)
        yield tokens, full_lengths + of_second + 2 + has_second
