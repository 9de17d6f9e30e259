"""Fine-tuning with one seed: the model, its training, its best weights' figures and predictions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf import files, optimization
from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from pipelines.tasks.batches import example_lengths, make_prediction, training_dataset
from pipelines.tasks.task import Sequences, Task
from pipelines.training import train_loop
from pipelines.training.run_settings import precision
from pipelines.training.strategy import is_chief
from pipelines.training.train_loop import Schedule
from pipelines.training.train_step import make_train_step

RESULTS_FILE = "results.json"


@dataclasses.dataclass(frozen=True)
class FinetuneSettings:
    """What decides the weights that a run ends in, beside model, data and seed."""

    max_seq_length: int | None
    global_batch_size: int
    num_train_steps: int
    num_warmup_steps: int
    learning_rate: float
    weight_decay: float = 0.01
    gradient_accumulation_steps: int = 1
    mixed_precision: str = "none"
    jit_compile: bool = False
    recompute: bool = False

    def check(self, strategy: tf.distribute.Strategy) -> None:
        """Makes sure that a batch divides among devices and micro-batches.

        Raises:
          ValueError: if it does not.
        """
        replicas = strategy.num_replicas_in_sync
        if self.global_batch_size % (replicas * self.gradient_accumulation_steps):
            raise ValueError(
                f"--global_batch_size={self.global_batch_size} does not divide among {replicas} "
                f"replicas x --gradient_accumulation_steps={self.gradient_accumulation_steps}"
            )
        if self.num_warmup_steps > self.num_train_steps:
            raise ValueError(
                f"--num_warmup_steps={self.num_warmup_steps} is beyond "
                f"--num_train_steps={self.num_train_steps}"
            )


class Split(NamedTuple):
    """A part of a task's data, read and cut to pieces."""

    examples: list
    sequences: Sequences
    units: list
    fingerprint: str


def run_seed(
    task: Task,
    splits: dict[str, Split],
    config: AlbertConfig,
    checkpoint: str | None,
    model_dir: str,
    seed: int,
    settings: FinetuneSettings,
    schedule: Schedule,
    strategy: tf.distribute.Strategy,
) -> dict[str, float]:
    """Trains with one seed, scores, predicts; returns the figures on dev."""
    results_file = os.path.join(model_dir, RESULTS_FILE)
    predicted = {name: split.fingerprint for name, split in splits.items() if name != "train"}
    if tf.io.gfile.exists(results_file):
        results = files.read_json(results_file)
        if results["predicted"] == predicted:
            return results["dev"]

    # The initializers draw from Keras' global seed, in the order in which variables are made.
    tf.keras.utils.set_random_seed(seed)
    with strategy.scope(), precision(settings.mixed_precision):
        model = task.create_model(config, settings.recompute)
        model.create_variables()
        optimizer = optimization.adamw(
            optimization.WarmUpPolynomialDecay(
                settings.learning_rate, settings.num_train_steps, settings.num_warmup_steps
            ),
            settings.weight_decay,
        )
    checkpoints = model_directory.checkpoints_directory(model_dir)
    if checkpoint and not model_directory.list_checkpoints(checkpoints):
        model_directory.restore_encoder(model.encoder, checkpoint)

    # TPUs and XLA want every batch alike.
    is_static = settings.jit_compile or isinstance(strategy, tf.distribute.TPUStrategy)
    fixed_length = settings.max_seq_length if is_static else None
    train_step = task_train_step(task, model, optimizer, settings, seed)
    rows = settings.global_batch_size // settings.gradient_accumulation_steps
    predictions = {
        name: make_prediction(strategy, model, split.sequences, rows, fixed_length)
        for name, split in splits.items()
        if name != "train"
    }

    def score_dev(is_stopped) -> dict[str, float]:
        outputs = predictions["dev"](is_stopped)
        if outputs is None:
            return {}
        figures = task.score(splits["dev"].examples, splits["dev"].units, outputs)
        return {f"dev_{name}": value for name, value in figures.items()}

    train = splits["train"].sequences
    tokens = float(np.mean(example_lengths(train))) * train.sequences_per_example
    evaluate = score_dev if schedule.eval_steps else None
    train_loop.train(
        strategy=strategy,
        model=model,
        optimizer=optimizer,
        dataset_fn=lambda first_step, context: training_dataset(
            train, settings.global_batch_size, seed, first_step, fixed_length, context
        ),
        stages=[
            train_loop.Stage(
                0,
                train_step,
                {"examples_per_second": 1, "tokens_per_second": tokens},
                evaluate,
            )
        ],
        zero_sums=zero_sums(),
        metrics_fn=lambda sums: {"loss": sums["task"]["loss"] / sums["task"]["weight"]},
        num_train_steps=settings.num_train_steps,
        schedule=schedule,
        model_dir=model_dir,
        global_batch_size=settings.global_batch_size,
        best_metric=f"dev_{task.best_metric}",
        settings_hash=seed,
    )
    if evaluate:
        _, best = model_directory.find_checkpoint(os.path.join(model_dir, model_directory.BEST_DIR))
        model_directory.restore_weights(model, best)

    figures = {}
    for name, predict in predictions.items():
        split = splits[name]
        outputs = predict()
        if name == "dev":
            figures = task.score(split.examples, split.units, outputs)
        if is_chief(strategy):
            for path in task.write_predictions(
                os.path.join(model_dir, "predictions"), name, split.examples, split.units, outputs
            ):
                print(f"predictions  {path}")
    if is_chief(strategy):
        results = {"dev": figures, "predicted": predicted}
        files.write_atomically(results_file, json.dumps(results, indent=2) + "\n")
    return figures


def task_train_step(
    task: Task,
    model: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
    settings: FinetuneSettings,
    seed: int,
) -> Callable:
    """Returns train_step.make_train_step on the mean of the examples' losses."""
    return make_train_step(
        forward=model,
        model=model,
        optimizer=optimizer,
        weights_fn=lambda batch: {"task": tf.reduce_sum(batch["weight"])},
        sums_fn=lambda outputs, batch: {
            "task": {
                "loss": tf.reduce_sum(task.losses(outputs, batch) * batch["weight"]),
                "weight": tf.reduce_sum(batch["weight"]),
            }
        },
        loss_fn=lambda sums, denominators: sums["task"]["loss"] / denominators["task"],
        seed=seed,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        jit_compile=settings.jit_compile,
    )


def zero_sums() -> dict:
    """Returns what the sums of task_train_step's steps are added to."""
    return {"task": {"loss": tf.zeros([]), "weight": tf.zeros([])}}


def fingerprint(sequences: Sequences) -> str:
    """Returns a hash of pieces and labels."""
    digest = hashlib.sha256()
    for array in (sequences.pieces, sequences.row_splits, *sequences.labels.values()):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
