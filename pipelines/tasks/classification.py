"""Classification and regression of texts and pairs of texts."""

import array
import collections
import copy
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.answering.classes import UNSURE, best_labels
from albert_tf.kinds import KINDS
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.in_graph import on_host
from .labelled_task import LabelledTask
from .reading.examples import AnyExample, id_and_label
from .reading.sequences import Encoder, Packed
from .reading.split_report import describe_labels, describe_texts
from .reading.tables import Row, as_label, as_number, read_rows, write_table
from .scoring.figures import MOST_LABELS, draw_confusion_matrix
from .scoring.metrics import METRICS, figures_of_labels, intervals, rounded_down
from .scoring.thresholds import thresholds
from .scoring.word_baseline import answers_from_words, constant_answers, sampled_places
from .task import Answers, Columns, Description, Files, Outputs, Task, final_answers

Label = str | tuple[str, ...] | float  # a label, several labels, or a number


@dataclasses.dataclass(frozen=True)
class Example(AnyExample):
    """A text or a pair of texts, with its answer.

    `label` is None if the answer is not known. `part` names a part of the split that is scored
    separately. `line` is the FILE:LINE of the row.
    """

    id: str
    text: str
    text_pair: str | None
    label: Label | None
    part: str = ""
    line: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def separated(self) -> tuple[str, ...]:
        """See AnyExample: each text of a pair."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)

    @property
    def classes(self) -> tuple[str, ...]:
        if isinstance(self.label, tuple):
            return self.label
        return (self.label,) if isinstance(self.label, str) else ()

    def inputs(self) -> dict[str, str]:
        pair = {} if self.text_pair is None else {"text_pair": self.text_pair}
        return {"text": self.text, **pair}


@dataclasses.dataclass(frozen=True)
class Answering:
    """How probabilities become answers. See Decision, and ClassificationTask.answers (`top_k`)."""

    min_probability: float = 0.0
    label_thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    top_k: int = 5


class ClassificationTask(LabelledTask):
    """Predicts a label or a number for each text or pair of texts.

    Args:
      name, files, columns, labels: see LabelledTask.
      is_regression: if True, the task predicts numbers instead of labels.
      metrics: keys of metrics.METRICS. The first metric selects the best checkpoint.
      class_weights: if "balanced", all labels have the same total weight in training. If None, all
        examples have weight 1.
      quoting: see Task.quoting.

    Attributes:
      answering: see Answering.
      label_weights: float32 [labels], loss weights of the labels; see `weighted`. None: all are 1.
      mean: mean of the training numbers; see `weighted`. 0 for labels.
    """

    fields: ClassVar = {"text": "text", "label": "label", "text_pair": None, "id": None}
    stored: ClassVar[tuple[str, ...]] = ("labels", "metrics", "quoting", "is_regression")
    block_size = 4000

    def __init__(
        self,
        name: str,
        files: Files,
        columns: Columns | None = None,
        labels: Sequence[str] | None = None,
        is_regression: bool = False,
        metrics: Sequence[str] | None = None,
        quoting: str = "csv",
        class_weights: str | None = None,
    ):
        super().__init__(name, files, columns, labels)
        self.quoting = quoting
        self.class_weights = class_weights
        self.answering = Answering()
        self.label_weights: np.ndarray | None = None
        self.mean = 0.0
        self.is_regression = is_regression
        self.metrics = metrics or (
            ("pearson", "spearman") if is_regression else ("accuracy", "macro_f1")
        )

    @property
    def best_metric(self) -> str:
        return self.metrics[0]

    @classmethod
    def restore(cls, description: dict, columns: Mapping[str, str], quoting: str | None) -> Task:
        """See Task.restore. Also checks that the columns fit the model (single texts or pairs)."""
        description = {**description, "is_regression": description["kind"] == "regressor"}
        task = super().restore(description, columns, quoting)
        assert isinstance(task, cls)
        if description["has_pairs"] != bool(task.columns["text_pair"]):
            raise UserError(
                "--text_pair_column: the model reads pairs of texts; name the column of the second"
                if description["has_pairs"]
                else "--text_pair_column: the model reads single texts: remove it"
            )
        names = {field.name for field in dataclasses.fields(Answering)}
        task.answering = Answering(**{name: description[name] for name in names & {*description}})
        return task

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """See LabelledTask; empty for regression."""
        return () if self.is_regression else super().labels

    def labels_of_file(self, path: str) -> Iterator[tuple[str, str]]:
        column = self.column("label")
        for row in read_rows(path, 0, True, {"label": column}, self.quoting):
            for label in self.label_names(row.cells["label"], row.where):
                yield label, row.where

    def examples(self, rows: Iterable[Row], part: str = "") -> Iterator[Example]:
        for row in rows:
            text, pair, label = row.text("text"), None, None
            if "text_pair" in row.cells:
                pair = row.text("text_pair")
            if "label" in row.cells:
                label = self.as_answer(row.cells["label"], row.where)
            name = f"{part}-{row.id}" if part else row.id
            yield Example(name, text, pair, label, part, row.where)

    def label_names(self, value: object, where: str) -> list[str]:
        """Returns the labels in a cell."""
        return [as_label(value, self.column("label"), where)]

    def as_answer(self, value: object, where: str) -> Label:
        """Converts a cell to a value for Example.label."""
        if self.is_regression:
            return as_number(value, self.column("label"), where)
        [label] = self.label_names(value, where)
        self.check_known(label, where)
        return label

    def pack(self, examples: list[Example], first: int, encoder: Encoder) -> Packed:
        """See Task.pack. Each example is its own feature."""
        firsts, full_lengths = encoder.tokenize([example.text for example in examples])
        has_second = np.array([example.text_pair is not None for example in examples])
        if not has_second.any():
            return encoder.truncate_and_pack(firsts), full_lengths + 2, examples
        seconds, of_second = encoder.tokenize([example.text_pair or "" for example in examples])
        tokens = encoder.truncate_and_pack(firsts, seconds, has_second)
        return tokens, full_lengths + of_second + 2 + has_second, examples

    def weighted(self, examples: list[Example]) -> Task:
        """See Task.weighted. The copy has `mean`, or the `label_weights` of `class_weights`."""
        if self.is_regression and len({example.label for example in examples}) == 1:
            raise UserError(
                f"{self.column('label')!r} is {examples[0].label} in all {len(examples):,} "
                "training rows: there is nothing to learn; expected different numbers"
            )
        if self.is_regression:
            task = copy.copy(self)
            task.mean = float(self.label_array(examples).mean())
            return task
        if not self.class_weights:
            return self
        counts = np.bincount(self.label_array(examples), minlength=len(self.labels))
        # Avoid division by zero for a label without examples. Its weight is never used.
        weights = len(examples) / (len(counts) * np.maximum(1, counts))
        task = copy.copy(self)
        task.label_weights = weights.astype(np.float32)
        return task

    def initialise(self, model: tf.keras.Model) -> None:
        """Sets a regressor's output bias to the mean, which training from 0 would reach slowly."""
        if self.is_regression:
            model.classifier.output_dense.bias.assign([self.mean])

    def targets(self, examples: list, features: list, max_seq_length: int) -> dict[str, np.ndarray]:
        """See Task.targets. Returns numbers, float32 [n], or label indices, int32 [n]."""
        labels = self.label_array(examples)
        return {"labels": labels.astype(np.float32) if self.is_regression else labels}

    def summarise(self, examples: list[Example]) -> list[str]:
        lines = []
        if any(example.label is None for example in examples):
            lines.append("without answers")
        elif self.is_regression:
            numbers = self.label_array(examples)
            low, mean, high, spread = (f(numbers) for f in (np.min, np.mean, np.max, np.std))
            lines.append(f"numbers from {low:.4g} to {high:.4g}, mean {mean:.4g}")
            if spread and not 0.05 <= spread <= 5:
                lines.append(
                    f"warning: the numbers have the standard deviation {spread:.3g}: scale the "
                    "column so that it is near 1, for which learning rates are chosen"
                )
        else:
            counts = collections.Counter(name for e in examples for name in e.classes)
            lines.append(describe_labels(self.labels, counts))
        return lines + describe_texts(examples)

    def label_array(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns the target numbers, float64 [n], or the label indices, int32 [n]."""
        if self.is_regression:
            return np.array([example.label for example in examples], np.float64)
        return np.array([self.place_of[example.classes[0]] for example in examples], np.int32)

    def description(self) -> Description:
        model = {"kind": "regressor", "has_pairs": self.columns["text_pair"] is not None}
        if not self.is_regression:
            model.update(kind="classifier", labels=list(self.labels))
            if self.class_weights:
                model["class_weights"] = self.class_weights
        source = {"columns": self.columns, "quoting": self.quoting}
        return Description(model, {}, source)

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        if self.is_regression:
            return tf.square(outputs["logits"][:, 0] - batch["labels"])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["labels"], outputs["logits"])
        if self.label_weights is None:
            return loss
        return loss * tf.gather(tf.constant(self.label_weights), batch["labels"])

    def answers(self, examples: list, features: list | None, outputs: Outputs) -> Answers:
        """See Task.answers. Columns: id, label (if known), prediction and probabilities."""
        columns = id_and_label(examples, self.as_cell)
        exact: dict[str, Any] = {"part": [example.part for example in examples]}
        answers = KINDS[self.description().model["kind"]].answers
        probabilities = final_answers(answers, features, outputs)
        if self.is_regression:
            numbers = [*probabilities.astype(np.float32)]
            # Use the shortest decimal number that rounds to the same float32.
            columns["prediction"] = [float(str(number)) for number in numbers]
            return Answers(columns, {**exact, "number": numbers})
        if not np.isfinite(probabilities).all():
            raise UserError("the model's probabilities are not finite: use another checkpoint")
        columns["prediction"] = self.predictions(probabilities)
        columns.update(self._probability_columns(probabilities))
        if all(example.label is not None for example in examples):
            exact["probabilities"] = probabilities
        if _has_one_label(examples):
            places = self.label_array(examples)
            exact["probability_of_label"] = probabilities[np.arange(len(places)), places]
        return Answers(columns, exact)

    def as_cell(self, example: Example) -> Label | None:
        """Formats the label of an example for the output files."""
        return example.label

    def predictions(self, probabilities: np.ndarray) -> list[str]:
        """Returns the predicted labels, formatted for the output files."""
        with on_host():  # between equal probabilities, the first label on every device
            found = best_labels(probabilities, self.labels, self.answering.min_probability)
        return [label.decode() for label in found.numpy()]

    def _probability_columns(self, probabilities: np.ndarray) -> dict[str, list]:
        """Returns the probability columns of `answers`, given probabilities, float64 [n, labels].

        If there are more than 20 labels, only the `top_k` most likely labels are written, in the
        columns `label_1`, `probability_1` and so on.
        """
        columns, written = {}, rounded_down(probabilities)
        if len(self.labels) <= 20:
            for label, of_label in zip(self.labels, written.T, strict=True):
                columns[f"probability_{label}"] = of_label.tolist()
            return columns
        best = np.argsort(-probabilities, axis=-1, kind="stable")[:, : self.answering.top_k]
        for rank, places in enumerate(best.T, start=1):
            columns[f"label_{rank}"] = [self.labels[place] for place in places]
            of_rank = np.take_along_axis(written, places[:, np.newaxis], axis=1)[:, 0]
            columns[f"probability_{rank}"] = of_rank.tolist()
        return columns

    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """See Task.score. Skips unsure predictions; `answered` is the share of the other rows."""
        kind = "d" if self.is_regression else "i"
        labels, predictions, total = array.array(kind), array.array(kind), 0
        for row in rows:
            if "label" not in row:
                return {}
            total += 1
            if not self._is_answered(row):
                continue
            if self.is_regression:
                labels.append(row["label"])
                predictions.append(row.get("number", row["prediction"]))
            else:
                labels.append(self.place_of[row["label"]])
                predictions.append(self.place_of[row["prediction"]])
        found = np.array(labels), np.array(predictions)
        result = {name: float(METRICS[name](*found)) for name in self.metrics if labels}
        if self.answering.min_probability and total:
            result["answered"] = len(labels) / total
        return result

    def _is_answered(self, row: dict) -> bool:
        return not self.answering.min_probability or row["prediction"] != UNSURE

    def intervals(self, rows: Iterable[dict]) -> dict[str, list[float]]:
        """See Task.intervals. Empty for regression; skips unsure predictions and rows of a part."""
        if self.is_regression:
            return {}
        chosen = (row for row in rows if self._is_answered(row) and not row.get("part"))
        return intervals(self._confusion(chosen), self.metrics)

    def baseline_sample(self, train: list[Example]) -> list[Example]:
        texts = [example.separated for example in train]
        return [train[place] for place in sampled_places(texts, max(1, len(self.labels)))]

    def baselines(self, train: list[Example], dev: list[Example]) -> dict[str, Iterable[dict]]:
        """See Task.baselines. A linear model of words, and (not for numbers) the usual answer."""
        answers = self.label_array(train)
        known, asked = ([example.separated for example in rows] for rows in (train, dev))
        found = {"words alone": answers_from_words(known, answers, asked)}
        if not self.is_regression:
            found["majority"] = constant_answers(answers, len(dev))
        columns, parts = id_and_label(dev, self.as_cell), [example.part for example in dev]
        return {
            name: Answers({**columns, "prediction": self.as_cells(of)}, {"part": parts}).rows()
            for name, of in found.items()
        }

    def as_cells(self, answers: np.ndarray) -> list:
        """Formats answers in the form of `label_array` for the output files."""
        return answers.tolist() if self.is_regression else [self.labels[i] for i in answers]

    def _confusion(self, rows: Iterable[dict]) -> np.ndarray:
        """Returns the number of rows for each label and prediction, int64 [labels, labels]."""
        counts = np.zeros([len(self.labels)] * 2, np.int64)
        for row in rows:
            counts[self.place_of[row["label"]], self.place_of[row["prediction"]]] += 1
        return counts

    def details(self, examples: list[Example], answers: Answers) -> dict:
        """See Task.details: intervals, metrics per label, thresholds and confusion matrix.

        The matrix is omitted if there are many labels, and the thresholds if all predictions are
        equal and some are wrong. Like the metrics without a suffix, the details are computed on
        examples without a `part`.
        """
        chosen = [i for i, example in enumerate(examples) if not example.part]
        if not chosen or not _has_one_label(examples):
            return {}
        counts = self._confusion(row for row in answers.rows() if not row["part"])
        probabilities = answers.exact["probabilities"][chosen]
        predictions = probabilities.argmax(axis=1)
        right = predictions == self.label_array([examples[i] for i in chosen])
        varies = np.ptp(predictions) > 0 or right.all()
        is_small = len(self.labels) <= MOST_LABELS
        return {
            "intervals": intervals(counts, self.metrics),
            "labels": figures_of_labels(counts, self.labels),
            **({"thresholds": thresholds(probabilities.max(axis=1), right)} if varies else {}),
            **({"confusion": counts.tolist()} if is_small else {}),
        }

    def write(self, directory: str, split: str, examples: list, answers: Answers) -> list[str]:
        """Writes SPLIT_predictions.tsv with the columns of `answers`.

        If labels are known, also writes SPLIT_errors.csv, all rows in ascending order of the known
        label's probability, and, unless there are too many labels, SPLIT_confusion.png.
        """
        paths = super().write(directory, split, examples, answers)
        errors, picture = (
            os.path.join(directory, f"{split}_{name}") for name in ("errors.csv", "confusion.png")
        )
        if not _has_one_label(examples):
            for path in (errors, picture):  # they may show other examples
                files.remove(path)
            return paths
        if len(self.labels) <= MOST_LABELS:
            draw_confusion_matrix(picture, self.labels, self._confusion(answers.rows()))
        likely = answers.exact["probability_of_label"]
        table = {
            "line": [example.line for example in examples],
            **{name: answers.columns[name] for name in ("id", "label", "prediction")},
            "probability_of_label": rounded_down(likely).tolist(),
            "text": [example.text for example in examples],
        }
        if examples[0].text_pair is not None:
            table["text_pair"] = [example.text_pair for example in examples]
        order = np.argsort(likely, kind="stable")
        write_table(errors, {n: [column[i] for i in order] for n, column in table.items()})
        return [*paths, errors]


def _has_one_label(examples: Sequence[Example]) -> bool:
    """Returns whether every example has a single known label (no number, no tuple)."""
    return all(isinstance(example.label, str) for example in examples)
