"""The loss that a run minimises, and the metrics that it reports."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from albert_tf import losses, metrics


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
