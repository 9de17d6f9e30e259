"""One optimizer step, and the loop of steps that stays on the device."""

from __future__ import annotations

from typing import Callable

import tensorflow as tf

from albert_tf import optimization
from .objective import Objective
from .settings import TrainingSettings

_MAX_GRADIENT_NORM = 1.0  # the reference's, over all variables


class TrainStep:
    """One optimizer step of one replica. Its results cover the global batch.

    The loss is a mean over the global batch, so replicas and micro-batches with fewer predictions
    weigh less. A gradient that is not finite counts as 0, and the sums leave its batch out. Under
    float16 they do so only if the loss is not finite.

    `forward` is a function (batch, dropout seed) -> outputs of `model`. `optimizer` counts the
    steps. Only gradient_accumulation_steps and jit_compile of `settings` are used.
    """

    def __init__(
        self,
        forward: Callable[[dict, tf.Tensor], dict],
        model: tf.keras.Model,
        objective: Objective,
        optimizer: tf.keras.optimizers.Optimizer,
        settings: TrainingSettings,
        seed: int,
    ):
        self.model, self.objective, self.optimizer = model, objective, optimizer
        self.settings = settings
        self._forward, self._seed = forward, seed
        self._loss_scale = getattr(optimizer, "loss_scale", None)
        compute = self._compute if settings.gradient_accumulation_steps == 1 else self._accumulate
        # Compile forward and backward pass only: the update does not compile everywhere (`_apply`).
        self._sums_and_gradients = (
            tf.function(compute, jit_compile=True) if settings.jit_compile else compute
        )
        # XLA updates a variable in one pass over memory; the optimizer's operations take twenty.
        self._compiled_update = tf.function(self._update, jit_compile=True)

    @tf.function
    def run(self, batch: dict[str, tf.Tensor], stop: tf.Tensor) -> dict:
        """Computes gradients, clips them and updates the model.

        Args:
          batch: this replica's rows of the global batch.
          stop: scalar bool, whether this host has a request to stop.

        Returns:
          Float32 scalars: `sums` of the objective, `gradient_norm`, `bad_batches` (0 or 1),
          `without_gradient` (0 or 1) and `stop`, the number of hosts with a request to stop.
        """
        replica = tf.distribute.get_replica_context()
        # Hosts agree on when to stop, so that none waits for a step that another host skips.
        denominators, stop = replica.all_reduce(
            tf.distribute.ReduceOp.SUM, (self.objective.weights(batch), tf.cast(stop, tf.float32))
        )
        # Compute this replica's part of the loss times `scale`, and sum over all replicas.
        scale = self._loss_scale.value.read_value() if self._loss_scale else tf.ones([])
        seed = self._dropout_seed(replica)
        sums, gradients = self._sums_and_gradients(batch, seed, denominators, scale)
        sums, gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, (sums, gradients))
        # Scale back and clip.
        if self._loss_scale:
            gradients = [gradient / scale for gradient in gradients]
        gradients, norm = optimization.clip_by_global_norm(gradients, _MAX_GRADIENT_NORM)
        # Apply. Skipping the update would need a branch around apply_gradients, which
        # MirroredStrategy forbids. So a bad batch still decays the moments and counts as a step.
        has_loss = tf.math.is_finite(self.objective.loss(sums, denominators))
        finite = tf.math.is_finite(norm) & has_loss
        keep = tf.cast(finite, tf.float32)
        # multiply_no_nan, because infinity * 0 is nan.
        self._apply([tf.math.multiply_no_nan(gradient, keep) for gradient in gradients], replica)
        # Measure.
        is_bad, counted = ~finite, keep
        if self._loss_scale:
            self._loss_scale.update(finite)
            is_bad &= ~has_loss | (scale <= 1.0)  # otherwise a smaller scale helps
            counted = tf.cast(has_loss, tf.float32)
        return {
            "sums": tf.nest.map_structure(lambda x: tf.math.multiply_no_nan(x, counted), sums),
            "gradient_norm": tf.math.multiply_no_nan(norm, keep),
            "bad_batches": tf.cast(is_bad, tf.float32),
            "without_gradient": 1.0 - keep,
            "stop": stop,
        }

    def _dropout_seed(self, replica: tf.distribute.ReplicaContext) -> tf.Tensor:
        # A pure function of (seed, step, replica): a resumed run draws the same dropout.
        fold_in = tf.random.experimental.stateless_fold_in
        seed = fold_in([self._seed, 0], self.optimizer.iterations)
        return tf.cast(fold_in(seed, replica.replica_id_in_sync_group), tf.int32)

    def _compute(self, batch, dropout_seed, denominators, scale):
        """Returns the objective's sums over the batch, and the gradients of the scaled loss."""
        with tf.GradientTape() as tape:
            sums = self.objective.sums(self._forward(batch, dropout_seed), batch)
            loss = self.objective.loss(sums, denominators)
            if self._loss_scale:
                loss *= scale
        # Some tasks do not use all weights, such as the pooler's. The gradient of unused weights
        # is 0: they only decay, by learning rate times weight decay, some 1e-6 per step.
        gradients = tape.gradient(
            loss,
            self.model.trainable_variables,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return sums, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _accumulate(self, batch, dropout_seed, denominators, scale):
        """Returns the result of `_compute`, summed over micro-batches."""
        num_parts = self.settings.gradient_accumulation_steps
        cut = {
            name: tf.reshape(
                rows,
                # -1 stands for a length that is unknown when the graph is built.
                [num_parts, rows.shape[0] // num_parts]
                + [-1 if size is None else size for size in rows.shape[1:]],
            )
            for name, rows in batch.items()
        }

        def part(i):
            # Not rows[i], which XLA compiles as a slice of dynamic size.
            micro_batch = {name: tf.gather(rows, i) for name, rows in cut.items()}
            micro_seed = tf.random.experimental.stateless_fold_in(dropout_seed, i)
            return self._compute(micro_batch, micro_seed, denominators, scale)

        # A loop in the graph, so that one micro-batch is in memory at a time.
        return tf.while_loop(
            lambda i, _: i < num_parts,
            lambda i, totals: (i + 1, tf.nest.map_structure(tf.add, totals, part(i))),
            (tf.constant(1), part(tf.constant(0))),
            parallel_iterations=1,
        )[1]

    def _apply(self, gradients, replica):
        # XLA cannot compile the updates of Keras' older optimizers if replicas are merged, which
        # MirroredStrategy does even for a single device.
        is_alone = isinstance(replica.strategy, tf.distribute.OneDeviceStrategy)
        is_alone |= not tf.distribute.has_strategy()
        (self._compiled_update if is_alone else self._update)(gradients)

    def _update(self, gradients):
        # `run` has summed the gradients over replicas.
        pairs = list(zip(gradients, self.model.trainable_variables))
        self.optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


def make_step_loop(strategy: tf.distribute.Strategy, train_step: TrainStep) -> Callable[..., dict]:
    """Returns run_steps(iterator, num_steps, stop, allowed) -> totals of the steps taken.

    The loop ends early after more than `allowed` bad batches. It also ends after a step that began
    while `stop`, a bool variable, was true on any host. A batch is bad if its gradient is not
    finite, unless float16's loss scale is the cause. `totals` adds up the scalars of TrainStep.run.
    It also has `seconds_waiting` (for data), `steps` (taken) and `bad_step`, the index of the last
    bad step in this loop (-1: none).
    """

    def one_step(iterator, stop, after):
        # Control dependencies fix the order, so that the difference is the wait for data.
        with tf.control_dependencies([after]):
            asked = tf.timestamp()
        with tf.control_dependencies([asked]):
            batch = next(iterator)
        local = strategy.experimental_local_results(batch)[0]
        with tf.control_dependencies(tf.nest.flatten(local)):
            seconds_waiting = tf.cast(tf.timestamp() - asked, tf.float32)
        # Otherwise a single-threaded run could read the clock only after the step.
        with tf.control_dependencies([seconds_waiting]):
            values = strategy.run(train_step.run, (batch, stop))
        # Every replica holds the global values. strategy.reduce would run a collective for each.
        values = tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], values
        )
        return {**values, "seconds_waiting": seconds_waiting}

    @tf.function
    def run_steps(iterator, num_steps, stop, allowed):
        names = "gradient_norm", "bad_batches", "without_gradient", "stop", "seconds_waiting"
        totals = {"sums": train_step.objective.zero_sums(), **{n: tf.zeros([]) for n in names}}
        steps, bad_step = tf.constant(0), tf.constant(-1)
        while steps < num_steps and totals["bad_batches"] <= allowed and totals["stop"] == 0.0:
            values = one_step(iterator, stop.read_value(), totals["gradient_norm"])
            bad_step = tf.where(values["bad_batches"] > 0, steps, bad_step)
            totals = tf.nest.map_structure(tf.add, totals, values)
            steps += 1
        return {**totals, "steps": steps, "bad_step": bad_step}

    return run_steps
