"""Finished models of fine-tuning, as a run or as an export, that answer examples."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from scipy import special

from albert_tf.checkpoints import model_directory, saved_model
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from .. import glue
from ..classification import ClassificationTask, Columns, Example
from ..multilabel import MultiLabelTask
from ..multiple_choice import MultipleChoiceColumns, TableMultipleChoiceTask
from ..reading.squad_files import Question
from ..reading.token_files import TokenColumns, TokenExample
from ..squad import SquadTask
from ..task import Outputs, Sequences, Task
from ..token_classification import TokenClassificationTask
from .batches import Table, as_table, example_lengths, gather_batch
from .unknown_text import AnyExample, texts_of, unknown_shares

# Lengths of batches are multiples of it: few shapes.
_LENGTH_STEP = 8


class AnsweringModel(Protocol):
    """The interface of a model for pipelines.predict.

    Attributes:
      identity: JSON-serialisable; what its answers depend on.
    """

    identity: dict

    def prepare(self, examples: list) -> Any:
        """Does what needs no device, in another thread than `answer`."""

    def answer(self, examples: list, prepared: Any) -> dict[str, list]:
        """Returns the columns of Task.answers."""


def find_model(path: str) -> str:
    """Returns the seed's directory, or the SavedModel, that a path means.

    Args:
      path: a directory of fine-tuning (the seed that is best on dev is meant), OUTPUT_DIR/seed_N,
        a SavedModel, or the directory of its versions (the newest is meant).

    Raises:
      UserError: if there is none, or no finished one.
    """
    path = path.rstrip("/")
    names = tf.io.gfile.listdir(path) if tf.io.gfile.isdir(path) else []
    names = [name.rstrip("/") for name in names]
    versions = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
    for candidate in (path, *(os.path.join(path, str(version)) for version in versions)):
        if saved_model.is_saved_model(candidate):
            return candidate
    if model_directory.TASK_FILE in names:
        return path
    if seeds := sorted(name for name in names if name.startswith("seed_")):
        return _best_seed(path, seeds)
    raise UserError(
        f"--model: no fine-tuned or pre-trained model at {path!r}; expected the --output_dir of a "
        "finished pipelines.finetune, its seed_N, an export, or a pre-trained model"
    )


def _best_seed(path: str, seeds: Sequence[str]) -> str:
    results_file = os.path.join(path, "results.json")
    if not tf.io.gfile.exists(results_file):
        done = [os.path.join(path, seed) for seed in seeds]
        done = [p for p in done if tf.io.gfile.exists(os.path.join(p, "results.json"))]
        raise UserError(
            f"--model: {path!r} has no results.json: its fine-tuning is not finished; run its "
            f"command again{f', or name a finished seed, such as {done[0]!r}' if done else ''}"
        )
    results = files.read_json(results_file)
    metrics = results.get("dev", {}).get("seeds", {})
    if not metrics:
        if len(seeds) > 1:
            raise UserError(f"--model: name a seed, such as {os.path.join(path, seeds[0])!r}")
        return os.path.join(path, seeds[0])
    best = max(metrics, key=lambda seed: metrics[seed][results["best_metric"]])
    return os.path.join(path, f"seed_{best}")


def read_description(path: str) -> dict:
    """Returns the content of a model's task.json.

    Args:
      path: as of find_model's result.

    Raises:
      UserError: if it has none: then it is not fine-tuned, or not to the end.
    """
    directory = os.path.join(path, "assets") if saved_model.is_saved_model(path) else path
    file = os.path.join(directory, model_directory.TASK_FILE)
    if not tf.io.gfile.exists(file):
        raise UserError(
            f"--model: {path!r} has no task.json: expected a fine-tuned model; an "
            "export of a pre-trained one has the signature score (export/README.md)"
        )
    return files.read_json(file)


def task_of(
    description: dict, columns: Mapping[str, str | None], quoting: str | None = None
) -> Task:
    """Returns the task of a model, to read files with and to score them.

    Args:
      description: the content of its task.json.
      columns: field of Columns, MultipleChoiceColumns or TokenColumns -> column, for those that
        differ from the ones the model was fine-tuned with; "": there is no such column.
      quoting: as of tables.read_table; None: as it was fine-tuned.

    Raises:
      UserError: if the columns are not known, or say nothing to the kind of model.
    """
    kind, name = description["kind"], description["task"]
    if kind == "question_answering":
        return _squad_task(description, columns)
    merged = _merged_columns(description, columns)
    if kind == "multiple_choice":
        task = TableMultipleChoiceTask(
            name, {}, MultipleChoiceColumns(**merged), description["max_qa_length"]
        )
        task.num_choices = description["num_choices"]
        task.blank = description.get("blank")
        return task
    if kind == "token_classifier":
        if quoting:
            raise UserError("--quoting does not apply to models that tag words: omit the flag")
        if columns.get("label") == "":
            raise UserError("--label_column=: models that tag words read known tags; omit the flag")
        return TokenClassificationTask(
            name, {}, TokenColumns(**merged), description["labels"], description["doc_stride"]
        )
    if description["has_pairs"] != (merged["text_pair"] is not None):
        raise UserError(
            "--text_pair_column: the model reads pairs of texts; name the column of the second"
            if description["has_pairs"]
            else "--text_pair_column: the model reads single texts: remove it"
        )
    quoting = quoting or description.get("quoting", "csv")
    if kind == "multilabel":
        separator = description["label_separator"]
        return MultiLabelTask(
            name, {}, Columns(**merged), description["labels"], quoting, separator
        )
    return ClassificationTask(
        name,
        {},
        Columns(**merged),
        labels=description.get("labels"),
        is_regression=kind == "regressor",
        metrics=glue.TASKS[name].metrics if name in glue.TASKS else None,
        quoting=quoting,
    )


def _squad_task(description: dict, columns: Mapping[str, str | None]) -> SquadTask:
    if columns:
        raise UserError(
            f"--{next(iter(columns))}_column does not apply to a model that answers questions: "
            "tables have the columns question and context"
        )
    decoding = ("max_answer_length", "n_best_size", "null_threshold")
    return SquadTask(
        {},
        **{field: description[field] for field in ("may_be_impossible", "doc_stride")},
        has_answerability_head=description["has_answerability_head"],
        max_query_length=description["max_query_length"],
        **{field: description[field] for field in decoding if field in description},
    )


def _merged_columns(description: dict, columns: Mapping[str, str | None]) -> dict[str, str | None]:
    """Returns field -> column, for the fields of the kind's columns; see task_of."""
    kind, stored = description["kind"], description.get("columns", {})
    kinds = {
        "classifier": Columns,
        "regressor": Columns,
        "multilabel": Columns,
        "token_classifier": TokenColumns,
        "multiple_choice": MultipleChoiceColumns,
    }
    if kind not in kinds:
        raise UserError(f"--model: models of kind {kind!r} predict no files")
    names = [field.name for field in dataclasses.fields(kinds[kind])]
    for field in columns:
        if field not in names:
            raise UserError(f"--{field}_column does not apply to a model of kind {kind}")
    defaults = {"text": "text", "context": "text", "options": "options", "label": "label"}
    merged = {field: stored.get(field, defaults.get(field)) for field in names}
    return {field: column or None for field, column in {**merged, **columns}.items()}


