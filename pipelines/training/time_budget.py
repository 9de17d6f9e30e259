"""Converts hours of training to steps, by measuring the training speed for one minute."""

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
    """Returns the number of steps that take `hours`, estimated from one minute of training.

    The result is a multiple of `steps_per_loop`. The measurement changes the weights of the model
    in `train_step`. Discard them afterwards. The time for compilation, evaluations and checkpoints
    is not included.
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
    run_loop()  # includes compilation, so it is not measured
    steps, started = 0, time.monotonic()
    while (seconds := time.monotonic() - started) < _SECONDS:
        steps += run_loop()
    loops = round(hours * 3600 * steps / seconds / steps_per_loop)
    return max(1, loops) * steps_per_loop
