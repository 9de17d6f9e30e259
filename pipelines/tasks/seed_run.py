"""Fine-tuning with one seed: the model, its training, its best weights' figures and predictions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf import files, optimization
from albert_tf.checkpoints import model_directory, saved_model
from albert_tf.config import AlbertConfig
from pipelines.tasks.batches import example_lengths, make_prediction, training_dataset
from pipelines.tasks.task import Sequences, Task
from pipelines.training import train_loop
from pipelines.training.run_settings import check_batch, precision
from pipelines.training.strategy import check_hosts_agree, is_chief, is_tpu
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
        """See check_batch.

        Raises:
          ValueError: also if the warm-up is longer than the run.
        """
        check_batch(
            strategy, self.global_batch_size, self.gradient_accumulation_steps, self.jit_compile
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
    agreed: dict,
) -> dict:
    """Trains with one seed, then scores and predicts all splits but "train".

    What was done before is not done again: a finished seed only predicts, if its predictions are
    not those of these splits and this decoding.

    Args:
      agreed: settings that all hosts must agree on.

    Returns:
      What lies in MODEL_DIR/results.json: `figures` by split, and `predicted`, of what.
    """
    path = os.path.join(model_dir, RESULTS_FILE)
    predicted = what_is_predicted(task, splits)
    is_trained = tf.io.gfile.exists(path)
    if is_trained:
        results = files.read_json(path)
        if results["predicted"] == predicted:
            return results
        if is_chief(strategy):  # killed amidst the files, it must not take the old ones for new
            files.write_atomically(path, json.dumps({**results, "predicted": None}) + "\n")

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
        source = saved_model if saved_model.is_saved_model(checkpoint) else model_directory
        source.restore_encoder(model.encoder, checkpoint)

    # TPUs and XLA want every batch alike.
    has_fixed_length = settings.jit_compile or is_tpu(strategy)
    rows = settings.global_batch_size // settings.gradient_accumulation_steps
    predictions = {
        name: make_prediction(
            strategy, model, split.sequences, rows, settings.max_seq_length, has_fixed_length
        )
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
    settings_hash = zlib.crc32(json.dumps({**agreed, "seed": seed}).encode()) >> 1
    if not is_trained:
        train_loop.train(
            strategy=strategy,
            model=model,
            optimizer=optimizer,
            dataset_fn=lambda first_step, context: training_dataset(
                train,
                settings.global_batch_size,
                seed,
                first_step,
                settings.max_seq_length,
                has_fixed_length,
                context,
            ),
            stages=[
                train_loop.Stage(
                    0,
                    task_train_step(task, model, optimizer, settings, seed),
                    {"examples_per_second": 1, "tokens_per_second": tokens},
                    score_dev if schedule.eval_steps else None,
                )
            ],
            zero_sums=zero_sums(),
            metrics_fn=training_metrics,
            num_train_steps=settings.num_train_steps,
            schedule=schedule,
            model_dir=model_dir,
            global_batch_size=settings.global_batch_size,
            best_metric=f"dev_{task.best_metric}",
            settings_hash=settings_hash,
        )
    # Other hosts look for the weights when the one that writes has written, and find the same.
    check_hosts_agree(strategy, 0, settings_hash)
    directory = (
        os.path.join(model_dir, model_directory.BEST_DIR) if schedule.eval_steps else model_dir
    )
    _, weights = model_directory.find_checkpoint(directory)
    check_hosts_agree(strategy, int(weights.rpartition("-")[2]), settings_hash)
    model_directory.restore_weights(model, weights)

    figures = {}
    for name, predict in predictions.items():
        split, outputs = splits[name], predict()
        if scores := task.score(split.examples, split.units, outputs):
            figures[name] = scores
        if is_chief(strategy):
            for written in task.write_predictions(
                os.path.join(model_dir, "predictions"), name, split.examples, split.units, outputs
            ):
                print(f"predictions  {written}")
    results = {"figures": figures, "predicted": predicted}
    if is_chief(strategy):
        description = {"task": task.name, "max_seq_length": settings.max_seq_length}
        description.update({**task.description(), **task.decoding()})
        for file, content in ((model_directory.TASK_FILE, description), (RESULTS_FILE, results)):
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            files.write_atomically(os.path.join(model_dir, file), text)
    return results


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
        weights_fn=lambda batch: tf.reduce_sum(batch["weight"]),
        sums_fn=lambda outputs, batch: {
            "loss": tf.reduce_sum(task.losses(outputs, batch) * batch["weight"]),
            "weight": tf.reduce_sum(batch["weight"]),
        },
        loss_fn=lambda sums, weight: sums["loss"] / weight,
        seed=seed,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        jit_compile=settings.jit_compile,
    )


def zero_sums() -> dict:
    """Returns what the sums of task_train_step's steps are added to."""
    return {"loss": tf.zeros([]), "weight": tf.zeros([])}


def training_metrics(sums: dict[str, float]) -> dict[str, float]:
    """Returns the mean loss; where no batch counted there is none."""
    return {"loss": sums["loss"] / sums["weight"]} if sums["weight"] else {}


def what_is_predicted(task: Task, splits: dict[str, Split]) -> dict:
    """Returns what a seed's predictions depend on beside its weights."""
    return {
        "decoding": task.decoding(),
        **{name: fingerprint(split) for name, split in splits.items() if name != "train"},
    }


def fingerprint(split: Split) -> str:
    """Returns a hash of the examples as they were read and as the model reads them."""
    digest = hashlib.sha256()
    for example in split.examples:
        digest.update(repr(example).encode("utf-8", "replace"))
    for values in (split.sequences.pieces, split.sequences.row_splits):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]
