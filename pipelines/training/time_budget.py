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

    At least two steps are trained, which can take longer than a minute. The measurement changes the
    weights of the model in `train_step`. Discard them afterwards. The time for compilation,
    evaluations and checkpoints is not included.
    """
    with strategy.scope():
        optimization.create_slots(train_step.optimizer, train_step.model)
    batches = iter(
        strategy.distribute_datasets_from_function(lambda context: dataset_fn(0, context))
    )
    run_steps, never = make_step_loop(strategy, train_step), tf.Variable(False)

    def run_loop(num_steps):
        loop = run_steps(batches, tf.constant(num_steps), never, tf.constant(0.0))
        return int(loop["steps"])  # waits for the device

    print(f"measuring the rate of training for {_SECONDS:.0f} s", flush=True)
    run_loop(1)  # includes compilation, so it is not measured
    steps, started = 0, time.monotonic()
    while (seconds := time.monotonic() - started) < _SECONDS:
        # Loops of about a second: slow steps do not exceed the minute by much, and a signal ends
        # the program soon.
        per_second = int(steps / seconds) if seconds else 0
        steps += run_loop(max(1, min(steps_per_loop, per_second)))
    return max(1, round(hours * 3600 * steps / seconds))
