"""What is reported of a run: means with their denominators, intervals, the baseline to beat."""

from __future__ import annotations

import math


def pretraining_metrics(sums: dict[str, dict[str, float]]) -> dict[str, float]:
    """Turns pretraining_sums (added over batches) into loss and accuracy per counted prediction.

    Returns:
      `masked_lm_loss` (nats per predicted piece), `masked_lm_accuracy`, `sentence_order_loss`
      (nats per example with an order), `sentence_order_accuracy`, and `loss`, the two losses' sum.
      nan where nothing was counted.
    """
    metrics = {}
    for objective, values in sums.items():
        weight = float(values["weight"])
        for name, key in (("loss", "loss"), ("accuracy", "correct")):
            metrics[f"{objective}_{name}"] = float(values[key]) / weight if weight else math.nan
    losses = [value for name, value in metrics.items() if name.endswith("_loss")]
    metrics["loss"] = sum(value for value in losses if not math.isnan(value))
    return metrics


def wilson_interval(correct: float, total: float) -> tuple[float, float]:
    """Returns the 95 % interval of a proportion.

    Source: Wilson 1927; unlike the normal approximation it holds near 0 and 1.
    """
    if not total:
        return 0.0, 1.0
    z = 1.959963984540054
    share = correct / total
    center = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = (
        z
        / (1 + z * z / total)
        * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    )
    return max(0.0, center - half), min(1.0, center + half)