class FineTunedRun:
    """The weights of a seed that fine-tuning reports: the best on dev, or the last ones.

    Args:
      path: OUTPUT_DIR/seed_N.
      task: of task_of.
      batch_size: examples at a time.
    """

    def __init__(self, path: str, task: Task, batch_size: int):
        description = read_description(path)
        best = os.path.join(path, model_directory.BEST_DIR)
        _, checkpoint = model_directory.find_checkpoint(
            best if model_directory.list_checkpoints(best) else path
        )
        self.identity = {"weights": model_directory.hash_of_weights(checkpoint)}
        self._task, self._batch_size = task, batch_size
        self._max_seq_length = description["max_seq_length"]
        self._tokenizer = AlbertTokenizer.load(path)
        self._model = task.create_model(model_directory.read_config(path, checkpoint), False)
        self._model.create_variables()
        model_directory.restore_weights(self._model, checkpoint)
        self._score: Callable | None = None

    def prepare(self, examples: list) -> tuple[Sequences, list]:
        """See AnsweringModel."""
        return self._task.encode(examples, self._tokenizer, self._max_seq_length, False)

    def answer(self, examples: list, prepared: tuple[Sequences, list]) -> dict[str, list]:
        """See AnsweringModel."""
        sequences, features = prepared
        columns = self._task.answers(examples, features, self.outputs(sequences))
        shares = unknown_shares(sequences, self._task.owners(features), self._tokenizer)
        return {**columns, "unknown_share": _rounded(shares)}

    def outputs(self, sequences: Sequences) -> Outputs:
        """Returns the model's outputs of each sequence, or group of them, in their order."""
        lengths = example_lengths(sequences)
        order = np.argsort(lengths, kind="stable")
        # Labels are the reader's concern.
        table = as_table(dataclasses.replace(sequences, labels={}))
        if self._score is None:
            self._score = self._traced(table, sequences.sequences_per_example)
        found: Outputs = [{}] * len(sequences)
        for begin in range(0, len(order), self._batch_size):
            examples = order[begin : begin + self._batch_size]
            length = -(-int(lengths[examples].max()) // _LENGTH_STEP) * _LENGTH_STEP
            filled = np.full(self._batch_size, -1, np.int64)
            filled[: len(examples)] = examples
            outputs = self._score(
                table, tf.constant(filled), tf.constant(min(length, self._max_seq_length))
            )
            outputs = {name: values.numpy() for name, values in outputs.items()}
            for row, example in enumerate(examples):
                found[example] = {name: values[row] for name, values in outputs.items()}
        return found

    def _traced(self, table: Table, sequences_per_example: int) -> Callable:
        """Returns (table, examples, length) -> outputs, for tables and batches of any size."""

        @tf.function(
            input_signature=[
                tf.nest.map_structure(lambda t: tf.TensorSpec([None], t.dtype), table),
                tf.TensorSpec([self._batch_size], tf.int64),
                tf.TensorSpec([], tf.int32),
            ]
        )
        def score(table, examples, length):
            batch = gather_batch(table, sequences_per_example, examples, length)
            return self._model(batch)

        return score


class Export:
    """A SavedModel of export.export_saved_model, asked by its signatures with text.

    Args:
      path: of the SavedModel.
      task: of task_of.
      batch_size: examples at a time.
    """

    def __init__(self, path: str, task: Task, batch_size: int):
        # Brings the operations of the tokenizer.
        import tensorflow_text  # noqa: F401

        self.identity = {
            "weights": model_directory.hash_of_weights(saved_model.variables_prefix(path))
        }
        self._task, self._batch_size = task, batch_size
        self._loaded = tf.saved_model.load(path)
        tags_words = isinstance(task, TokenClassificationTask)
        self._ask = self._loaded.signatures["words" if tags_words else "serving_default"]
        self._ask_unknown_share = self._loaded.signatures.get("unknown_share", lambda **_: {})

    def prepare(self, examples: list) -> np.ndarray:
        """Returns the examples' order by length."""
        lengths = [sum(map(len, texts_of(example))) for example in examples]
        return np.argsort(lengths, kind="stable")

    def answer(self, examples: list, prepared: np.ndarray) -> dict[str, list]:
        """See AnsweringModel."""
        found: list[dict[str, np.ndarray]] = [{}] * len(examples)
        for begin in range(0, len(prepared), self._batch_size):
            places = prepared[begin : begin + self._batch_size]
            inputs = _inputs([examples[place] for place in places])
            outputs = {**self._ask(**inputs), **self._ask_unknown_share(**inputs)}
            outputs = {name: values.numpy() for name, values in outputs.items()}
            for row, place in enumerate(places):
                found[place] = {name: values[row] for name, values in outputs.items()}
        columns = self._columns(examples, found)
        # Exports of earlier versions do not answer it.
        if found and "unknown_share" in found[0]:
            columns["unknown_share"] = _rounded(row["unknown_share"] for row in found)
        return columns

    def _columns(self, examples: list, found: Outputs) -> dict[str, list]:
        """Returns the columns of Task.answers, made of the signatures' outputs for each example."""
        if isinstance(self._task, TokenClassificationTask):
            for row, example in zip(found, examples):
                if b"" in row["labels"][: len(example.words)]:
                    raise UserError(
                        f"a row of {len(example.words):,} words is longer than an export reads: "
                        "divide it, or predict with the run itself"
                    )
            tagged = [
                (
                    [label.decode() for label in row["labels"][: len(example.words)]],
                    row["probabilities"][: len(example.words)],
                )
                for row, example in zip(found, examples)
            ]
            return self._task.answer_columns(examples, tagged)
        if isinstance(self._task, SquadTask):
            return self._task.answer_columns(
                examples,
                [row["answer"].decode() for row in found],
                [float(row["score"]) for row in found],
                [float(row["no_answer_score"]) for row in found],
            )
        return self._task.answers(
            examples, examples, [{"logits": self._logits(row)} for row in found]
        )

    def _logits(self, row: dict[str, np.ndarray]) -> np.ndarray:
        """Returns logits from which the task computes the answer `row`."""
        if "value" in row:
            return row["value"].reshape(1)
        probabilities = row["probabilities"].astype(np.float64)
        if isinstance(self._task, MultiLabelTask):
            return special.logit(probabilities)
        return np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))


