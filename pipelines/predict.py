"""Predicts each row of a file with a fine-tuned model, or scores its texts with a pre-trained one.

--model is an output of pipelines.finetune (OUTPUT_DIR: its best seed on dev; or OUTPUT_DIR/seed_N),
or an export of it. --input_file is a table as in fine-tuning: .csv, .tsv, .jsonl or .json,
compressed or not, or .parquet. Models that answer questions also read SQuAD's JSON, models that tag
words read CoNLL's columns (their rows: pipelines/tasks/scoring/token_rows.py). The columns have the
names of fine-tuning, unless flags name others.

A pre-trained model (a run of pipelines.pretrain, or any input of pipelines.convert_checkpoint)
scores each row's text: log_likelihood, the sum of the pieces' log probabilities, each predicted
from the rest of the text (albert_tf.SentenceScorer), num_pieces and num_words. A text that is too
long has an empty score. --answers selects an embedding instead.

OUTPUT_FILE has one row per input row, in the same order: id, label if the input has answers,
prediction, probabilities (beyond 20 classes: the --top_k most likely ones). The last column is
unknown_share: the share of the row's text that the vocabulary cannot spell. If it is near 1, the
prediction does not depend on the text. If the input has answers, OUTPUT_FILE.run.json has the
metrics. Rows are read and written in parts, so that memory does not grow with the file. A killed
command resumes when it is run again.

From Python, `load` returns a model that predicts texts in memory.

Examples:
  python -m pipelines.predict --model=runs/tickets --input_file=new.csv --output_file=labelled.csv
  python -m pipelines.predict --model=exports/tickets --input_file='new/*.jsonl.gz' \\
      --text_column=body --output_file=labelled.jsonl
  python -m pipelines.predict --model=runs/base --input_file=sentences.csv --output_file=scores.csv
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from absl import flags

import albert_tf
from albert_tf.checkpoints import hub, saved_model
from albert_tf.checkpoints.pretrained import is_pretrained
from albert_tf.jobs import job_directory, program
from albert_tf.jobs.decision import AS_TRAINED, Decision
from albert_tf.jobs.settings import define_settings_flags, setting, settings_from_flags
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.progress import Progress
from .tasks.reading import tables
from .tasks.reading.split_report import num_line_ends
from .tasks.running import fine_tuned, pretrained
from .tasks.running.prediction_file import check_output_name, predict_file
from .tasks.task import Task, read_files

FLAGS = flags.FLAGS

_COLUMNS = ("text", "text_pair", "label", "id", "question", "options")


@dataclasses.dataclass(frozen=True)
class PredictionSettings:
    """The model and how it answers; `columns` is field ("text", ...) -> column."""

    model: str = setting(
        flags.DEFINE_string,
        "Directory of a fine-tuned model (--output_dir of pipelines.finetune, or a seed_N in it), "
        "of an export, or of a pre-trained model.",
    )
    columns: dict[str, str] = dataclasses.field(default_factory=dict)
    quoting: str | None = setting(
        flags.DEFINE_enum,
        "Quoting of .csv and .tsv, as of pipelines.finetune. Default: as in fine-tuning.",
        None,
        enum_values=tables.QUOTING,
    )
    answers: str | None = setting(
        flags.DEFINE_enum,
        "What a pre-trained model computes of each text: how likely it is, the mean of the last "
        "block's outputs, or the output at [CLS]. Default: score.",
        None,
        enum_values=pretrained.ANSWERS,
    )
    decision: Decision = AS_TRAINED
    batch_size: int = setting(
        flags.DEFINE_integer, "Examples that the model reads at a time.", 32, lower_bound=1
    )
    top_k: int = setting(
        flags.DEFINE_integer, "Probabilities to write, beyond 20 classes.", 5, lower_bound=1
    )


def define_flags() -> None:
    """Defines the flags in a function, because several programs define the same names."""
    job_directory.define_flags()
    flags.DEFINE_string("input_file", None, "Paths or globs of the files to read.", required=True)
    flags.DEFINE_string(
        "output_file", None, "File to write: .csv, .tsv, .jsonl or .parquet.", required=True
    )
    for name in _COLUMNS:
        ignored = "; empty: do not read the answers" if name == "label" else ""
        flags.DEFINE_string(
            f"{name}_column",
            None,
            f"Column as of pipelines.finetune{ignored}. Default: as in fine-tuning.",
        )
    define_settings_flags(PredictionSettings)
    define_settings_flags(Decision)


def main(_) -> None:
    """Reads the flags."""
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
    """Writes predictions; returns the result of prediction_file.predict_file."""
    check_output_name(output_file)
    found = _find(settings)
    path, description, task = found
    task.top_k = settings.top_k
    # Read all rows first: an invalid last row is reported before hours of work, not after.
    total = folded = 0
    for example in read_files(task, input_files):
        total += 1
        folded += num_line_ends(example.texts())
    if not total:
        raise UserError(f"--input_file: no rows in {', '.join(input_files)}")
    loaded = _load(found, settings)
    identity = {
        **loaded.identity,
        "task": json.dumps(description, sort_keys=True),
        "source": json.dumps(task.description().source, sort_keys=True),
        "input_files": [files.sha256(file)[:16] for file in input_files],
        "top_k": settings.top_k,
        "code_version": albert_tf.__version__,  # other versions write other columns
        # The batch size affects rounding.
        "batch_size": settings.batch_size,
    }
    cells = f"; {folded:,} cells with line ends" * bool(folded)
    print(f"model    {path}\nrows     {total:,}{cells}", flush=True)
    with Progress("predicting", total, unit="row") as progress:
        return predict_file(
            task, loaded, input_files, output_file, identity, report=progress.update
        )


class _Found(NamedTuple):
    """A model, what it answers, and the task that reads its rows."""

    path: str
    description: dict
    task: Task


def _find(settings: PredictionSettings) -> _Found:
    """Finds the model that the settings name, without reading its weights."""
    model, answers = hub.local_path(settings.model), settings.answers
    if answers and answers not in pretrained.ANSWERS:
        raise UserError(f"--answers={answers}: expected one of {', '.join(pretrained.ANSWERS)}")
    if is_pretrained(model):
        path, description = model, settings.decision.apply({"kind": "pretraining"})
        task = pretrained.text_task(settings.columns, settings.quoting)
    elif answers:
        raise UserError(f"--answers={answers} applies to pre-trained models only: omit it")
    else:
        path = fine_tuned.find_model(model)
        description = settings.decision.apply(fine_tuned.read_description(path))
        task = fine_tuned.task_of(description, settings.columns, settings.quoting)
    return _Found(path, description, task)


def _load(found: _Found, settings: PredictionSettings) -> fine_tuned.AnsweringModel:
    path, description, task = found
    if description["kind"] == "pretraining":
        answers = settings.answers or pretrained.ANSWERS[0]
        return pretrained.PretrainedModel(path, answers, settings.batch_size)
    is_export = saved_model.is_saved_model(path)
    answering = fine_tuned.Export if is_export else fine_tuned.FineTunedRun
    return answering(path, task, settings.batch_size)


class Predictor:
    """Predicts rows in Python as this program predicts the rows of a file; see `load`."""

    def __init__(self, found: _Found, model: fine_tuned.AnsweringModel):
        self._task, self._model = found.task, model
        # Tables of questions have fixed column names.
        named = found.task.columns or {name: name for name in ("question", "context")}
        self._text_column = named.get("text")
        self._columns = [column for name, column in named.items() if column and name != "label"]

    def predict(self, rows: Sequence[str | dict]) -> list[dict]:
        """Returns for each row a dict of the output file's columns: `prediction` and others.

        Args:
          rows: texts; or dicts with the columns of fine-tuning, such as {"text": ...,
            "text_pair": ...} or {"question": ..., "context": ...}. Other columns are not read.

        Raises:
          UserError: if a row lacks a column, or a value has the wrong type. The message counts rows
            from 0, as Python does: rows[2] is the third.
        """
        if isinstance(rows, (str, bytes, Mapping, Set)) or not isinstance(rows, Iterable):
            raise UserError(f"expected a list of rows, not {type(rows).__name__}")
        records = [row if isinstance(row, dict) else self._record(row) for row in rows]
        if not records:
            return []
        # Write the rows to a file, so that the task's reader checks them like other files.
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "rows.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                for place, record in enumerate(records):
                    kept = {name: record[name] for name in self._columns if name in record}
                    if record and not kept:
                        raise UserError(
                            f"rows[{place}]: none of the fields {', '.join(self._columns)}; the "
                            f"row has {', '.join(map(str, record))}"
                        )
                    try:
                        file.write(json.dumps(kept) + "\n")
                    except TypeError as error:
                        raise UserError(f"rows[{place}]: {error}; expected text") from None
            try:
                examples = list(read_files(self._task, [path]))
            except UserError as error:
                # The lines of the file are counted from 1.
                line = re.compile(rf"{re.escape(path)}:(\d+)")
                message = line.sub(lambda found: f"rows[{int(found[1]) - 1}]", str(error))
                raise UserError(message.replace(f"{path}: ", "")) from None
        columns = self._model.answer(examples, self._model.prepare(examples))
        return [dict(zip(columns, values)) for values in zip(*columns.values())]

    def _record(self, text: object) -> dict:
        """Returns the row of a single text."""
        if not self._text_column:
            raise UserError(f"a row is no dict; expected the fields {', '.join(self._columns)}")
        return {self._text_column: text}


def load(
    model: str | os.PathLike,
    columns: dict[str, str] | None = None,
    batch_size: int = 32,
    answers: str | None = None,
    min_probability: float | None = None,
    temperature: float | None = None,
    label_thresholds: Mapping[str, float] | str | None = None,
) -> Predictor:
    """Loads a model for predictions in Python.

        model = load("runs/tickets")
        model.predict(["I cannot log in since this morning."])[0]["prediction"]

    Args:
      model: a run of pipelines.finetune, one of its seeds, or an export; or a pre-trained model.
      columns: field ("text", ...) -> name in the rows, where it differs from fine-tuning. A model
        of RACE needs {"question": "question"}, because RACE's files have no columns.
      batch_size: examples that the model reads at a time.
      answers: for a pre-trained model, one of pretrained.ANSWERS. None: the first of them.
      min_probability: a classifier predicts "unsure" below it. None: as the export was made.
      temperature: a classifier's logits are divided by it. None: as the export was made, or 1.
      label_thresholds: label -> the probability from which a model of several labels predicts it.
        None: as the export was made, or 0.5.

    Raises:
      UserError: if there is no such model.
    """
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size}: expected 1 or more")
    settings = PredictionSettings(
        os.fspath(model),
        dict(columns or {}),
        answers=answers,
        decision=Decision(temperature, min_probability, label_thresholds),
        batch_size=batch_size,
    )
    found = _find(settings)
    if "id" in found.task.columns and "id" not in settings.columns:
        found.task.columns["id"] = None  # rows are numbered
    return Predictor(found, _load(found, settings))


if __name__ == "__main__":
    define_flags()
    program.run(main)
