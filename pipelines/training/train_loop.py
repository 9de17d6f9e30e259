"""The loop of every training job: steps on the device, everything else between loops."""

from __future__ import annotations

import math
import time
from typing import Callable

import tensorflow as tf

from albert_tf import losses, metrics, optimization
from pipelines.training.checkpointing import Checkpointer
from pipelines.training.metrics_log import MetricsLog
from pipelines.training.progress import Progress

# Objective -> its sums: losses.weighted_cross_entropy.
Sums = dict


def train(
    *,
    strategy: tf.distribute.Strategy,
    model: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
    dataset_fn: Callable[[int, tf.distribute.InputContext], tf.data.Dataset],
    objectives: tuple[str, ...],
    sums_fn: Callable[[dict, dict], Sums],
    loss_fn: Callable[[Sums, dict], tf.Tensor],
    model_dir: str,
    num_train_steps: int,
    steps_per_loop: int,
    save_checkpoint_steps: int,
    global_batch_size: int,
    max_seq_length: int,
    seed: int,
    max_grad_norm: float = 1.0,
) -> None:
    """Trains `model` to `num_train_steps`, going on from the newest checkpoint in `model_dir`.

    Args:
      strategy: model and optimizer were made in its scope.
      dataset_fn: (first step, input context) -> batches of this host's replicas from that step on.
      objectives: names of the sums.
      sums_fn: (model outputs, batch) -> sums of each objective over the replica's batch.
      loss_fn: (sums, denominators over all replicas) -> the replica's share of the loss.
      steps_per_loop: steps on the device between two looks of the host: one log entry each.
      save_checkpoint_steps: steps between checkpoints, a multiple of steps_per_loop.
      seed: of dropout.
      max_grad_norm: global norm to which the summed gradient is clipped.

    Raises:
      ValueError: if the loss stops being a finite number; the last checkpoint stays.
    """
    # The order of resuming:
    # 1. Variables and slots exist (checkpoints restore into them).
    with strategy.scope():
        model.create_variables()
        optimization.create_slots(optimizer, model)
    # 2. Weights, slots and the step count come back together.
    checkpointer = Checkpointer(model_dir, model, optimizer)
    step = checkpointer.restore()
    # 3. Logged curves are cut back to that step.
    log = MetricsLog(model_dir, step)
    # 4. Data begin at that step; nothing is read and thrown away but a part of one group.
    iterator = iter(
        strategy.distribute_datasets_from_function(lambda context: dataset_fn(step, context))
    )
    run_steps = _compile(
        strategy, model, optimizer, objectives, sums_fn, loss_fn, seed, max_grad_norm
    )

    with Progress("training", num_train_steps, done=step) as progress:
        while step < num_train_steps:
            # Loops end at multiples of steps_per_loop wherever the run began: same log, same sums.
            loop_end = min(step - step % steps_per_loop + steps_per_loop, num_train_steps)
            started = time.monotonic()
            totals = run_steps(iterator, tf.constant(loop_end - step))
            totals = tf.nest.map_structure(float, totals)  # waits for the device
            examples = (loop_end - step) * global_batch_size / (time.monotonic() - started)
            scalars = metrics.pretraining_metrics(totals["sums"])
            scalars["gradient_norm"] = totals["gradient_norm"] / (loop_end - step)
            scalars["learning_rate"] = float(optimizer.learning_rate(loop_end - 1))
            scalars["examples_per_second"] = examples
            scalars["tokens_per_second"] = examples * max_seq_length
            step = loop_end
            if not math.isfinite(scalars["loss"]) or not math.isfinite(scalars["gradient_norm"]):
                raise ValueError(
                    f"loss or gradient is not finite within the {steps_per_loop} steps before step "
                    f"{step} (learning rate {scalars['learning_rate']:.3g}); the last checkpoint "
                    "is kept: start a new run with a lower --learning_rate or a longer warm-up"
                )
            log.write(step, scalars)
            progress.update(step, _line(scalars))
            if step % save_checkpoint_steps == 0 or step == num_train_steps:
                checkpointer.save(step)


def _compile(strategy, model, optimizer, objectives, sums_fn, loss_fn, seed, max_grad_norm):
    """Returns run_steps(iterator, num_steps) -> sums of the steps' sums and gradient norms."""

    def train_step(batch):
        replica = tf.distribute.get_replica_context()
        # A pure function of (seed, step, replica): a resumed run draws the same dropout.
        dropout_seed = tf.random.experimental.stateless_fold_in([seed, 0], optimizer.iterations)
        dropout_seed = tf.random.experimental.stateless_fold_in(
            dropout_seed, replica.replica_id_in_sync_group
        )
        with tf.GradientTape() as tape:
            sums = sums_fn(model(batch, dropout_seed=tf.cast(dropout_seed, tf.int32)), batch)
            # Means are over the global batch: replicas with fewer predictions weigh less.
            weights = {objective: values["weight"] for objective, values in sums.items()}
            loss = loss_fn(sums, replica.all_reduce(tf.distribute.ReduceOp.SUM, weights))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        gradients, norm = optimization.clip_by_global_norm(gradients, max_grad_norm)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables), experimental_aggregate_gradients=False
        )
        sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, sums)
        return {"sums": sums, "gradient_norm": norm}

    def one_step(iterator):
        values = strategy.run(train_step, (next(iterator),))
        # Every replica holds the global value: the mean takes it as it is.
        return tf.nest.map_structure(
            lambda value: strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None), values
        )

    @tf.function
    def run_steps(iterator, num_steps):
        totals = {"sums": losses.zero_sums(objectives), "gradient_norm": tf.zeros([])}
        for _ in tf.range(num_steps):
            totals = tf.nest.map_structure(tf.add, totals, one_step(iterator))
        return totals

    return run_steps


def _line(scalars: dict[str, float]) -> str:
    accuracies = [
        f"{name.removesuffix('_accuracy').replace('_', ' ')} acc {value:.3f}, "
        for name, value in scalars.items()
        if name.endswith("_accuracy")
    ]
    return (
        f"loss {scalars['loss']:.3f}, {''.join(accuracies)}"
        f"lr {scalars['learning_rate']:.2g}, "
        f"{scalars['examples_per_second']:,.0f} examples/s, "
        f"{scalars['tokens_per_second']:,.0f} tokens/s"
    )
