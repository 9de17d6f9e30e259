"""Predicts each row of a file with a fine-tuned model, or scores its texts with a pre-trained one.

--model is an OUTPUT_DIR of pipelines.finetune (its seed with the best dev metric is used) or an
OUTPUT_DIR/seed_N. --input_file is a table as in fine-tuning: .csv, .tsv, .jsonl or .json,
optionally compressed, or .parquet. Question-answering models also read SQuAD's JSON. Token
classifiers also read CoNLL's columns; for their output see pipelines/tasks/scoring/token_rows.py.

A pre-trained model (a run of pipelines.pretrain, or any input of pipelines.convert_checkpoint)
computes log_likelihood, num_pieces and num_words of each text. log_likelihood is the sum of the log
probabilities of all pieces, each predicted from the rest of the text (see
albert_tf.SentenceScorer). It is missing for texts that are empty or too long. An embedder
(--task=embedding of pipelines.finetune) computes an embedding of length 1 for each text, or with
--text_pair_column the cosine of each pair.

OUTPUT_FILE has one row per input row, in the same order. Its columns are id, label (if the input
has labels), prediction, probabilities (only the --top_k highest, if there are more than 20 classes)
and unknown_share. unknown_share is the fraction of the text that the vocabulary cannot represent.
If the input has labels, the metrics are written to OUTPUT_FILE.run.json. Memory does not grow with
the size of the file. To resume a killed command, run it again.

In Python, use `load` to predict texts that are in memory.

Examples:
  python -m pipelines.predict --model=runs/tickets --input_file=new.csv --output_file=labelled.csv
  python -m pipelines.predict --model=runs/tickets --input_file='new/*.jsonl.gz' \\
      --text_column=body --output_file=labelled.jsonl
  python -m pipelines.predict --model=runs/base --input_file=sentences.csv --output_file=scores.csv
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import flags

import albert_tf
from albert_tf.checkpoints import hub, opening
from albert_tf.jobs import job_directory, program
from albert_tf.jobs.decision import AS_TRAINED, Decision
from albert_tf.jobs.settings import define_settings_flags, setting, settings_from_flags
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.progress import Progress
from albert_tf.text.tokenization import as_list
from .tasks.reading import tables
from .tasks.running import fine_tuned, pretrained
from .tasks.running.prediction_file import check_output_name, predict_file
from .tasks.task import Task, read_files

FLAGS = flags.FLAGS

_COLUMNS = ("text", "text_pair", "label", "id", "options")


@dataclasses.dataclass(frozen=True)
class PredictionSettings:
    """Settings of a prediction. `columns` maps fields such as "text" to column names."""

    model: str = setting(
        flags.DEFINE_string,
        "Directory of a fine-tuned model (--output_dir of pipelines.finetune, or a seed_N in it) "
        "or of a pre-trained model.",
    )
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    quoting: str | None = setting(
        flags.DEFINE_enum,
        "Quoting of .csv and .tsv files; see pipelines.finetune. Default: as in fine-tuning.",
        None,
        enum_values=tables.QUOTING,
    )
    decision: Decision = AS_TRAINED
    top_k: int = setting(
        flags.DEFINE_integer, "Top classes to write if there are more than 20.", 5, lower_bound=1
    )


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    job_directory.define_flags()
    flags.DEFINE_string("input_file", None, "Input files (paths or globs).", required=True)
    flags.DEFINE_string("output_file", None, "Output file: .csv, .tsv or .jsonl.", required=True)
    for name in _COLUMNS:
        ignored = ". If empty, labels are not read" if name == "label" else ""
        flags.DEFINE_string(
            f"{name}_column",
            None,
            f"Column name; see pipelines.finetune{ignored}. Default: as in fine-tuning.",
        )
    define_settings_flags(PredictionSettings)
    define_settings_flags(Decision)


def main(_) -> None:
    """Runs the program with the values of its flags."""
    columns = {name: FLAGS[f"{name}_column"].value for name in _COLUMNS}
    columns = {name: column for name, column in columns.items() if column is not None}
    decision = settings_from_flags(Decision)
    summary = predict(
        settings_from_flags(PredictionSettings, columns=columns, decision=decision),
        files.match_files(FLAGS.input_file, "input_file"),
        FLAGS.output_file,
    )
    for name, value in summary["metrics"].items():
        interval = summary.get("intervals", {}).get(name)
        spread = "   95 % interval {:.4f} to {:.4f}".format(*interval) if interval else ""
        print(f"{name:24} {value:.4f}{spread}")
    print(f"{summary['rows']:,} rows  {FLAGS.output_file}")


def predict(settings: PredictionSettings, input_files: list[str], output_file: str) -> dict:
    """Writes the predictions. Returns the result of `prediction_file.predict_file`."""
    check_output_name(output_file)
    found = _find(settings)
    opened, description, task = found
    # Read all rows first, so that an invalid row is reported before hours of prediction.
    total = sum(1 for _ in read_files(task, input_files))
    loaded = _load(found)
    identity = {
        **loaded.identity,
        "task": json.dumps(description, sort_keys=True),
        "source": json.dumps(task.description().source, sort_keys=True),
        "input_files": [files.sha256(file)[:16] for file in input_files],
        "top_k": settings.top_k,
        "code_version": albert_tf.__version__,  # other versions may write other columns
    }
    print(f"model    {opened.path}\nrows     {total:,}", flush=True)
    with Progress("predicting", total, unit="row") as progress:
        return predict_file(
            task, loaded, input_files, output_file, identity, report=progress.update
        )


class _Found(NamedTuple):
    """A model, its description, and the task that reads its input rows."""

    opened: opening.OpenModel
    description: dict
    task: Task


def _find(settings: PredictionSettings) -> _Found:
    """Finds the model that the settings name, without loading its weights."""
    opened = opening.open_model(fine_tuned.find_model(hub.local_path(settings.model)))
    if opened.kind == opening.PRETRAINING:
        opened.require(opening.ALBERT_TF, opening.HUGGINGFACE, opening.GOOGLE)
        description = settings.decision.apply({"kind": opening.PRETRAINING})
        task: Task = pretrained.text_task(settings.columns, settings.quoting)
    else:
        opened.require(opening.ALBERT_TF)
        description = settings.decision.apply(opened.task)
        described = {**description, "top_k": settings.top_k}
        task = fine_tuned.task_of(described, settings.columns, settings.quoting)
    return _Found(opened, description, task)


def _load(found: _Found) -> fine_tuned.AnsweringModel:
    opened, _, task = found
    if opened.kind == opening.PRETRAINING:
        return pretrained.PretrainedModel(opened)
    return fine_tuned.FineTunedRun(opened, task)


class Predictor:
    """Python API of this program: predicts rows that are given in memory. See `load`."""

    def __init__(self, found: _Found, model: fine_tuned.AnsweringModel):
        self._task, self._model = found.task, model
        # Question-answering tables have fixed column names.
        named = found.task.columns or {name: name for name in ("question", "context")}
        self._columns = {name: of for name, of in named.items() if of and name != "label"}

    def predict(self, rows: Sequence[str | dict]) -> list[dict]:
        """Returns one dict per row, with the columns of the output file, such as `prediction`.

        Args:
          rows: list of texts, or of dicts with the columns of fine-tuning, such as {"text": ...,
            "text_pair": ...} or {"question": ..., "context": ...}. Other keys are ignored. None,
            NaN and pandas.NA are an empty text.

        Raises a UserError if a column is missing, or a value has the wrong type. The message counts
        rows from 0.
        """
        records = map(self._record, itertools.count(), as_list(rows, "rows"))
        examples = list(self._task.examples(tables.as_rows(records, self._columns)))
        if not examples:
            return []
        columns = self._model.answer(examples, self._model.prepare(examples))
        return [dict(zip(columns, values)) for values in zip(*columns.values())]

    def _record(self, place: int, row: object) -> tuple[str, dict]:
        """Returns the place of a row for messages, and its cells by column."""
        where, columns = f"rows[{place}]", self._columns.values()
        expected = ", ".join(columns)
        if not isinstance(row, dict):
            if "text" not in self._columns or "text_pair" in self._columns:
                raise UserError(f"{where} is no dict; expected the fields {expected}")
            row = {self._columns["text"]: row}
        if row and row.keys().isdisjoint(columns):
            raise UserError(
                f"{where}: none of the fields {expected}; the row has {', '.join(map(str, row))}"
            )
        tables.require_fields(row, [*columns], where)
        return where, {column: _cell(row[column]) for column in columns}


def _cell(value: object) -> object:
    """Returns a value as JSON has it: "" for None, pandas.NA and any NaN, a list for a tuple."""
    if value is None or type(value).__name__ == "NAType" or (np.isscalar(value) and value != value):
        return ""
    return list(value) if isinstance(value, tuple) else value


def load(
    model: str | os.PathLike,
    columns: dict[str, str] | None = None,
    **decision: Any,
) -> Predictor:
    """Loads a model for predictions in Python.

        model = load("runs/tickets")
        model.predict(["I cannot log in since this morning."])[0]["prediction"]

    Args:
      model: a run of pipelines.finetune, one of its seeds, or a pre-trained model.
      columns: dict mapping fields such as "text" to keys of the rows, if they differ from
        fine-tuning. A RACE model needs {"text_pair": "question"}, as RACE's files have no columns.
      decision: `min_probability`, `label_thresholds` (dict that maps labels to probabilities) or
        `null_threshold`; see the flags. Default: the model's values.

    Raises a UserError if the model is not found, or an argument does not apply to it.
    """
    columns, path = dict(columns or {}), files.as_path(model)
    found = _find(PredictionSettings(path, columns, decision=Decision(**decision)))
    if "id" not in columns:
        found = found._replace(task=found.task.numbered())
    return Predictor(found, _load(found))


if __name__ == "__main__":
    define_flags()
    program.run(main)
