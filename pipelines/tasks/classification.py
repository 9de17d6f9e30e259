"""Classification and regression of a text or a pair of texts."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

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
    columns_of_file,
    label_key,
    listed_labels,
    read_table,
    write_table,
)
from .scoring.classes import confusion_matrix, figures_of_labels, intervals, probabilities_of
from .scoring.figures import MOST_LABELS, draw_confusion_matrix
from .scoring.metrics import METRICS
from .task import (
    Answers,
    AnyExample,
    Description,
    Outputs,
    Sequences,
    Task,
    columns_of_model,
    file_lists,
    in_blocks,
    join,
    tokenize,
)

# Examples tokenized at a time.
_BLOCK_EXAMPLES = 4000
# With more labels only the probabilities of the most likely ones are written.
_MOST_PROBABILITIES = 20
_SHOWN = ("id", "label", "prediction")  # columns of `answers`


@dataclasses.dataclass(frozen=True)
class Example(AnyExample):
    """A text or a pair of texts, with its label or number.

    Attributes:
      text: the first text.
      text_pair: the second text; None for a single text.
      label: a label of the task, a tuple of labels, or a number; None: not known.
      part: name of a part of the split that is scored separately, if there are several.
      line: FILE:LINE of its row.
    """

    id: str
    text: str
    text_pair: str | None
    label: str | tuple[str, ...] | float | None
    part: str = ""
    line: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def is_answered(self) -> bool:
        """See AnyExample."""
        return self.label is not None

    @property
    def group(self) -> str:
        """Returns the texts: copies of an example stay together."""
        return "\0".join(text for text in (self.text, self.text_pair) if text)

    @property
    def classes(self) -> tuple[str, ...]:
        """See AnyExample."""
        if isinstance(self.label, tuple):
            return self.label
        return (self.label,) if isinstance(self.label, str) else ()

    def inputs(self) -> dict[str, str]:
        """See AnyExample."""
        pair = {} if self.text_pair is None else {"text_pair": self.text_pair}
        return {"text": self.text, **pair}


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of the columns, or fields of JSON; None: there is no such column.

    A file without answers needs no label column.
    """

    text: str = "text"
    label: str = "label"
    text_pair: str | None = None
    id: str | None = None


