"""Metrics of pre-training: mean loss, accuracy, Wilson intervals and distances between layers."""

import itertools
import math

import numpy as np
import tensorflow as tf
from scipy import stats

from albert_tf.losses import PRETRAINING_OBJECTIVES


def pretraining_metrics(sums: dict[str, dict[str, float]]) -> dict[str, float]:
    """Computes mean losses and accuracies from pretraining_sums, summed over batches.

    Losses are in nats. `masked_lm_loss` is the mean per predicted piece, `sentence_order_loss` the
    mean per example with an order label, and `loss` their unweighted sum. For `openings` and
    `inside` see order_kinds. `separator` refers to the order predicted at [SEP]. `..._pairs` are
    numbers of order labels. If `sums` contains `masked_lm_at_mask`, there are metrics of the
    predictions at [MASK] alone. Metrics without examples are omitted.
    """
    metrics = {}
    for name, values in sums.items():
        weight = float(values["weight"])
        if weight and name != "openings":
            metrics[f"{name}_loss"] = float(values["loss"]) / weight
            metrics[f"{name}_accuracy"] = float(values["correct"]) / weight
            if name == "sentence_order":
                metrics["sentence_order_pairs"] = weight
            if name in PRETRAINING_OBJECTIVES:
                metrics["loss"] = metrics.get("loss", 0.0) + metrics[f"{name}_loss"]
    for kind, (correct, pairs) in order_kinds(sums).items():
        if pairs:
            metrics[f"{kind}_accuracy"] = correct / pairs
            metrics[f"{kind}_pairs"] = pairs
    return metrics


def order_kinds(sums: dict[str, dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Counts correct and all sentence-order predictions, separately for each kind of pair.

    "openings" are pairs of segments at the start of a document, and "inside" are all other pairs. A
    model learns openings much sooner, so a single accuracy for both is hard to interpret. If `sums`
    contains no openings, the pairs cannot be separated, and the dict is empty.
    """
    openings, both = sums["openings"], sums["sentence_order"]
    if not float(openings["weight"]):
        return {}
    counts = [(float(s["correct"]), float(s["weight"])) for s in (openings, both)]
    (correct, pairs), (all_correct, all_pairs) = counts
    return {"openings": (correct, pairs), "inside": (all_correct - correct, all_pairs - pairs)}


def add_exactly(totals, values):
    """Adds nested `values` to `totals` (None in the first call) in float64.

    A float32 count would stop growing at 2**24.
    """
    values = tf.nest.map_structure(lambda value: np.asarray(value, np.float64), values)
    return values if totals is None else tf.nest.map_structure(np.add, totals, values)


def wilson_interval(correct: float, total: float) -> tuple[float, float]:
    """Returns the 95 % confidence interval of a proportion.

    Source: Wilson 1927. Unlike the normal approximation, this interval is valid near 0 and 1.
    """
    if not total:
        return 0.0, 1.0
    interval = stats.binomtest(round(correct), round(total)).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def layer_distances(hidden_states: list[tf.Tensor], input_mask: tf.Tensor) -> dict[str, tf.Tensor]:
    """Sums the distance and angle between each block's input and output over real positions.

    `hidden_states` is an output of AlbertEncoder. `input_mask` is int32 [b, L], 1 = real. The sums
    `l2_distance` (Euclidean) and `degrees` are float32 [blocks]; `weight` is the number of real
    positions.

    Source: Lan et al. 2020, Fig. 1.
    """
    weights = tf.cast(input_mask, tf.float32)
    distances, degrees = [], []
    for before, after in itertools.pairwise(hidden_states):
        before, after = tf.cast(before, tf.float32), tf.cast(after, tf.float32)
        distances.append(tf.reduce_sum(tf.norm(after - before, axis=-1) * weights))
        # In float32, the arc cosine would return 0 for angles below 0.02 degrees.
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
    """Returns the mean `l2_distance` and `degrees` of each block, averaged over positions."""
    return {name: (sums[name] / sums["weight"]).tolist() for name in ("l2_distance", "degrees")}