def load_model(path: str, task: Task, batch_size: int) -> AnsweringModel:
    """Returns the model at a path that find_model returned."""
    kind = Export if saved_model.is_saved_model(path) else FineTunedRun
    return kind(path, task, batch_size)


def _rounded(shares: Iterable[np.float32]) -> list[float]:
    return [round(float(share), 6) for share in shares]


def _inputs(
    examples: Sequence[AnyExample],
) -> dict[str, tf.Tensor]:
    """Returns the inputs of the signature that answers examples of one kind."""
    if isinstance(examples[0], Example):
        inputs = {"text": [example.text for example in examples]}
        if examples[0].text_pair is not None:
            inputs["text_pair"] = [example.text_pair for example in examples]
    elif isinstance(examples[0], Question):
        inputs = {
            "question": [example.text for example in examples],
            "context": [example.context for example in examples],
        }
    elif isinstance(examples[0], TokenExample):
        most = max(len(example.words) for example in examples)
        inputs = {
            "words": [[*x.words, *[""] * (most - len(x.words))] for x in examples],
        }
    else:
        inputs = {
            "context": [example.context for example in examples],
            "question": [example.question for example in examples],
            "options": [list(example.options) for example in examples],
        }
    # The dtype is named, as of texts without a word there is no value to tell it.
    return {name: tf.constant(values, tf.string) for name, values in inputs.items()}
