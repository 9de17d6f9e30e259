"""Multi-label classification: zero or more labels for each text or pair of texts."""

import array
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
from .scoring.metrics import METRICS, intervals_of_sets
from .scoring.thresholds import label_thresholds
from .task import Answers, Columns, Description, Files

# Matches a list, tuple, set or dict of Python, JSON or NumPy; not [BUG],[UI] or (1) Billing (net).
_LIST = re.compile(
    r"""(?sx)
    [\[{] ([\s\[{]*["'].* | [\d.\s]* | (?=[^][{}]*,)[^][{}:]*) [\]}]  # ['a' 'b'], [1 2], [a, b]
    | \( (\s* | (?=.*,)\s*["'].* | (?=.*,)[\d.,\s]*) \)  # (), ('a',), (1, 2)
    | (np\.)?(array|(frozen)?set)\(.*\)
    """
)


class MultiLabelTask(ClassificationTask):
    """Predicts zero or more labels per example, with one sigmoid per label.

    A label is predicted if its probability is at least 0.5, or at least the threshold that
    `answering.label_thresholds` sets for this label.

    A cell contains labels separated by `label_separator`. An empty cell means no label. In JSON and
    Parquet, the value may also be a whole number or a list. Example.label is a tuple of labels.
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
        if not label_separator:
            raise UserError("--label_separator=: expected characters that no label contains")
        self.separator = label_separator
        metrics = ("micro_f1", "macro_f1")
        super().__init__(name, files, columns, labels, metrics=metrics, quoting=quoting)

    def label_names(self, value: object, where: str) -> list[str]:
        """Returns the labels in a cell, without duplicates."""
        column = self.column("label")
        cells = value if isinstance(value, list) else [value]
        if isinstance(value, str):
            text = as_text(value, column, where)
            if _LIST.fullmatch(text.strip()):
                raise UserError(
                    f"{where}: {column!r} is {text[:60]!r}, a list as in Python or JSON: "
                    f"separate its labels by {self.separator!r}, without brackets and quotation "
                    "marks, or use .jsonl, which may contain lists"
                )
            cells = text.split(self.separator)
            if not "".join(cells).strip():
                return []
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
        notes = describe_texts(examples)
        if any(example.label is None for example in examples):
            return ["without answers", *notes]
        known = [example.classes for example in examples]
        counts = collections.Counter(label for labels in known for label in labels)
        without = sum(not labels for labels in known)
        if max(map(len, known)) < 2 and re.search("[,;|]", "".join(self.labels)):
            notes.append(
                "warning: no row has several labels, but labels contain ',', ';' or '|': is that "
                "the --label_separator?"
            )
        return [
            f"{describe_labels(self.labels, counts)}; {sum(map(len, known)) / len(known):.2f} a "
            f"row, {without:,} rows without",
            *notes,
        ]

    def description(self) -> Description:
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
        return self.as_cells(found.numpy())

    def as_cells(self, answers: np.ndarray) -> list[str]:
        return [self.separator.join(itertools.compress(self.labels, row)) for row in answers]

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
        pair = self._sets(rows)
        return {name: float(METRICS[name](*pair)) for name in self.metrics} if pair else {}

    def intervals(self, rows: Iterable[dict]) -> dict[str, list[float]]:
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
