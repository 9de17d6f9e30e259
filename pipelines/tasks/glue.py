"""The nine GLUE tasks and the diagnostic set, read from the files of the GLUE download."""

import dataclasses
import os
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from .classification import ClassificationTask, Example
from .reading.tables import read_rows, write_table
from .task import Answers, Task

_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")


@dataclasses.dataclass(frozen=True)
class GlueTable:
    """The properties of a GLUE task."""

    name: str  # of the task's directory and of its default submission file
    texts: tuple[str, ...]  # columns
    label: str  # column
    labels: tuple[str, ...] | None = ("0", "1")  # in the reference's order; None for numbers
    metrics: tuple[str, ...] = ("accuracy",)  # the first one selects checkpoints
    header: tuple[str, ...] | None = None  # columns of train.tsv and dev.tsv without a header
    broken_rows: bool = False  # whether malformed rows of train.tsv and dev.tsv are skipped
    dev: tuple[str, ...] = ("dev",)  # names of files; the first one selects checkpoints
    # Maps a file without answers to its submission name on gluebenchmark.com.
    submissions: dict[str, str] | None = None


_TABLES = (
    GlueTable(
        "CoLA",
        ("sentence",),
        "label",
        metrics=("matthews_correlation", "accuracy"),
        header=("source", "label", "original_label", "sentence"),
    ),
    GlueTable("SST-2", ("sentence",), "label"),
    GlueTable("MRPC", ("#1 String", "#2 String"), "Quality", metrics=("accuracy", "f1")),
    GlueTable(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        metrics=("accuracy", "f1"),
        broken_rows=True,  # line ends split some rows; 363,846 (train) and 40,430 (dev) are whole
    ),
    GlueTable("STS-B", _PAIR, "score", labels=None, metrics=("pearson", "spearman")),
    GlueTable(
        "MNLI",
        _PAIR,
        "gold_label",
        ("contradiction", "entailment", "neutral"),
        dev=("dev_matched", "dev_mismatched"),
        submissions={"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "diagnostic": "AX"},
    ),
    GlueTable("QNLI", ("question", "sentence"), "label", _ENTAILMENT),
    GlueTable("RTE", _PAIR, "label", _ENTAILMENT),
    GlueTable("WNLI", _PAIR, "label"),
)
# Maps the task names (cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli) to tables.
TASKS = {table.name.lower().replace("-", ""): table for table in _TABLES}


class GlueTask(ClassificationTask):
    """One of the GLUE tasks.

    Source: Wang et al. 2019; the reference's classifier_utils.
    Deviation: runs also report F1 for MRPC and QQP, Spearman's correlation for STS-B, and MNLI's
    mismatched genres. The reference's `matthew_corr` is called matthews_correlation.

    `data_dir` is the directory of the task's files, or the parent directory of all GLUE tasks.
    """

    def __init__(self, name: str, data_dir: str):
        self.table = table = TASKS[name]
        self.submissions = table.submissions or {"test": table.name}
        of_task = os.path.join(data_dir, table.name)
        self.directory = of_task if tf.io.gfile.isdir(of_task) else data_dir
        super().__init__(
            name,
            files={},
            columns={**dict(zip(("text", "text_pair"), table.texts)), "label": table.label},
            labels=table.labels,
            is_regression=table.labels is None,
            metrics=table.metrics,
            quoting="none",
        )

    @classmethod
    def restore(cls, description: dict, columns: Mapping[str, str], quoting: str | None) -> Task:
        """See Task.restore. The files to predict are tables, with the metrics of the GLUE task."""
        description = {**description, "metrics": TASKS[description["task"]].metrics}
        return ClassificationTask.restore(description, columns, quoting)

    def initialise(self, model: tf.keras.Model) -> None:
        """Changes nothing: as published, STS-B starts at 0, and not at its mean."""

    def read(self, split: str) -> list[Example] | None:
        """See Task.read. The dev split of MNLI contains matched and mismatched genres."""
        if split != "dev":
            return self._read(split)
        first, *others = map(self._read, self.table.dev)
        return first and sum((examples or [] for examples in others), first)

    def _read(self, name: str) -> list[Example] | None:
        path, has_labels = self._path(name), name not in self.submissions
        if not tf.io.gfile.exists(path):
            if name == "train":
                raise UserError(
                    f"--data_dir: there is no {path!r}; expected the files of {self.table.name} as "
                    "downloaded from gluebenchmark.com"
                )
            return None
        rows = read_rows(
            path,
            0,
            has_labels,
            self.columns if has_labels else {**self.columns, "label": None},
            self.quoting,
            header=self.table.header if has_labels else None,
            leave_out_broken_rows=self.table.broken_rows and has_labels,
        )
        # Metrics of the matched genres have no suffix.
        return [*self.examples(rows, "mismatched" if name == "dev_mismatched" else "")]

    def other_splits(self) -> list[str]:
        """See Task.other_splits. `diagnostic` is GLUE's AX set, which MNLI models predict."""
        return [name for name in self.submissions if tf.io.gfile.exists(self._path(name))]

    def _path(self, name: str) -> str:
        path = os.path.join(self.directory, f"{name}.tsv")
        if name == "diagnostic" and not tf.io.gfile.exists(path):
            # The GLUE download has this file in a separate directory, next to MNLI's directory.
            parent = os.path.dirname(files.absolute(self.directory).rstrip("/"))
            return os.path.join(parent, "diagnostic", "diagnostic.tsv")
        return path

    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """See Task.score. Metrics of the mismatched genres have the suffix `_mismatched`."""
        by_part: dict[str, list[dict]] = {}
        for row in rows:
            by_part.setdefault(row.get("part", ""), []).append(row)
        return {
            f"{name}_{part}" if part else name: value
            for part, of_part in by_part.items()
            for name, value in super(GlueTask, self).score(of_part).items()
        }

    def write(self, directory: str, split: str, examples: list, answers: Answers) -> list[str]:
        """Writes the files of ClassificationTask, and a submission file for unlabelled splits."""
        paths = super().write(directory, split, examples, answers)
        if split in self.submissions:
            predictions = answers.columns["prediction"]
            if self.is_regression:  # STS-B scores range from 0 to 5
                numbers = np.clip(answers.exact["number"], 0, 5)
                predictions = [f"{number:.3f}" for number in numbers]
            path = os.path.join(directory, f"{self.submissions[split]}.tsv")
            write_table(path, {"index": range(len(predictions)), "prediction": predictions})
            paths.append(path)
        return paths


def tasks_in(data_dir: str) -> dict[str, GlueTask]:
    """Returns a dict of tasks by name, one for each GLUE directory in `data_dir`."""
    tasks = {
        name: GlueTask(name, data_dir)
        for name, table in TASKS.items()
        if tf.io.gfile.isdir(os.path.join(data_dir, table.name))
    }
    if not tasks:
        expected = ", ".join(table.name for table in _TABLES)
        raise UserError(f"--data_dir={data_dir}: expected directories such as {expected} there")
    for task in tasks.values():
        if not tf.io.gfile.exists(path := os.path.join(task.directory, "train.tsv")):
            raise UserError(f"--task=glue: {path!r} is missing: add it, or remove its directory")
    return tasks
