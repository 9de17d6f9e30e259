"""A finished run of fine-tuning given a new test file: predicted and scored, nothing else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence

import tensorflow as tf

from albert_tf import files, job_directory
from albert_tf.checkpoints import model_directory
from albert_tf.errors import UserError
from .fine_tuned import FineTunedRun, read_description, task_of
from .results import RESULTS_FILE, name_test_sets, summarise, write_summary
from .seed_run import TaskSplit, fingerprint


def finished_seeds(output_dir: str) -> list[int]:
    """Returns the seeds of a run that are trained to the end."""
    names = tf.io.gfile.listdir(output_dir) if tf.io.gfile.isdir(output_dir) else []
    seeds = [int(match[1]) for name in names if (match := re.fullmatch(r"seed_(\d+)/?", name))]
    return sorted(
        seed
        for seed in seeds
        if tf.io.gfile.exists(_in_seed(output_dir, seed, RESULTS_FILE))
        and tf.io.gfile.exists(_in_seed(output_dir, seed, model_directory.TASK_FILE))
    )


def predict_test_files(output_dir: str, paths: Sequence[str], batch_size: int) -> dict:
    """Predicts test files with every finished seed; the figures of earlier sets stay.

    Returns:
      The content of OUTPUT_DIR/results.json.

    Raises:
      UserError: if there is no finished seed, or the files are at fault.
    """
    seeds = finished_seeds(output_dir)
    if not seeds:
        raise UserError(
            f"--output_dir: no finished run in {output_dir!r} to predict --test_file with; to "
            "fine-tune give --task and its data"
        )
    with job_directory.lock(output_dir):
        results = {seed: _predict(output_dir, seed, paths, batch_size) for seed in seeds}
        earlier_file = os.path.join(output_dir, RESULTS_FILE)
        description = read_description(os.path.join(output_dir, f"seed_{seeds[0]}"))
        task = task_of(description, {})
        best_metric = task.best_metric
        if tf.io.gfile.exists(earlier_file):
            best_metric = files.read_json(earlier_file)["best_metric"]
        summary = summarise(task.name, best_metric, results)
        write_summary(output_dir, summary)
    return summary


def stored_metrics(output_dir: str) -> dict[int, dict[str, dict]]:
    """Returns the metrics of each finished seed by split."""
    return {
        seed: files.read_json(_in_seed(output_dir, seed, RESULTS_FILE))["metrics"]
        for seed in finished_seeds(output_dir)
    }


def _predict(output_dir: str, seed: int, paths: Sequence[str], batch_size: int) -> dict:
    """Predicts with one seed; returns its metrics by split."""
    directory = os.path.join(output_dir, f"seed_{seed}")
    task = task_of(read_description(directory), {})
    examples = list(task.read_files(paths))
    model = FineTunedRun(directory, task, batch_size)
    sequences, features = model.prepare(examples)
    digest = fingerprint(TaskSplit(examples, sequences, features))
    name = name_test_sets(output_dir, {"test": digest}, {"test": paths}, writes=True)["test"]
    path = _in_seed(output_dir, seed, RESULTS_FILE)
    stored = files.read_json(path)
    if (stored.get("predicted") or {}).get(name) == digest:
        return stored["metrics"]
    outputs = model.outputs(sequences)
    predictions = os.path.join(directory, "predictions")
    for written in task.write_predictions(predictions, name, examples, features, outputs):
        print(f"predictions  {written}")
    if metrics := task.score(examples, features, outputs):
        stored["metrics"] = {**stored["metrics"], name: metrics}
    stored["predicted"] = {**(stored.get("predicted") or {}), name: digest}
    files.write_atomically(path, json.dumps(stored, indent=2, ensure_ascii=False) + "\n")
    return stored["metrics"]


def _in_seed(output_dir: str, seed: int, name: str) -> str:
    return os.path.join(output_dir, f"seed_{seed}", name)
