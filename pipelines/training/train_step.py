"""The loss that a run minimises, one optimizer step, and a loop of steps on the device."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from albert_tf import losses, metrics, optimization
from .settings import TrainingSettings

_MAX_GRADIENT_NORM = 1.0  # maximum global norm over all variables, as in the reference


class Objective(NamedTuple):
    """Functions that compute the loss and the metrics of a task from sums over examples.

    Divide these sums only after adding them up over replicas, micro-batches and steps.

    Attributes:
      weights: takes a batch. Returns the denominator of each loss, without running the model.
      sums: takes model outputs and a batch. Returns sums over the batch, nested float32 scalars.
      loss: takes the sums of a part of the batch and the denominators of the global batch. Returns
        the contribution of this part to the loss, a float32 scalar.
      metrics: takes sums. Returns a dict of metrics to log. Empty if there are no examples.
      zero_sums: takes no arguments. Returns the sums of an empty batch.
      best_by: names of the evaluation metrics that select MODEL_DIR/best. A later one decides only
        between equal values of those before. For losses, lower is better; for others, higher.
    """

    weights: Callable[[dict], dict]
    sums: Callable[[dict, dict], dict]
    loss: Callable[[dict, dict], tf.Tensor]
    metrics: Callable[[dict], dict[str, float]]
    zero_sums: Callable[[], dict]
    best_by: tuple[str, ...] = ()


def pretraining_objective(order_weight: float = 1.0) -> Objective:
    """Returns the pre-training objective. See `losses.pretraining_loss`."""
    return Objective(
        weights=losses.pretraining_weights,
        sums=losses.pretraining_sums,
        loss=functools.partial(losses.pretraining_loss, order_weight=order_weight),
        metrics=metrics.pretraining_metrics,
        zero_sums=lambda: losses.zero_sums(losses.PRETRAINING_SUMS),
        # The accuracy stands still while a model learns only the frequencies of pieces.
        best_by=("heldout_masked_lm_at_mask_loss", "heldout_masked_lm_loss"),
    )


class TrainStep:
    """One optimizer step on one replica. The results are for the global batch.

    The loss is a mean over the global batch, so replicas and micro-batches with fewer predictions
    have less weight. `forward` takes a batch and a dropout seed, and returns the outputs of
    `model`. `optimizer` counts the steps. Create this object in the scope of the strategy.

    Attributes:
      loss_scale: with float16, the dynamic factor of the loss, else None.
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
        self.loss_scale: optimization.LossScale | None = None
        if settings.mixed_precision == "float16":
            self.loss_scale = optimization.LossScale(optimizer)
        compute = self._compute if settings.gradient_accumulation_steps == 1 else self._accumulate
        # Do not compile the update here: some strategies do not allow this (see `_apply`).
        self._sums_and_gradients = (
            tf.function(compute, autograph=False, jit_compile=True)
            if settings.jit_compile
            else compute
        )
        # With XLA, an update makes one pass over memory. Without XLA, it makes about twenty.
        self._compiled_update = tf.function(self._update, autograph=False, jit_compile=True)

    def run(self, batch: dict[str, tf.Tensor], stop: tf.Tensor) -> dict:
        """Computes gradients, clips them and updates the model.

        Args:
          batch: this replica's rows of the global batch.
          stop: scalar bool. True if this host received a stop request.

        Returns:
          Dict of float32 scalars: `sums` of the objective (nested), `gradient_norm` (0 after an
          overflow of float16), `bad_batches` (0 or 1; the run must end after a bad batch),
          `overflows` (0 or 1) and `stop` (number of replicas with a request).
        """
        replica = tf.distribute.get_replica_context()
        # All hosts stop after the same step.
        denominators, stop = replica.all_reduce(
            tf.distribute.ReduceOp.SUM, (self.objective.weights(batch), tf.cast(stop, tf.float32))
        )
        scale = self.loss_scale.value.read_value() if self.loss_scale else tf.ones([])
        seed = self._dropout_seed(replica)
        sums, gradients = self._sums_and_gradients(batch, seed, denominators, scale)
        sums, gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, (sums, gradients))
        if self.loss_scale:
            gradients = [gradient / scale for gradient in gradients]
        gradients, norm = optimization.clip_by_global_norm(gradients, _MAX_GRADIENT_NORM)
        has_loss = tf.math.is_finite(self.objective.loss(sums, denominators))
        is_finite = tf.math.is_finite(norm) & has_loss
        is_bad, is_overflow = ~is_finite, tf.constant(False)
        if self.loss_scale:
            # After an overflow, a smaller scale may help. MirroredStrategy does not allow
            # apply_gradients inside a conditional, so the update uses zero gradients instead.
            is_overflow = is_bad & has_loss & (scale > 1.0)
            is_bad &= ~is_overflow
            # Use multiply_no_nan, because infinity * 0 is nan.
            keep = tf.cast(is_finite, tf.float32)
            gradients = [tf.math.multiply_no_nan(gradient, keep) for gradient in gradients]
            norm = tf.math.multiply_no_nan(norm, keep)
            self.loss_scale.update(is_finite)
        self._apply(gradients, replica)
        return {
            "sums": sums,
            "gradient_norm": norm,
            "bad_batches": tf.cast(is_bad, tf.float32),
            "overflows": tf.cast(is_overflow, tf.float32),
            "stop": stop,
        }

    def _dropout_seed(self, replica: tf.distribute.ReplicaContext) -> tf.Tensor:
        # A pure function of (seed, step, replica), so a resumed run draws the same dropout masks.
        fold_in = tf.random.experimental.stateless_fold_in
        seed = fold_in([self._seed, 0], self.optimizer.iterations)
        return tf.cast(fold_in(seed, replica.replica_id_in_sync_group), tf.int32)

    def _compute(self, batch, dropout_seed, denominators, scale):
        """Returns the objective's sums over the batch, and the gradients of the scaled loss."""
        with tf.GradientTape() as tape:
            sums = self.objective.sums(self._forward(batch, dropout_seed), batch)
            loss = self.objective.loss(sums, denominators)
            if self.loss_scale:
                loss *= scale
        # Weights that a task does not use, such as the pooler's, get a gradient of 0. They decay.
        gradients = tape.gradient(
            loss,
            self.model.trainable_variables,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return sums, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _accumulate(self, batch, dropout_seed, denominators, scale):
        """Returns the results of `_compute`, summed over all micro-batches."""
        num_parts = self.settings.gradient_accumulation_steps
        cut = {
            name: tf.reshape(
                rows,
                # -1 is for a sequence length that is unknown when the graph is built.
                [num_parts, rows.shape[0] // num_parts]
                + [-1 if size is None else size for size in rows.shape[1:]],
            )
            for name, rows in batch.items()
        }

        def part(i):
            # Use tf.gather, because XLA would compile rows[i] as a slice of dynamic size.
            micro_batch = {name: tf.gather(rows, i) for name, rows in cut.items()}
            micro_seed = tf.random.experimental.stateless_fold_in(dropout_seed, i)
            return self._compute(micro_batch, micro_seed, denominators, scale)

        # Use a loop in the graph, so that only one micro-batch is in memory at a time.
        return tf.while_loop(
            lambda i, _: i < num_parts,
            lambda i, totals: (i + 1, tf.nest.map_structure(tf.add, totals, part(i))),
            (tf.constant(1), part(tf.constant(0))),
            parallel_iterations=1,
        )[1]

    def _apply(self, gradients, replica):
        # XLA cannot compile the update of a legacy Keras optimizer if it calls merge_call, which
        # it does under MirroredStrategy even for a single device.
        is_alone = isinstance(replica.strategy, tf.distribute.OneDeviceStrategy)
        is_alone |= not tf.distribute.has_strategy()
        (self._compiled_update if is_alone else self._update)(gradients)

    def _update(self, gradients):
        # `run` has already summed the gradients over replicas.
        pairs = list(zip(gradients, self.model.trainable_variables))
        self.optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


def make_step_loop(strategy: tf.distribute.Strategy, train_step: TrainStep) -> Callable[..., dict]:
    """Returns a function `run_steps(iterator, num_steps, stop)`.

    `run_steps` runs up to `num_steps` steps. It ends early after a bad batch, or after a step that
    started while the bool variable `stop` was True on any host. It returns the scalars of
    TrainStep.run, summed over all steps, and `steps`, the number of steps that were run.
    """

    # Trace the bound method: MirroredStrategy calls a decorated method without `self`.
    step = tf.function(train_step.run, autograph=False)

    def one_step(iterator, stop):
        values = strategy.run(step, (next(iterator), stop))
        # All replicas hold the global values. strategy.reduce would run a collective for each one.
        return tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], values
        )

    @tf.function(autograph=False)
    def run_steps(iterator, num_steps, stop):
        names = "gradient_norm", "bad_batches", "overflows", "stop"
        totals = {"sums": train_step.objective.zero_sums(), **{n: tf.zeros([]) for n in names}}

        def is_unfinished(steps, totals):
            return (steps < num_steps) & (totals["bad_batches"] + totals["stop"] == 0.0)

        def add_step(steps, totals):
            values = one_step(iterator, stop.read_value())
            return steps + 1, tf.nest.map_structure(tf.add, totals, values)

        steps, totals = tf.while_loop(is_unfinished, add_step, (tf.constant(0), totals))
        return {**totals, "steps": steps}

    return run_steps
