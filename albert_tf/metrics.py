"""Metrics of pre-training: means per counted prediction, Wilson intervals, layer distances."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from scipy import stats

from albert_tf.losses import PRETRAINING_OBJECTIVES


def pretraining_metrics(sums: dict[str, dict[str, float]]) -> dict[str, float]:
    """Turns pretraining_sums (added over batches) into loss and accuracy per counted prediction.

    Losses are in nats, per predicted piece and per example with an order label; `loss` is the
    unweighted sum of both. `openings` and `inside`: see order_kinds. `separator` is the order
    scored at [SEP]. A metric without counted examples is absent.
    """
    metrics = {}
    for name in (*PRETRAINING_OBJECTIVES, "separator"):
        values = sums[name]
        if weight := float(values["weight"]):
            metrics[f"{name}_loss"] = float(values["loss"]) / weight
            metrics[f"{name}_accuracy"] = float(values["correct"]) / weight
            if name in PRETRAINING_OBJECTIVES:
                metrics["loss"] = metrics.get("loss", 0.0) + metrics[f"{name}_loss"]
    for kind, (correct, pairs) in order_kinds(sums).items():
        if pairs:
            metrics[f"{kind}_accuracy"] = correct / pairs
            metrics[f"{kind}_pairs"] = pairs
    return metrics


def order_kinds(sums: dict[str, dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Returns kind of pair -> (correct, pairs) of sentence order.

    "openings" are pairs of segments at the start of their document, "inside" all others. A model
    learns openings much sooner, so one figure for both is hard to interpret. Without a counted
    opening the dict is empty, because only the total is known.
    """
    openings, both = sums["openings"], sums["sentence_order"]
    if not float(openings["weight"]):
        return {}
    counts = [(float(s["correct"]), float(s["weight"])) for s in (openings, both)]
    (correct, pairs), (all_correct, all_pairs) = counts
    return {"openings": (correct, pairs), "inside": (all_correct - correct, all_pairs - pairs)}


def add_exactly(totals, values):
    """Adds nested values to totals of the same structure (initially None), in float64.

    In float32 a count stops growing at 2**24.
    """
    values = tf.nest.map_structure(lambda value: np.asarray(value, np.float64), values)
    return values if totals is None else tf.nest.map_structure(np.add, totals, values)


def wilson_interval(correct: float, total: float) -> tuple[float, float]:
    """Returns the 95 % interval of a proportion.

    Source: Wilson 1927. Unlike the normal approximation, this interval is valid near 0 and 1.
    """
    if not total:
        return 0.0, 1.0
    interval = stats.binomtest(round(correct), round(total)).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def layer_distances(hidden_states: list[tf.Tensor], input_mask: tf.Tensor) -> dict[str, tf.Tensor]:
    """Sums, over real positions, how far each block moves its input.

    `hidden_states` are AlbertEncoder's; `input_mask` is int32 [b, L], 1 = real. `l2_distance` and
    `degrees`, float32 [blocks], sum the Euclidean distances and the angles between a block's input
    and output. `weight`, the number of real positions, is the denominator of both.

    Source: Lan et al. 2020, Fig. 1.
    """
    weights = tf.cast(input_mask, tf.float32)
    distances, degrees = [], []
    for before, after in zip(hidden_states, hidden_states[1:]):
        before, after = tf.cast(before, tf.float32), tf.cast(after, tf.float32)
        distances.append(tf.reduce_sum(tf.norm(after - before, axis=-1) * weights))
        # Not the arc cosine: in float32 it returns 0 for angles below 0.02 degrees.
        unit_before, unit_after = tf.math.l2_normalize(before, -1), tf.math.l2_normalize(after, -1)
        angles = 2.0 * tf.atan2(
            tf.norm(unit_after - unit_before, axis=-1), tf.norm(unit_after + unit_before, axis=-1)
        )
        degrees.append(tf.reduce_sum(angles * (180.0 / math.pi) * weights))
    return {
        "l2_distance": tf.stack(distances),
        "degrees": tf.stack(degrees),
        "weight": tf.reduce_sum(weights),
    }


def layer_means(sums: dict[str, np.ndarray]) -> dict[str, list[float]]:
    """Returns the means `l2_distance` and `degrees` of layer_distances, one value per block."""
    return {name: (sums[name] / sums["weight"]).tolist() for name in ("l2_distance", "degrees")}
