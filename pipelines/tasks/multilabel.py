"""Multi-label classification: zero or more labels for each text or pair of texts."""

import array
import ast
import collections
import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
from scipy import sparse

from albert_tf.answering.classes import labels_above
from albert_tf.storage.errors import UserError
from albert_tf.text.in_graph import on_host
from .classification import ClassificationTask, Example
from .reading.split_report import describe_labels, describe_texts
from .reading.tables import as_label, as_text
from .scoring.confidence import label_thresholds
from .scoring.metrics import METRICS, intervals_of_sets
from .task import Answers, Columns, Description, Files

# Matches lists in NumPy's notation, and [a, b]. Does not match [a],[b], which is two labels.
_OTHER_LIST = re.compile(
    r"(np\.)?(array|(frozen)?set)\(.*\)|\[[\d. ]+\]|\[[^\[\]:]*,[^\[\]:]*\]", re.DOTALL
)
_BRACKETS: dict[str, type | tuple[type, ...]] = {"[": list, "(": tuple, "{": (set, dict)}
_LONGEST_LIST, _LONGEST_OTHER_LIST = 100_000, 1000  # characters


class MultiLabelTask(ClassificationTask):
    """Predicts zero or more labels per example, with one sigmoid per label.

    A label is predicted if its probability is at least 0.5, or at least the threshold that
    `answering.label_thresholds` sets for this label.

    A cell contains labels separated by `label_separator`. An empty cell means no label. In JSON the
    value may also be a list. Example.label is a tuple of labels.
    """

    stored = ("labels", "quoting", "label_separator")

    def __init__(
        self,
        name: str,
        files: Files,
        columns: Columns | None = None,
        labels: Sequence[str] | None = None,
        quoting: str = "csv",
        label_separator: str = ",",
    ):
        # `files` is empty for a finished model, whose labels are not checked again.
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
        """Returns the labels in a cell, without duplicates."""
        column, cells = self.column("label"), value
        if not isinstance(cells, list):
            text = as_text(value, column, where)
            if _is_list(text.strip()):
                raise UserError(
                    f"{where}: {column!r} is {text[:60]!r}, a list as in Python or JSON: "
                    f"separate its labels by {self.separator!r}, without brackets and quotation "
                    "marks, or use .jsonl, which may contain lists"
                )
            cells = text.split(self.separator)
            if not "".join(cells).strip():
                return []
            if not all(cell.strip() for cell in cells):
                raise UserError(
                    f"{where}: {column!r} is {text[:60]!r}, with no label on one side of "
                    f"{self.separator!r}: remove the extra separator"
                )
        names = list(dict.fromkeys(as_label(cell, column, where) for cell in cells))
        if joined := next((name for name in names if self.separator in name), None):
            raise UserError(
                f"{where}: the label {joined!r} in {column!r} contains {self.separator!r}, which "
                "separates labels in the files of predictions: choose another "
                "--label_separator"
            )
        return names

    def as_answer(self, value: object, where: str) -> tuple[str, ...]:
        """Returns the labels in a cell, in the order of the outputs; refuses unknown labels."""
        names = self.label_names(value, where)
        for name in names:
            self.check_known(name, where)
        return tuple(sorted(names, key=self.place_of.__getitem__))

    def label_array(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns a multi-hot array, float32 [n, labels]: 1 if an example has a label, else 0."""
        found = np.zeros([len(examples), len(self.labels)], np.float32)
        for row, example in zip(found, examples):
            row[[self.place_of[label] for label in example.classes]] = 1
        return found

    def summarise(self, examples: list[Example]) -> list[str]:
        """See Task.summarise."""
        known = [example.classes for example in examples]
        notes = describe_texts(examples)
        if any(example.label is None for example in examples):
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
        """Returns a character in the labels that may be the real separator, or None."""
        if any(len(labels) > 1 for labels in known):
            return None
        return next((mark for mark in ",;|" if any(mark in name for name in self.labels)), None)

    def description(self) -> Description:
        """See Task.description."""
        model, _, source = super().description()
        source["label_separator"] = self.separator
        return Description({**model, "kind": "multilabel"}, {}, source)

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the binary cross-entropy per example in nats, averaged over the labels."""
        losses = tf.nn.sigmoid_cross_entropy_with_logits(batch["labels"], outputs["logits"])
        return tf.reduce_mean(losses, axis=-1)

    def as_cell(self, example: Example) -> str:
        """Joins the labels with the separator."""
        return self.separator.join(example.classes)

    def predictions(self, probabilities: np.ndarray) -> list[str]:
        """Returns the predicted labels of each row, joined with the separator."""
        with on_host():
            found = labels_above(probabilities, self.labels, self.answering.label_thresholds)
        return [self.separator.join(itertools.compress(self.labels, row)) for row in found.numpy()]

    def details(self, examples: list[Example], answers: Answers) -> dict:
        """See Task.details: metrics per label, and thresholds with a better F1 than the default."""
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

    def _sets(self, rows: Iterable[dict]) -> tuple[sparse.csr_matrix, sparse.csr_matrix] | None:
        """Returns labels and predictions, [n, labels] each; None if rows have no labels."""
        # Label indices of all rows (4 bytes each), and the end offset of each row (8 bytes each).
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
        labels, predictions = (
            sparse.csr_matrix(
                (np.ones(len(places), np.int8), places, ends), (len(ends) - 1, len(self.labels))
            )
            for places, ends in found.values()
        )
        return labels, predictions


def _is_list(text: str) -> bool:
    """Returns whether a cell is a list, tuple, set or dict in Python, JSON or NumPy notation."""
    if text[-1:] not in ("]", ")", "}") or len(text) > _LONGEST_LIST:
        return False
    if len(text) <= _LONGEST_OTHER_LIST and _OTHER_LIST.fullmatch(text):
        return True
    try:
        return isinstance(ast.literal_eval(text), _BRACKETS.get(text[0], ()))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
