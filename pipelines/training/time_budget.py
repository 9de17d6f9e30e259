"""Converts hours into steps: trains for a minute and measures the rate."""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf

from albert_tf import optimization
from .train_step import TrainStep, make_step_loop

_SECONDS = 60.0


def steps_of_hours(
    hours: float,
    strategy: tf.distribute.Strategy,
    train_step: TrainStep,
    dataset_fn: Callable[[int, tf.distribute.InputContext], tf.data.Dataset],
    steps_per_loop: int,
) -> int:
    """Returns how many steps fit into `hours`, at a rate measured in one minute of training.

    The number is a multiple of `steps_per_loop`. The measurement trains the model of `train_step`:
    discard its weights. Compilation, evaluations and checkpoints take additional time.
    """
    with strategy.scope():
        optimization.create_slots(train_step.optimizer, train_step.model)
    batches = iter(
        strategy.distribute_datasets_from_function(lambda context: dataset_fn(0, context))
    )
    run_steps, never = make_step_loop(strategy, train_step), tf.Variable(False)

    def run_loop():
        loop = run_steps(batches, tf.constant(steps_per_loop), never, tf.constant(0.0))
        return int(loop["steps"])  # waits for the device

    print(f"measuring the rate of training for {_SECONDS:.0f} s", flush=True)
    run_loop()  # compiles
    steps, started = 0, time.monotonic()
    while (seconds := time.monotonic() - started) < _SECONDS:
        steps += run_loop()
    loops = round(hours * 3600 * steps / seconds / steps_per_loop)
    return max(1, loops) * steps_per_loop
