"""What a process that trains holds in memory at most: a whole step on random pieces, LAMB included.

Prints one JSON line; run it once for each setting, as a peak is a process' own.

Example (some minutes on 2 cores):
  python -m tests.benchmarks.step_memory --albert_config=albert_xxlarge --max_seq_length=512 \
      --global_batch_size=2 --gradient_accumulation_steps=2 --recompute
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import tensorflow as tf
from absl import flags

from albert_tf import config as config_lib
from albert_tf.config import AlbertConfig
from albert_tf.jobs import program
from albert_tf.jobs.settings import define_settings_flags, settings_from_flags
from albert_tf.models import AlbertForPreTraining
from pipelines.data.examples import ExampleOptions
from pipelines.training.settings import (
    PUBLISHED,
    PretrainingSettings,
    precision,
)
from tests.benchmarks.memory import peak_megabytes
from tests.benchmarks.train_step import make_batch, step_of_pretraining

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags: those of a run, and the model's."""
    define_settings_flags(PretrainingSettings, **PUBLISHED)
    flags.DEFINE_string("albert_config", "albert_base", "A size, or an albert_config.json.")
    flags.DEFINE_integer("max_seq_length", 128, "Pieces in an example.", lower_bound=8)
    flags.DEFINE_integer("steps", 1, "Steps to take.", lower_bound=1)


def main(_) -> None:
    """Trains and prints the peak."""
    name = FLAGS.albert_config
    config = AlbertConfig.named(name) if name in config_lib.NAMES else AlbertConfig.read(name)
    settings = settings_from_flags(PretrainingSettings)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    settings.check(strategy)
    with strategy.scope(), precision(settings.mixed_precision):
        model = AlbertForPreTraining(config, settings.recompute)
        model.create_variables()
        predictions = ExampleOptions(FLAGS.max_seq_length).max_predictions_per_seq
        batch = make_batch(
            FLAGS.max_seq_length, settings.global_batch_size, predictions, config.vocab_size
        )
        run = step_of_pretraining(settings, strategy, model, batch)
    before = peak_megabytes()
    began = time.monotonic()
    totals = run(FLAGS.steps)
    loss = totals["sums"]["masked_lm"]["loss"] / totals["sums"]["masked_lm"]["weight"]
    assert totals["steps"] == FLAGS.steps and np.isfinite(loss)
    figures = {
        "flags": sys.argv[1:],
        "seconds": round(time.monotonic() - began, 1),
        "megabytes_before": before,
        "peak_megabytes": peak_megabytes(),
        "masked_lm_loss": loss,
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    define_flags()
    program.run(main)
