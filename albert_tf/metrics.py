"""Metrics of pre-training: mean loss, accuracy and Wilson intervals."""

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
