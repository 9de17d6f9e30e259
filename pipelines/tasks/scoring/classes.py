"""What a classifier's figures are worth: their intervals, and the figures of each label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from albert_tf.metrics import wilson_interval

_DRAWS = 1000


def confusion_matrix(answers: np.ndarray, predictions: np.ndarray, num_labels: int) -> np.ndarray:
    """Returns int64 [labels, labels]: how many rows of each label got which prediction.

    Args:
      answers: int [n], the right labels as places among all labels.
      predictions: int [n], the model's, likewise.
      num_labels: of the model.
    """
    counts = np.zeros([num_labels, num_labels], np.int64)
    np.add.at(counts, (answers, predictions), 1)
    return counts


def intervals(counts: np.ndarray, metrics: Sequence[str]) -> dict[str, list[float]]:
    """Returns metric -> [low, high], its 95 % interval.

    Accuracy has Wilson's. F1 and Matthews' correlation have no formula: the rows are drawn anew
    1,000 times (bootstrap), and the middle 95 % of the figures are returned.

    Args:
      counts: of confusion_matrix.
      metrics: names of metrics.METRICS. A metric of numbers gets no interval.
    """
    found, total = {}, int(counts.sum())
    shares = (counts / total).ravel()
    drawn = np.random.default_rng(0).multinomial(total, shares, _DRAWS)
    drawn = drawn.reshape(_DRAWS, *counts.shape).astype(np.float64)
    for name in metrics:
        if name == "accuracy":
            found[name] = list(wilson_interval(float(np.trace(counts)), total))
        elif name in FIGURES:
            values = np.quantile(FIGURES[name](drawn), [0.025, 0.975])
            found[name] = [float(value) for value in values]
    return found


def _f1(counts: np.ndarray) -> np.ndarray:
    """Returns [draws, labels], 0 for a label without rows and predictions."""
    right = np.diagonal(counts, axis1=1, axis2=2)
    return 2 * right / np.maximum(counts.sum(axis=1) + counts.sum(axis=2), 1)


def _macro_f1(counts: np.ndarray) -> np.ndarray:
    """Returns [draws]: the mean over the labels that a row or a prediction has."""
    seen = counts.sum(axis=1) + counts.sum(axis=2) > 0
    return _f1(counts).sum(axis=1) / seen.sum(axis=1)


def _matthews(counts: np.ndarray) -> np.ndarray:
    total = counts.sum(axis=(1, 2))
    rows, predicted = counts.sum(axis=2), counts.sum(axis=1)
    covariance = np.trace(counts, axis1=1, axis2=2) * total - (rows * predicted).sum(axis=1)
    variances = [total**2 - (sums**2).sum(axis=1) for sums in (rows, predicted)]
    return covariance / np.maximum(np.sqrt(variances[0] * variances[1]), 1e-9)


# Name as of metrics.METRICS -> (float64 [draws, labels, labels] of confusion matrices) -> [draws].
FIGURES = {
    "f1": lambda counts: _f1(counts)[:, 1],  # of class 1, of two
    "macro_f1": _macro_f1,
    "matthews_correlation": _matthews,
}


def figures_of_labels(counts: np.ndarray, labels: Sequence[str]) -> dict[str, dict]:
    """Returns label -> rows, precision, recall, F1; intervals of precision and recall.

    A precision of no prediction, or a recall of no row, is None.
    """
    found = {}
    for place, label in enumerate(labels):
        right, rows = int(counts[place, place]), int(counts[place].sum())
        predicted = int(counts[:, place].sum())
        found[label] = {
            "rows": rows,
            "precision": right / predicted if predicted else None,
            "precision_interval": list(wilson_interval(right, predicted)),
            "recall": right / rows if rows else None,
            "recall_interval": list(wilson_interval(right, rows)),
            "f1": 2 * right / (rows + predicted) if rows + predicted else None,
        }
    return found
