"""The nine GLUE tasks, read from the files of the GLUE download."""

import dataclasses
import os
from collections.abc import Iterable, Mapping

import tensorflow as tf

from albert_tf.storage.errors import UserError
from .classification import ClassificationTask, Example
from .reading.tables import read_rows
from .task import Task

_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")


@dataclasses.dataclass(frozen=True)
class GlueTable:
    """The properties of a GLUE task."""

    name: str  # of the task's directory
    texts: tuple[str, ...]  # columns
    label: str  # column
    labels: tuple[str, ...] | None = ("0", "1")  # in the reference's order; None for numbers
    metrics: tuple[str, ...] = ("accuracy",)  # the first one selects checkpoints
    header: tuple[str, ...] | None = None  # columns of train.tsv and dev.tsv without a header
    broken_rows: bool = False  # whether malformed rows of train.tsv and dev.tsv are skipped
    dev: tuple[str, ...] = ("dev",)  # names of files; the first one selects checkpoints


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
        examples: list[Example] = []
        for name in self.table.dev if split == "dev" else (split,):
            path = os.path.join(self.directory, f"{name}.tsv")
            if not tf.io.gfile.exists(path):
                break
            rows = read_rows(
                path,
                0,
                True,
                self.columns,
                self.quoting,
                header=self.table.header,
                leave_out_broken_rows=self.table.broken_rows,
            )
            # Metrics of the matched genres have no suffix.
            examples += self.examples(rows, "mismatched" if name == "dev_mismatched" else "")
        if split == "train" and not examples:
            raise UserError(
                f"--data_dir: there is no {path!r}; expected the files of {self.table.name} as "
                "downloaded from gluebenchmark.com"
            )
        return examples or None

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
