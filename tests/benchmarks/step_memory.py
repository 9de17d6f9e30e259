"""What a process that trains holds in memory at most: a whole step on random pieces, LAMB included.

Prints one JSON line; run it once for each setting, as a peak is a process' own.

Example (some minutes on 2 cores):
  python -m tests.benchmarks.step_memory --albert_config=albert_xxlarge --max_seq_length=512 \
      --global_batch_size=2 --gradient_accumulation_steps=2 --recompute
"""

from __future__ import annotations

import dataclasses
import json
import os
import time

import numpy as np
import tensorflow as tf
from absl import flags

from albert_tf import config as config_lib
from albert_tf import losses, optimization, program
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from pipelines.data.examples import ExampleOptions
from pipelines.training.run_settings import RunSettings, define_run_flags, precision
from pipelines.training.train_step import make_step_loop
from tests.benchmarks.memory import peak_megabytes

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags: those of a run, and the model's."""
    define_run_flags()
    flags.DEFINE_string("albert_config", "albert_base", "A size, or an albert_config.json.")
    flags.DEFINE_integer("max_seq_length", 128, "Pieces in an example.", lower_bound=8)
    flags.DEFINE_integer("steps", 1, "Steps to take.", lower_bound=1)


def main(_) -> None:
    """Trains and prints the peak."""
    name = FLAGS.albert_config
    config = AlbertConfig.named(name) if name in config_lib.NAMES else AlbertConfig.read(name)
    settings = RunSettings(
        **{field.name: FLAGS[field.name].value for field in dataclasses.fields(RunSettings)}
    )
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    settings.check(strategy)
    with strategy.scope(), precision(settings.mixed_precision):
        model = AlbertForPreTraining(config, settings.recompute)
        model.create_variables()
        optimizer = settings.optimizer()
        optimization.create_slots(optimizer, model)
    zero_sums = losses.zero_sums(losses.PRETRAINING_OBJECTIVES)
    run_steps = make_step_loop(strategy, settings.train_step(model, optimizer), zero_sums)
    options = ExampleOptions(max_seq_length=FLAGS.max_seq_length)
    batch = random_batch(config, options, settings.global_batch_size)
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    before = peak_megabytes()
    began = time.monotonic()
    stop = tf.Variable(False, trainable=False)
    totals = run_steps(iterator, tf.constant(FLAGS.steps), stop, tf.constant(0.0))
    loss = float(totals["sums"]["masked_lm"]["loss"] / totals["sums"]["masked_lm"]["weight"])
    assert int(totals["steps"]) == FLAGS.steps and np.isfinite(loss)
    print(
        json.dumps(
            {
                "albert_config": os.path.basename(name),
                "max_seq_length": FLAGS.max_seq_length,
                "global_batch_size": settings.global_batch_size,
                "gradient_accumulation_steps": settings.gradient_accumulation_steps,
                "recompute": settings.recompute,
                "steps": FLAGS.steps,
                "seconds": round(time.monotonic() - began, 1),
                "megabytes_before": before,
                "peak_megabytes": peak_megabytes(),
                "masked_lm_loss": loss,
            }
        ),
        flush=True,
    )


def random_batch(config: AlbertConfig, options: ExampleOptions, rows: int) -> dict[str, np.ndarray]:
    """Returns a batch like those of pretraining_dataset, without padding."""
    rng = np.random.default_rng(0)
    shape = [rows, options.max_seq_length]
    predictions = [rows, options.max_predictions_per_seq]
    return {
        "input_word_ids": rng.integers(5, config.vocab_size, shape, np.int32),
        "input_mask": np.ones(shape, np.int32),
        "input_type_ids": np.zeros(shape, np.int32),
        "masked_lm_positions": np.tile(
            np.sort(rng.permutation(shape[1])[: predictions[1]]).astype(np.int32), [rows, 1]
        ),
        "masked_lm_ids": rng.integers(5, config.vocab_size, predictions, np.int32),
        "masked_lm_weights": np.ones(predictions, np.float32),
        "sentence_order_labels": rng.integers(0, 2, [rows], np.int32),
        "sentence_order_weights": np.ones([rows], np.float32),
    }


if __name__ == "__main__":
    define_flags()
    program.run(main)
