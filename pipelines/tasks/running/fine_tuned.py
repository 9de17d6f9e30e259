"""Fine-tuned models that predict examples."""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints import pretrained
from albert_tf.checkpoints.opening import OpenModel, open_model
from albert_tf.kinds import KINDS
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from ...training.run import hash_of_weights
from ..reading.sequences import Sequences
from ..reading.tables import write_table
from ..task import Task
from ..task_flags import TASKS
from .baselines import describe_baselines, score_baselines, warn_of_baselines
from .batches import Prediction
from .results import COMBINATIONS_FILE, RESULTS_FILE, describe_details
from .seed_run import Finetuning

ROWS_PER_PART = 4096
_BATCH_SIZE = 32


class AnsweringModel(Protocol):
    """The interface of a model for pipelines.predict.

    Attributes:
      identity: JSON-serialisable values that the model's answers depend on.
      rows_per_part: number of rows that are answered together. A killed job loses at most these.
    """

    identity: dict
    rows_per_part: int

    def prepare(self, examples: list) -> Any:
        """Preprocesses examples without the device. Runs in another thread than `answer`."""

    def answer(self, examples: list, prepared: Any) -> dict[str, list]:
        """Returns the columns of Task.answers and additional columns."""


def find_model(path: str) -> str:
    """Returns the best seed on dev of an output directory of fine-tuning, else `path` itself.

    Raises a UserError if no seed is finished, or none is the best.
    """
    path = path.rstrip("/")
    names = files.names_in(path)
    if COMBINATIONS_FILE in names:
        best = files.read_json(os.path.join(path, COMBINATIONS_FILE))["best"]
        return find_model(os.path.join(path, best))
    seeds = sorted(name for name in names if name.startswith("seed_"))
    is_model = any(name.endswith("config.json") for name in names)
    return _best_seed(path, seeds) if seeds and not is_model else path


def _best_seed(path: str, seeds: Sequence[str]) -> str:
    results_file = os.path.join(path, "results.json")
    if not tf.io.gfile.exists(results_file):
        raise UserError(
            f"{path!r} has no results.json: its fine-tuning is not finished; run its command "
            "again, or name a finished seed"
        )
    results = files.read_json(results_file)
    metrics = results.get("dev", {}).get("seeds", {})
    if not metrics:
        if len(seeds) > 1:
            raise UserError(
                f"{path!r} has {len(seeds)} seeds and no dev metrics: name a seed, such as "
                f"{os.path.join(path, seeds[0])!r}"
            )
        return os.path.join(path, seeds[0])
    best = max(metrics, key=lambda seed: metrics[seed][results["best_metric"]])
    return os.path.join(path, f"seed_{best}")


def task_of(description: dict, columns: Mapping[str, str], quoting: str | None = None) -> Task:
    """Creates the task of a model, for reading and scoring files.

    `description` is the content of its task.json. `columns` maps fields such as "text" to columns
    that differ from fine-tuning, or to "" if there is no such column.
    """
    # Other programs may have named the task: the kind has a task for tables.
    task = TASKS.get(description["task"]) or TASKS[KINDS[description["kind"]].task]
    return task.restore(description, columns, quoting)


class FineTunedRun:
    """An AnsweringModel in OUTPUT_DIR/seed_N. Its `outputs` is a Prediction."""

    rows_per_part = ROWS_PER_PART

    def __init__(self, opened: OpenModel, task: Task):
        self.identity = {"weights": hash_of_weights(opened)}
        self._task, self._tokenizer = task, AlbertTokenizer.load(opened.directory)
        model = pretrained.load(opened, self._tokenizer)[0]
        self._max_seq_length = opened.task["max_seq_length"]
        strategy = tf.distribute.get_strategy()
        self.outputs = Prediction(strategy, model, _BATCH_SIZE, self._max_seq_length, False)

    def prepare(self, examples: list) -> tuple[Sequences, list]:
        """See AnsweringModel."""
        return self._task.encode(examples, self._tokenizer, self._max_seq_length, False)

    def answer(self, examples: list, prepared: tuple[Sequences, list]) -> dict[str, list]:
        """See AnsweringModel."""
        sequences, features = prepared
        answers = self._task.answers(examples, features, self.outputs(sequences))
        shares = sequences.unknown_shares(self._task.owners(features), self._tokenizer)
        rounded = [round(float(share), 6) for share in shares]
        return {**answers.columns, "unknown_share": rounded}


def score_out_of_fold(job: Finetuning, examples: list, numbers: Sequence[int]) -> None:
    """Predicts each example with the first seed of its fold, in `numbers`, and scores all."""
    task, output_dir, seed = job.task, job.output_dir, job.random_seeds[0]
    of_folds, outputs, divisions = {}, {}, []
    for fold in sorted({*numbers}):
        is_dev = np.equal(numbers, fold)
        dev = [*itertools.compress(examples, is_dev)]
        divisions.append(([*itertools.compress(examples, ~is_dev)], dev))
        path = os.path.join(output_dir, f"fold_{fold}", f"seed_{seed}")
        of_folds[fold] = files.read_json(os.path.join(path, RESULTS_FILE))["metrics"]["dev"]
        model = FineTunedRun(open_model(path), task)
        sequences, _ = model.prepare(dev)
        outputs[fold] = iter(model.outputs(sequences))
    _, features = model.prepare(examples)
    in_order = [next(outputs[numbers[owner]]) for owner in task.owners(features)]
    answers = task.answers(examples, features, in_order)
    metrics, details = task.score(answers.rows()), task.details(examples, answers)
    table, path = (os.path.join(output_dir, name) for name in ("out_of_fold.csv", RESULTS_FILE))
    write_table(table, {**answers.columns, "fold": numbers})
    paths = [table, *task.write(f"{output_dir}/predictions", "out_of_fold", examples, answers)]
    baselines = score_baselines(task, divisions) if job.baselines is None else {}
    summary = {"task": task.name, "seed": seed, "metrics": metrics, "details": details}
    files.write_json(path, {**summary, "baselines": baselines, "folds": of_folds})
    print(f"\n{task.name} out of fold: {len(examples):,} rows, {len(of_folds)} folds, seed {seed}")
    for name, value in metrics.items():
        interval = details.get("intervals", {}).get(name)
        spread = "   95 % interval {:.4f} to {:.4f}".format(*interval) if interval else ""
        found = [of_fold[name] for of_fold in of_folds.values()]
        spread += f"   folds {min(found):.4f} to {max(found):.4f}"
        print(f"  {name:<24} {value:8.4f}{spread}{describe_baselines(baselines, name)}")
    for line in describe_details(details, seed):
        print(f"  {line}")
    warn_of_baselines(baselines, task.best_metric, metrics[task.best_metric])
    print("\n".join([*(f"predictions  {of}" for of in paths), f"results      {path}"]))
