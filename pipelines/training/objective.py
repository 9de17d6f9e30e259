"""The loss that a run minimises, and the metrics that it reports."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from albert_tf import losses, metrics


class Objective(NamedTuple):
    """Losses as sums; divide only after summing over replicas, micro-batches and steps.

    Attributes:
      weights: batch -> the denominator of each loss, computed without the model.
      sums: (model outputs, batch) -> nested float32 scalars, sums over the batch.
      loss: (sums of a part of the batch, denominators of the global batch) -> float32 scalar, the
        part's share of the loss.
      metrics: sums -> {name: metric to log}; empty for sums without examples.
      zero_sums: () -> the sums of an empty batch.
      best_metric: name of the evaluation metric that selects MODEL_DIR/best; higher is better.
    """

    weights: Callable[[dict], dict]
    sums: Callable[[dict, dict], dict]
    loss: Callable[[dict, dict], tf.Tensor]
    metrics: Callable[[dict], dict[str, float]]
    zero_sums: Callable[[], dict]
    best_metric: str = ""


def pretraining_objective(order_weight: float = 1.0) -> Objective:
    """Returns the objective of pre-training: see losses.pretraining_loss."""
    return Objective(
        weights=losses.pretraining_weights,
        sums=losses.pretraining_sums,
        loss=functools.partial(losses.pretraining_loss, order_weight=order_weight),
        metrics=metrics.pretraining_metrics,
        zero_sums=lambda: losses.zero_sums(losses.PRETRAINING_SUMS),
        best_metric="heldout_masked_lm_accuracy",
    )