class ClassificationTask(Task):
    """Predicts a label or a number for each text or pair of texts.

    Args:
      name: see --task.
      files: "train", "dev", "test" -> one or more files, see tables.read_table. Missing splits are
        left out; test may have no answers.
      columns: names of the files' columns.
      labels: all labels, in the order of the model's outputs; None: the labels in the training
        file, sorted.
      is_regression: numbers in place of labels.
      metrics: names of metrics.METRICS; the first selects the best checkpoint.
      class_weights: label -> weight of its examples' losses; "balanced": all labels have the same
        total weight in training; None: all examples have weight 1.
      quoting: see tables.read_table.

    Attributes:
      top_k: see answers.
    """

    kinds = ("classifier", "regressor")
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

    @classmethod
    def restore(
        cls, description: dict, columns: Mapping[str, str], quoting: str | None
    ) -> ClassificationTask:
        """Returns the task of a finished model; see Task.

        Raises:
          UserError: if the columns do not fit the model.
        """
        named = columns_of_model(Columns, description, columns)
        if description["has_pairs"] != (named.text_pair is not None):
            raise UserError(
                "--text_pair_column: the model reads pairs of texts; name the column of the second"
                if description["has_pairs"]
                else "--text_pair_column: the model reads single texts: remove it"
            )
        quoting = quoting or description.get("quoting", "csv")
        return cls(description["task"], {}, named, quoting=quoting, **cls._of_model(description))

    @classmethod
    def _of_model(cls, description: dict) -> dict:
        """Returns the arguments of this class that task.json stores."""
        return {
            "labels": description.get("labels"),
            "is_regression": description["kind"] == "regressor",
            "metrics": description.get("metrics"),
        }

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of the model's outputs; empty for numbers.

        Raises:
          UserError: if the labels come from the training file, and it has less than two of them, or
            two that look like spellings of one label.
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
                f"{', '.join(paths)}: the only label in {column!r} is {', '.join(labels)!r}; "
                "expected two labels or more to tell apart"
            )
        return tuple(sorted(labels))

    def read_file(
        self, path: str, first: int = 0, needs_answers: bool = False
    ) -> Iterator[Example]:
        """See Task.read_file."""
        columns = columns_of_file(path, self.columns, needs_answers, self.quoting)
        return self._read_rows(path, columns, first=first)

    def _read_rows(
        self, path: str, columns: Columns, part: str = "", first: int = 0, **table_arguments
    ) -> Iterator[Example]:
        """Yields the examples of a file; without a label column JSON must not have it either."""
        names = [column for column in dataclasses.astuple(columns) if column]
        absent = None if columns.label else self.columns.label
        rows = read_table(path, names, quoting=self.quoting, absent=absent, **table_arguments)
        for place, (number, row) in enumerate(rows, start=first):
            where = f"{path}:{number}"
            texts = [
                None if column is None else as_text(row[column], column, where)
                for column in (columns.text, columns.text_pair)
            ]
            label = self.as_answer(row[columns.label], where) if columns.label else None
            name = str(place)
            if columns.id:
                name = as_text(str(row[columns.id]), columns.id, where)
            name = f"{part}-{name}" if part else name
            yield Example(name, *texts, label, part, where)

    def label_names(self, value: object, where: str) -> list[str]:
        """Returns the labels in a cell."""
        return [as_label(value, self.columns.label, where)]

    def as_answer(self, value: object, where: str) -> str | float:
        """Returns the answer in a cell, as in Example.label."""
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
        """Returns the label unchanged.

        Raises:
          UserError: if the model does not have the label.
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
        """See Task.encode; the feature of an example is the example itself."""
        labels = {}
        if all(example.label is not None for example in examples):
            labels["labels"] = self.label_array(examples)
            if self.is_regression:
                if training and len(set(labels["labels"])) == 1:
                    paths = ", ".join(self.files.get("train", [self.name]))
                    raise UserError(
                        f"{paths}: the only number in {self.columns.label!r} is "
                        f"{examples[0].label:g}; expected two different numbers or more"
                    )
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

    def label_array(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns the numbers, float64 [n], or the labels' indices, int32 [n]."""
        if self.is_regression:
            return np.array([example.label for example in examples], np.float64)
        return np.array([self._place_of[example.label] for example in examples], np.int32)

    def description(self) -> Description:
        """See Task.description."""
        model = {"kind": "regressor", "has_pairs": self.columns.text_pair is not None}
        if not self.is_regression:
            model.update(kind="classifier", labels=list(self.labels))
            if self.class_weights:
                model["class_weights"] = self.class_weights
        source = {"columns": dataclasses.asdict(self.columns), "quoting": self.quoting}
        return Description(model, {}, source)

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """See Task.losses."""
        if self.is_regression:
            return tf.square(outputs["logits"][:, 0] - batch["labels"])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["labels"], outputs["logits"])
        if self._weights is None:
            return loss
        return loss * tf.gather(tf.constant(self._weights), batch["labels"])

    def answers(
        self, examples: list[Example], features: list[Example], outputs: Outputs
    ) -> Answers:
        """See Task.answers. Columns: id, label if known, prediction, probabilities.

        With more than 20 labels only the `top_k` most likely ones have columns: `label_1`,
        `probability_1` and so on.
        """
        columns = {"id": [example.id for example in examples]}
        if all(example.is_answered for example in examples):
            columns["label"] = [self.as_cell(example.label) for example in examples]
        exact: dict[str, Sequence] = {"part": [example.part for example in examples]}
        if self.is_regression:
            name = "logits" if "logits" in outputs[0] else "value"
            numbers = [output[name].reshape(-1)[0] for output in outputs]
            # The shortest decimal form of each float32.
            columns["prediction"] = [float(str(number)) for number in numbers]
            return Answers(columns, {**exact, "number": numbers})
        probabilities = self.probabilities(outputs)
        columns["prediction"] = self.predictions(probabilities)
        columns.update(self._probability_columns(probabilities))
        if _has_one_label(examples):
            places = self.label_array(examples)
            exact["probability_of_label"] = probabilities[np.arange(len(places)), places]
        return Answers(columns, exact)

    def as_cell(self, label: str | tuple[str, ...] | float) -> str | float:
        """Returns an example's label in the form of the output files."""
        return label

    def probabilities(self, outputs: Outputs) -> np.ndarray:
        """Returns float64 [n, labels]."""
        return probabilities_of(outputs)

    def predictions(self, probabilities: np.ndarray) -> list[str]:
        """Returns the predicted labels in the form of the output files."""
        return [self.labels[place] for place in probabilities.argmax(axis=1)]

    def _probability_columns(self, probabilities: np.ndarray) -> dict[str, list]:
        """Returns the columns of `answers` for the probabilities, float64 [n, labels]."""
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

    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """See Task.score."""
        kind = "d" if self.is_regression else "i"
        labels, predictions = array.array(kind), array.array(kind)
        for row in rows:
            if "label" not in row:
                return {}
            if self.is_regression:
                labels.append(row["label"])
                predictions.append(row.get("number", row["prediction"]))
            else:
                labels.append(self._place_of[row["label"]])
                predictions.append(self._place_of[row["prediction"]])
        found = np.array(labels), np.array(predictions)
        return {name: float(METRICS[name](*found)) for name in self.metrics if labels}

    @functools.cached_property
    def _place_of(self) -> dict[str, int]:
        return {label: place for place, label in enumerate(self.labels)}

    def _confusion(self, answers: Answers, chosen: Iterable[int]) -> np.ndarray:
        """Returns the confusion matrix of rows with labels."""
        both = (answers.columns[name] for name in ("label", "prediction"))
        places = ([self._place_of[column[i]] for i in chosen] for column in both)
        return confusion_matrix(*places, len(self.labels))

    def details(self, examples: list[Example], answers: Answers) -> dict:
        """See Task.details: intervals, metrics per label, the confusion matrix if it is small.

        They cover the examples without a `part`, like the metrics without a suffix.
        """
        chosen = [i for i, example in enumerate(examples) if not example.part]
        if not chosen or not _has_one_label(examples):
            return {}
        counts = self._confusion(answers, chosen)
        is_small = len(self.labels) <= MOST_LABELS
        return {
            "intervals": intervals(counts, self.metrics),
            "labels": figures_of_labels(counts, self.labels),
            **({"confusion": counts.tolist()} if is_small else {}),
        }

    def write(
        self, directory: str, split: str, examples: list[Example], answers: Answers
    ) -> list[str]:
        """Writes SPLIT_predictions.tsv with the columns of `answers`.

        If labels are known, also writes SPLIT_errors.csv: all texts, first the rows whose own label
        is least likely; and SPLIT_confusion.png, unless there are too many labels to read.
        """
        predictions, errors, picture = (
            os.path.join(directory, f"{split}_{name}")
            for name in ("predictions.tsv", "errors.csv", "confusion.png")
        )
        write_table(predictions, answers.columns)
        has_one_label = _has_one_label(examples)
        if has_one_label and len(self.labels) <= MOST_LABELS:
            counts = self._confusion(answers, range(len(examples)))
            draw_confusion_matrix(picture, self.labels, counts)
        else:
            files.remove(picture)  # an old picture of other examples
        if not has_one_label:
            files.remove(errors)
            return [predictions]
        likely = answers.exact["probability_of_label"]
        order = np.argsort(likely, kind="stable")
        listed = [examples[place] for place in order]
        table = {
            "line": [example.line for example in listed],
            **{name: [answers.columns[name][place] for place in order] for name in _SHOWN},
            "probability_of_label": [round(float(likely[place]), 6) for place in order],
            "text": [example.text for example in listed],
        }
        if listed and listed[0].text_pair is not None:
            table["text_pair"] = [example.text_pair for example in listed]
        write_table(errors, table)
        return [predictions, errors]


def _has_one_label(examples: Sequence[Example]) -> bool:
    """Returns whether each example has exactly one known label, not a number."""
    return all(isinstance(example.label, str) for example in examples)


def _blocks(
    examples: Sequence[Example], tokenizer: AlbertTokenizer, max_seq_length: int
) -> Iterator[tuple[dict[str, tf.Tensor], np.ndarray]]:
    """Yields the packed texts of examples, and their lengths before truncation."""
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
