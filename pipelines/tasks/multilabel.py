"""Multi-label classification: zero or more labels for a text or a pair of texts."""

from __future__ import annotations

import array
import ast
import collections
import re
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
from scipy import sparse

from albert_tf.storage.errors import UserError
from .classification import ClassificationTask, Example
from .reading.split_report import describe_labels, describe_texts
from .reading.tables import as_label, as_text
from .scoring.confidence import label_thresholds
from .scoring.metrics import METRICS, intervals_of_sets
from .task import Answers, Columns, Description, Files

_THRESHOLD = 0.5
# Lists as NumPy prints them, and [a, b]; but not [a],[b], which are two labels.
_OTHER_LIST = re.compile(
    r"(np\.)?(array|(frozen)?set)\(.*\)|\[[\d. ]+\]|\[[^\[\]:]*,[^\[\]:]*\]", re.DOTALL
)
_BRACKETS = {"[": list, "(": tuple, "{": (set, dict)}
_LONGEST_LIST, _LONGEST_OTHER_LIST = 100_000, 1000  # characters


class MultiLabelTask(ClassificationTask):
    """A sigmoid for each label; labels with a probability of 0.5 or more are predicted.

    `label_thresholds` has the labels for which it is another probability.

    A cell holds labels divided by `label_separator`; an empty cell means no label. In JSON it may
    be a list. Example.label is the tuple of an example's labels.
    """

    stored = ("labels", "quoting", "label_separator")
    activation = "sigmoid"

    def __init__(
        self,
        name: str,
        files: Files,
        columns: Columns | None = None,
        labels: Sequence[str] | None = None,
        quoting: str = "csv",
        label_separator: str = ",",
    ):
        # A finished model's labels are not checked again (`files` is empty).
        is_in_label = files and any(label_separator in label for label in labels or ())
        if not label_separator or is_in_label:
            raise UserError(
                f"--label_separator={label_separator}: expected characters that no label contains, "
                "such as ;"
            )
        self.separator = label_separator
        metrics = ("micro_f1", "macro_f1")
        super().__init__(name, files, columns, labels, metrics=metrics, quoting=quoting)

    def label_names(self, value: object, where: str) -> list[str]:
        """Returns the labels of a cell, without repetitions."""
        column = self.columns["label"]
        cells = value
        if not isinstance(value, list):
            if isinstance(value, str) and _is_list(value.strip()):
                raise UserError(
                    f"{where}: {column!r} is {value[:60]!r}, a list as Python or JSON writes it: "
                    f"write its labels with {self.separator!r} between, without brackets and "
                    "quotation marks, or write .jsonl, whose lists are read"
                )
            cells = as_text(value, column, where).split(self.separator)
            if not "".join(cells).strip():
                return []
            if not all(cell.strip() for cell in cells):
                raise UserError(
                    f"{where}: {column!r} is {value[:60]!r}, with no label on one side of "
                    f"{self.separator!r}: remove what is too much there"
                )
        names = list(dict.fromkeys(as_label(cell, column, where) for cell in cells))
        if joined := next((name for name in names if self.separator in name), None):
            raise UserError(
                f"{where}: the label {joined!r} in {column!r} contains {self.separator!r}, which "
                "separates labels where predictions are written: choose another "
                "--label_separator"
            )
        return names

    def as_answer(self, value: object, where: str) -> tuple[str, ...]:
        """Returns the known labels of a cell, in the order of the model's outputs."""
        names = self.label_names(value, where)
        for name in names:
            self.check_known(name, where)
        return tuple(sorted(names, key=self.place_of.__getitem__))

    def label_array(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns float32 [n, labels], 1 where an example has a label."""
        found = np.zeros([len(examples), len(self.labels)], np.float32)
        for row, example in zip(found, examples):
            row[[self.place_of[label] for label in example.label]] = 1
        return found

    def summarise(self, examples: list[Example]) -> list[str]:
        """See Task.summarise."""
        known = [example.label for example in examples if example.label is not None]
        notes = describe_texts(examples)
        if len(known) < len(examples):
            return ["without answers", *notes]
        counts = collections.Counter(label for labels in known for label in labels)
        if mark := self._other_separator(known):
            notes.append(
                f"warning: no row has several labels, but labels contain {mark!r}: is that the "
                "--label_separator?"
            )
        without = sum(not labels for labels in known)
        return [
            f"{describe_labels(self.labels, counts)}; {sum(map(len, known)) / len(known):.2f} a "
            f"row, {without:,} rows without",
            *notes,
        ]

    def _other_separator(self, known: Sequence[tuple[str, ...]]) -> str | None:
        """Returns the character that may be the real separator, if any."""
        if any(len(labels) > 1 for labels in known):
            return None
        return next((mark for mark in ",;|" if any(mark in name for name in self.labels)), None)

    def description(self) -> Description:
        """See Task.description."""
        model, _, source = super().description()
        source["label_separator"] = self.separator
        return Description({**model, "kind": "multilabel"}, {}, source)

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the mean over the labels of their binary cross-entropies (nats)."""
        losses = tf.nn.sigmoid_cross_entropy_with_logits(batch["labels"], outputs["logits"])
        return tf.reduce_mean(losses, axis=-1)

    def as_cell(self, label: tuple[str, ...]) -> str:
        """Returns labels joined by the separator."""
        return self.separator.join(label)

    def predictions(self, probabilities: np.ndarray) -> list[str]:
        """Returns the predicted labels of each row, joined by the separator."""
        least = [self.label_thresholds.get(label, _THRESHOLD) for label in self.labels]
        return [
            self.as_cell(tuple(self.labels[place] for place in np.flatnonzero(row)))
            for row in probabilities >= np.array(least)
        ]

    def details(self, examples: list[Example], answers: Answers) -> dict:
        """See Task.details: metrics per label, and thresholds with a higher F1 than at 0.5."""
        if not examples or any(example.label is None for example in examples):
            return {}
        known, found = self.label_array(examples) > 0, np.array(answers.exact["probabilities"])
        return {
            "intervals": self.intervals(answers.rows()),
            "labels": label_thresholds(known, found, self.labels),
        }

    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """See Task.score."""
        pair = self._sets(rows)
        return {name: float(METRICS[name](*pair)) for name in self.metrics} if pair else {}

    def intervals(self, rows: Iterable[dict]) -> dict[str, list[float]]:
        """See Task.intervals."""
        pair = self._sets(rows)
        return intervals_of_sets(*pair, self.metrics) if pair else {}

    def _sets(self, rows: Iterable[dict]) -> list[sparse.csr_matrix] | None:
        """Returns labels and predictions, [n, labels] each; None for rows without labels."""
        # Indices of all labels, and where those for a row end: 4 bytes per label, 8 per row.
        found = {
            name: (array.array("i"), array.array("q", [0])) for name in ("label", "prediction")
        }
        for row in rows:
            if "label" not in row:
                return None
            for name, (places, ends) in found.items():
                names = row[name].split(self.separator) if row[name] else []
                places.extend(self.place_of[label] for label in names)
                ends.append(len(places))
        return [
            sparse.csr_matrix(
                (np.ones(len(places), np.int8), places, ends), (len(ends) - 1, len(self.labels))
            )
            for places, ends in found.values()
        ]


def _is_list(text: str) -> bool:
    """Returns whether a cell is a list, a set or a dict as Python, JSON or NumPy writes it."""
    if text[-1:] not in ("]", ")", "}") or len(text) > _LONGEST_LIST:
        return False
    if len(text) <= _LONGEST_OTHER_LIST and _OTHER_LIST.fullmatch(text):
        return True
    try:
        return isinstance(ast.literal_eval(text), _BRACKETS.get(text[0], ()))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
