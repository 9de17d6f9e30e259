"""The loop of every training job: steps on the device, everything else between loops."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Sequence
from typing import Callable, NamedTuple

import tensorflow as tf
from absl import logging

from albert_tf import optimization
from albert_tf.errors import UserError
from albert_tf.progress import Progress
from pipelines.training.checkpointing import Checkpointer
from pipelines.training.metrics_log import MetricsLog
from pipelines.training.objective import Objective
from pipelines.training.preemption import StopRequest
from pipelines.training.run import Run
from pipelines.training.settings import LoopSettings, TrainingSettings
from pipelines.training.strategy import has_several_hosts
from pipelines.training.train_step import make_step_loop


class Stage(NamedTuple):
    """A part of a run that is compiled by itself, such as one depth of a growing model.

    Attributes:
      first_step: where it begins.
      train_step: train_step.make_train_step.
      per_example: name of a rate in the log -> what one example adds to it.
      evaluate: (whether to stop) -> metrics of the model as it stands, on records that it does not
        see; none if it was stopped.
    """

    first_step: int
    train_step: Callable
    per_example: dict[str, float]
    evaluate: Callable[[Callable[[], bool]], dict[str, float]] | None = None


def train(
    *,
    run: Run,
    model: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
    objective: Objective,
    dataset_fn: Callable[[int, tf.distribute.InputContext], tf.data.Dataset],
    stages: Sequence[Stage],
    settings: TrainingSettings,
    loop: LoopSettings,
) -> None:
    """Trains `model` to settings.num_train_steps, from the newest checkpoint of the run.

    Args:
      run: model, with its variables, and optimizer were made in the scope of its strategy.
      dataset_fn: (first step, input context) -> endless batches of this host's replicas from that
        step on.
      stages: in order; the first begins at step 0. Only the last one keeps best weights.

    Raises:
      ValueError: if loss or gradient stops being finite; the last checkpoint stays.
      SystemExit: 128 + the signal's number, after SIGTERM or Ctrl-C and a checkpoint.
    """
    strategy, best_metric = run.strategy, objective.best_metric
    num_train_steps, global_batch_size = settings.num_train_steps, settings.global_batch_size
    # The order of resuming:
    # 1. Variables and slots exist (checkpoints restore into them).
    with strategy.scope():
        optimization.create_slots(optimizer, model)
    # 2. Weights, slots and the step count come back together.
    checkpointer = Checkpointer(run.model_dir, model, optimizer, writes=run.is_chief)
    step = checkpointer.restore()
    run.check_hosts_agree(step)
    if step:
        print(f"resuming from step {step:,}", flush=True)
    # 3. Logged curves are cut back to that step; they say what was best.
    log = MetricsLog(run.model_dir, step, writes=run.is_chief)

    def save(step: int) -> None:
        log.upload()
        checkpointer.save(step)

    # 4. Data begin at that step; nothing is read and thrown away but a part of one group.
    # Without this the hosts would exchange before every batch whether each of them still has one.
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    iterator = iter(
        strategy.distribute_datasets_from_function(
            lambda context: dataset_fn(step, context).apply(endless)
        )
    )

    allowed = loop.max_bad_batches
    stage_ends = [stage.first_step for stage in stages[1:]] + [num_train_steps]
    since = stages[-1].first_step
    progress = Progress("training", num_train_steps, done=step)
    with StopRequest() as stop, progress:

        def is_stopped() -> bool:
            # Several hosts stay together to the end of an evaluation.
            return stop.signal is not None and not has_several_hosts(strategy)

        for stage, stage_end in zip(stages, stage_ends):
            run_steps = make_step_loop(strategy, stage.train_step, objective.zero_sums())
            while step <= stage_end:
                # Also after a restart, of a checkpoint whose evaluation was cut short.
                is_due = step > stage.first_step and _is_due(step, loop.eval_steps, num_train_steps)
                if stage.evaluate and is_due and not log.has(best_metric, step):
                    metrics = stage.evaluate(is_stopped)
                    if not metrics:
                        save(step)
                        log.upload(last=True)
                        _leave(stop.signal, step)
                    best = max(log.values(best_metric, since), default=-math.inf)
                    if step > since and metrics.get(best_metric, -math.inf) > best:
                        checkpointer.save_best(step)
                    log.write(step, metrics)
                    value = metrics.get(best_metric, math.nan)
                    # Before the last stage nothing is kept as the best.
                    told = f", best {max(best, value):.4f}" if step > since else ""
                    print(f"step {step:,}: {best_metric} {value:.4f}{told}", flush=True)
                if step == stage_end or _is_over(log.values(best_metric, since), loop):
                    break

                # Loops end at the same steps wherever the run began: same log, same sums.
                loop_end = step - step % loop.steps_per_loop + loop.steps_per_loop
                loop_end = min(loop_end, stage_end)
                started = time.monotonic()
                totals = run_steps(
                    iterator, tf.constant(loop_end - step), stop.flag, tf.constant(float(allowed))
                )
                totals = tf.nest.map_structure(float, totals)  # waits for the device
                seconds = time.monotonic() - started
                bad_batches = _check_finite(totals, step, global_batch_size, optimizer, allowed)
                allowed -= bad_batches
                steps = int(totals["steps"])
                step += steps

                scalars = objective.metrics(totals["sums"])
                if with_gradient := steps - int(totals["without_gradient"]):
                    scalars["gradient_norm"] = totals["gradient_norm"] / with_gradient
                scalars["learning_rate"] = float(optimizer.learning_rate(step - 1))
                if hasattr(optimizer, "loss_scale"):
                    scalars["loss_scale"] = float(optimizer.loss_scale.value.read_value())
                for rate, amount in stage.per_example.items():
                    scalars[rate] = steps * global_batch_size * amount / seconds
                scalars["waiting_for_data"] = totals["seconds_waiting"] / seconds
                log.write(step, scalars)
                progress.update(step, _line(scalars))
                if totals["stop"] or _is_due(step, loop.save_checkpoint_steps, num_train_steps):
                    save(step)
                if totals["stop"]:
                    log.upload(last=True)
                    _leave(stop.signal or signal.SIGTERM, step)
        if step < num_train_steps:
            save(step)
            print(
                f"stopped early at step {step:,}: {loop.early_stopping_evaluations} "
                f"evaluations without a better {best_metric}"
            )
        log.upload(last=True)
        if stop.signal is not None:  # heard since the last step: what follows may take long
            _leave(stop.signal, step)


def _is_due(step: int, every: int, num_train_steps: int) -> bool:
    return every > 0 and (step % every == 0 or step == num_train_steps)


def _is_over(values: Sequence[float], loop: LoopSettings) -> bool:
    """Tells whether so many evaluations in a row brought nothing better."""
    patience = loop.early_stopping_evaluations
    return 0 < patience < len(values) and max(values[-patience:]) <= max(values[:-patience])


def _check_finite(totals, step: int, global_batch_size: int, optimizer, allowed: int) -> int:
    """Returns the number of batches without a finite gradient, if they are not too many."""
    bad_batches = int(totals["bad_batches"])
    if bad_batches:
        bad_step = step + int(totals["bad_step"])
        first = bad_step * global_batch_size
        what = (
            f"loss or gradient is not finite in the batch of step {bad_step} (examples {first:,} "
            f"to {first + global_batch_size - 1:,} of the run; learning rate "
            f"{float(optimizer.learning_rate(bad_step)):.3g})"
        )
        if bad_batches > allowed:
            raise UserError(
                f"{what}; the last checkpoint is kept: resume with --max_bad_batches, which skips "
                "a few such batches, or start a new run with a lower --learning_rate or a "
                "longer warm-up"
            )
        logging.warning("%s: its gradient counts as zero", what)
    return bad_batches


def _leave(number: int, step: int) -> None:
    print(
        f"\n{signal.Signals(number).name} at step {step:,}: checkpoint saved; run the same "
        "command again to resume",
        file=sys.stderr,
        flush=True,
    )
    sys.exit(128 + number)


def _line(scalars: dict[str, float]) -> str:
    accuracies = [
        f"{name.removesuffix('_accuracy').replace('_', ' ')} acc {value:.3f}, "
        for name, value in scalars.items()
        if name.endswith("_accuracy")
    ]
    peak = f"{100 * scalars['share_of_peak']:.0f} % of peak, " if "share_of_peak" in scalars else ""
    loss = f"loss {scalars['loss']:.3f}" if "loss" in scalars else "no finite loss"
    return (
        f"{loss}, {''.join(accuracies)}"
        f"lr {scalars['learning_rate']:.2g}, "
        f"{scalars['examples_per_second']:,.0f} examples/s, "
        f"{scalars['tokens_per_second']:,.0f} tokens/s, {peak}"
        f"{100 * scalars['waiting_for_data']:.1f} % waiting for data"
    )
