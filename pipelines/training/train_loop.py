"""The training loop of all jobs, which runs steps on the device in loops of several steps."""

import math
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import tensorflow as tf

from albert_tf import optimization
from albert_tf.storage.errors import UserError
from albert_tf.storage.progress import Progress
from .checkpointing import Checkpointer
from .metrics_log import MetricsLog, accuracy_text
from .preemption import StopRequest
from .run import Run
from .settings import LoopSettings
from .strategy import check_hosts_agree, has_several_hosts
from .train_step import TrainStep, make_step_loop


class TrainLoop:
    """Trains a run from its newest checkpoint to its last step.

    Args:
      run: model variables and `train_step` must have been created in the scope of its strategy.
      train_step: the training step, with the model, optimizer, objective and settings.
      dataset_fn: function of a first step and an input context that returns an infinite dataset:
        the batches of this host's replicas, starting at that step.
      loop: how often to log, save and evaluate.
      mean_length: mean number of tokens of an example, without padding.
      evaluate: function of `on_batch` that returns the metrics of the current model on held-out
        data. It calls `on_batch` with the number of finished batches before each batch.
      stop_step: step at which to stop before the last one, or None. A step beyond the end has no
        effect. Raises a UserError if the newest checkpoint is of a later step.
    """

    def __init__(
        self,
        run: Run,
        train_step: TrainStep,
        dataset_fn: Callable[[int, tf.distribute.InputContext], tf.data.Dataset],
        loop: LoopSettings,
        mean_length: float,
        evaluate: Callable[[Callable[[int], None]], dict[str, float]] | None = None,
        stop_step: int | None = None,
    ):
        self._run, self._train_step, self._loop = run, train_step, loop
        self._mean_length, self._evaluate = mean_length, evaluate
        self._settings, self._objective = train_step.settings, train_step.objective
        self._optimizer = optimizer = train_step.optimizer
        self._num_train_steps = self._settings.num_train_steps
        self._last_step = min(stop_step or self._num_train_steps, self._num_train_steps)
        # A checkpoint is restored to existing variables and slots.
        with run.strategy.scope():
            optimization.create_slots(optimizer, train_step.model)
        self._checkpointer = Checkpointer(
            run.model_dir, train_step.model, optimizer, writes=run.is_chief
        )
        self._step = step = self._checkpointer.restore()
        check_hosts_agree(run.strategy, step, run.settings)
        if step:
            print(f"resuming from step {step:,}", flush=True)
        if step > self._last_step:
            raise UserError(
                f"--stop_step={stop_step}: {run.model_dir!r} is at step {step} already: give a "
                "later step"
            )
        self._log = MetricsLog(run.model_dir, step, writes=run.is_chief)
        # With an unknown cardinality, all hosts would exchange a message before every batch.
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        self._iterator = iter(
            run.strategy.distribute_datasets_from_function(
                lambda context: dataset_fn(step, context).apply(endless)
            )
        )
        self._stop = StopRequest()
        self._progress = Progress("training", self._last_step, done=step)

    def train(self) -> None:
        """Trains until settings.num_train_steps, stop_step, early stopping or a signal.

        Raises a UserError if loss or gradient is not finite, and a SystemExit of 128 + signal
        number on SIGTERM or Ctrl-C, after saving a checkpoint.
        """
        with self._stop, self._progress:
            self._run_loops()
            if self._step < self._num_train_steps and _is_over(self._best_values(), self._loop):
                self._save()
                print(
                    f"stopped early at step {self._step:,}: "
                    f"{self._loop.early_stopping_evaluations} evaluations without a better "
                    f"{self._objective.best_by[0]}"
                )
            elif self._step < self._num_train_steps:
                print(
                    f"stopped at step {self._step:,} of {self._num_train_steps:,} (--stop_step): "
                    "run the same command with a later --stop_step, or without it, to continue"
                )
            self._log.upload()
            # If a signal came after the last step, exit now: the caller's next work may take long.
            if self._stop.signal is not None:
                self._leave()

    def _run_loops(self) -> None:
        loop, end = self._loop, self._last_step
        run_steps = make_step_loop(self._run.strategy, self._train_step)
        while self._step <= end:
            self._evaluate_if_due()
            if self._step == end or _is_over(self._best_values(), loop):
                return
            # A resumed run ends its loops at the same steps, so it logs the same sums. If a signal
            # or stop_step ends a loop early, its log entry is split into two.
            steps = min(loop.end_after(self._step), end) - self._step
            started = time.monotonic()
            totals = run_steps(self._iterator, tf.constant(steps), self._stop.flag)
            totals = tf.nest.map_structure(float, totals)  # waits for the device
            seconds = time.monotonic() - started
            self._step += int(totals["steps"])
            if totals["bad_batches"]:
                self._refuse_bad_batch()
            scalars = self._scalars(totals, seconds)
            self._log.write(self._step, scalars)
            self._progress.update(self._step, _line(scalars))
            if totals["stop"] or self._step == end or self._is_due(loop.save_checkpoint_steps):
                self._save()
            if totals["stop"]:
                self._leave()

    def _evaluate_if_due(self) -> None:
        # A resumed run first repeats an evaluation that was interrupted.
        step, best_by = self._step, self._objective.best_by
        is_due = step > 0 and self._is_due(self._loop.eval_steps)
        is_done = any(entry["step"] == step for entry in self._log.entries(best_by))
        if not self._evaluate or not is_due or is_done:
            return

        def leave_if_stopped(_) -> None:
            # With several hosts, no evaluation is interrupted, because all must stop together.
            if self._stop.signal is not None and not has_several_hosts(self._run.strategy):
                self._save()
                self._leave()

        metrics = self._evaluate(leave_if_stopped)
        found = _rank(metrics, best_by)
        best = max(self._best_values(), default=_rank({}, best_by))
        if found > best:
            self._checkpointer.save_best(step)
        self._log.write(step, metrics)
        value, best_value = metrics.get(best_by[0], math.nan), max(best, found)[0]
        if best_by[0].endswith("loss"):
            best_value = -best_value
        told = f", best {best_value:.4f}" if math.isfinite(best_value) else ""
        print(f"step {step:,}: {best_by[0]} {value:.4f}{told}", flush=True)

    def _leave(self) -> NoReturn:
        """Exits the program after a signal on this host or another host."""
        self._log.upload()
        number = self._stop.signal or signal.SIGTERM
        print(
            f"\n{signal.Signals(number).name} at step {self._step:,}: checkpoint saved; run the "
            "same command again to resume",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(128 + number)

    def _best_values(self) -> list[tuple[float, ...]]:
        names = self._objective.best_by
        return [_rank(entry, names) for entry in self._log.entries(names)]

    def _scalars(self, totals, seconds: float) -> dict[str, float]:
        steps = int(totals["steps"])
        scalars = self._objective.metrics(totals["sums"])
        if with_gradient := steps - int(totals["overflows"]):
            scalars["gradient_norm"] = totals["gradient_norm"] / with_gradient
        # The learning rate of the last step. Steps are counted from 0.
        scalars["learning_rate"] = float(self._optimizer.learning_rate(self._step - 1))
        if self._train_step.loss_scale:
            scalars["loss_scale"] = float(self._train_step.loss_scale.value.read_value())
        examples = steps * self._settings.global_batch_size
        scalars["examples_per_second"] = examples / seconds
        scalars["tokens_per_second"] = examples * self._mean_length / seconds
        return scalars

    def _save(self) -> None:
        self._log.upload()
        self._checkpointer.save(self._step)

    def _is_due(self, every: int) -> bool:
        return every > 0 and (self._step % every == 0 or self._step == self._num_train_steps)

    def _refuse_bad_batch(self) -> NoReturn:
        bad_step, size = self._step - 1, self._settings.global_batch_size
        raise UserError(
            f"loss or gradient is not finite in the batch of step {bad_step} (examples "
            f"{bad_step * size:,} to {bad_step * size + size - 1:,} of the run; learning rate "
            f"{float(self._optimizer.learning_rate(bad_step)):.3g}); the last checkpoint is kept: "
            "start a new run from it (--init_checkpoint) with a lower --learning_rate, a longer "
            "warm-up or another --random_seed"
        )


def _rank(metrics: Mapping[str, float], names: Sequence[str]) -> tuple[float, ...]:
    """Returns the metrics of an evaluation, so that a higher tuple is better (Objective.best_by).

    A missing or non-finite metric is the worst.
    """
    values = (metrics.get(name, math.nan) for name in names)
    signed = (-value if name.endswith("loss") else value for name, value in zip(names, values))
    return tuple(value if math.isfinite(value) else -math.inf for value in signed)


def _is_over(values: Sequence[tuple[float, ...]], loop: LoopSettings) -> bool:
    """Returns True if none of the last --early_stopping_evaluations values is a new best."""
    patience = loop.early_stopping_evaluations
    return 0 < patience < len(values) and max(values[-patience:]) <= max(values[:-patience])


def _line(scalars: dict[str, float]) -> str:
    accuracies = [
        f"{accuracy_text(name, scalars)}, " for name in scalars if name.endswith("_accuracy")
    ]
    loss = f"loss {scalars['loss']:.3f}" if "loss" in scalars else "no finite loss"
    return (
        f"{loss}, {''.join(accuracies)}"
        f"lr {scalars['learning_rate']:.2g}, "
        f"{scalars['examples_per_second']:,.0f} examples/s, "
        f"{scalars['tokens_per_second']:,.0f} tokens/s"
    )
