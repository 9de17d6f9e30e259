"""The loss that a run minimises, and the metrics that it reports."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from albert_tf import losses, metrics


class Objective(NamedTuple):
    """Functions that compute the loss and the metrics of a task from sums over examples.

    Divide these sums only after they have been added up over replicas, micro-batches and steps.

    Attributes:
      weights: takes a batch. Returns the denominator of each loss, without running the model.
      sums: takes model outputs and a batch. Returns sums over the batch, nested float32 scalars.
      loss: takes the sums of a part of the batch and the denominators of the global batch. Returns
        the contribution of this part to the loss, a float32 scalar.
      metrics: takes sums. Returns a dict of metrics to log. Empty if there are no examples.
      zero_sums: takes no arguments. Returns the sums of an empty batch.
      best_metric: name of the evaluation metric that selects MODEL_DIR/best. Higher is better.
      former_best_metric: the best_metric of earlier versions. A run that such a version began
        keeps it, so that the best weights of its directory are not replaced by worse ones.
    """

    weights: Callable[[dict], dict]
    sums: Callable[[dict, dict], dict]
    loss: Callable[[dict, dict], tf.Tensor]
    metrics: Callable[[dict], dict[str, float]]
    zero_sums: Callable[[], dict]
    best_metric: str = ""
    former_best_metric: str = ""


def pretraining_objective(order_weight: float = 1.0) -> Objective:
    """Returns the pre-training objective. See `losses.pretraining_loss`."""
    return Objective(
        weights=losses.pretraining_weights,
        sums=losses.pretraining_sums,
        loss=functools.partial(losses.pretraining_loss, order_weight=order_weight),
        metrics=metrics.pretraining_metrics,
        zero_sums=lambda: losses.zero_sums(losses.PRETRAINING_SUMS),
        best_metric="heldout_masked_lm_at_mask_accuracy",
        former_best_metric="heldout_masked_lm_accuracy",
    )
