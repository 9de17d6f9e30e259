"""Metrics for classification and regression, confidence intervals, and metrics per label."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, stats
from sklearn import metrics as sklearn

from albert_tf.metrics import wilson_interval

_DRAWS, _FEWEST_DRAWS = 1000, 200
_CELLS = 20_000_000  # maximum number of cells in all draws, 8 bytes each
_MOST_SHOWN = 12  # maximum number of labels in a printed table


def _correlation(measure: Callable, labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns a correlation, or 0 if it is undefined (a single example or constant values)."""
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return measure(labels, predictions)


# Maps names to functions of (labels, predictions); higher values are better. Both arguments are
# numbers [n], integers for classes. F1 also accepts multi-hot arrays [n, labels].
METRICS = {
    "accuracy": sklearn.accuracy_score,
    "f1": functools.partial(sklearn.f1_score, zero_division=0),  # binary, F1 of class 1
    "micro_f1": functools.partial(sklearn.f1_score, average="micro", zero_division=0),
    "macro_f1": functools.partial(sklearn.f1_score, average="macro", zero_division=0),
    "matthews_correlation": functools.partial(_correlation, sklearn.matthews_corrcoef),
    "pearson": functools.partial(_correlation, lambda *x: stats.pearsonr(*x).statistic),
    "spearman": functools.partial(_correlation, lambda *x: stats.spearmanr(*x).statistic),
}


def rounded_down(probabilities: np.ndarray) -> np.ndarray:
    """Rounds to at most 6 decimals, as probabilities are written.

    A written probability reaches a threshold of at most 6 decimals if and only if the exact one
    does.
    """
    nearest = np.round(probabilities, 6)
    return np.where(nearest > probabilities, np.round(nearest - 1e-6, 6), nearest)


class Counts(NamedTuple):
    """Numbers of rows that are predicted correctly, with each label, and with each prediction.

    Each is float64 [draws, labels].
    """

    right: np.ndarray
    rows: np.ndarray
    predicted: np.ndarray


def intervals(counts: np.ndarray, metrics: Sequence[str]) -> dict[str, list[float]]:
    """Returns a dict that maps metrics to their 95 % confidence intervals [low, high].

    `counts` is a confusion matrix [labels, predictions]. Accuracy gets the Wilson interval. F1 and
    Matthews' correlation get a bootstrap interval: the central 95 % of the values over 1,000
    resamples (at least 200 if `counts` is very large). A metric is omitted if all resamples give
    the same value. Without rows the dict is empty.
    """
    found: dict[str, list[float]] = {}
    total = int(counts.sum())
    if not total:
        return found
    if "accuracy" in metrics:
        found["accuracy"] = list(wilson_interval(float(np.trace(counts)), total))
    # Only draw and store cells that are not empty.
    answers, predictions = np.nonzero(counts)
    draws = max(_FEWEST_DRAWS, min(_DRAWS, _CELLS // len(answers)))
    shares = counts[answers, predictions] / total
    cells = np.random.default_rng(0).multinomial(total, shares, draws)  # [draws, cells]
    drawn = Counts(*np.zeros([3, draws, len(counts)]))
    np.add.at(drawn.right.T, answers, np.where(answers == predictions, cells, 0).T)
    np.add.at(drawn.rows.T, answers, cells.T)
    np.add.at(drawn.predicted.T, predictions, cells.T)
    return found | _middles({name: FIGURES[name](drawn) for name in metrics if name in FIGURES})


def intervals_of_sets(
    labels: sparse.csr_matrix, predictions: sparse.csr_matrix, metrics: Sequence[str]
) -> dict[str, list[float]]:
    """Returns the 95 % intervals of micro and macro F1 for rows with several labels, by bootstrap.

    Both matrices are [rows, labels], 1 where a row has a label. See `intervals`.
    """
    number, random = labels.shape[0], np.random.default_rng(0)
    if not number:
        return {}
    cells = (labels.multiply(predictions).tocsr(), labels, predictions)
    sums = []
    for _ in range(max(_FEWEST_DRAWS, min(_DRAWS, _CELLS // number))):
        times = np.bincount(random.integers(number, size=number), minlength=number)
        sums.append([times @ matrix for matrix in cells])
    drawn = Counts(*np.array(sums, np.float64).transpose(1, 0, 2))
    return _middles({name: FIGURES_OF_SETS[name](drawn) for name in metrics})


def _middles(drawn: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Returns the middle 95 % of the drawn values of each metric, unless all are equal."""
    return {
        name: [float(value) for value in np.quantile(values, [0.025, 0.975])]
        for name, values in drawn.items()
        if np.ptp(values) > 0
    }


def _f1(counts: Counts) -> np.ndarray:
    """Returns F1, [draws, labels]. It is 0 for a label without rows and predictions."""
    return 2 * counts.right / np.maximum(counts.rows + counts.predicted, 1)


def _macro_f1(counts: Counts) -> np.ndarray:
    """Returns macro F1, [draws]: the mean over labels that have rows or predictions."""
    return _f1(counts).sum(axis=1) / (counts.rows + counts.predicted > 0).sum(axis=1)


def _micro_f1(counts: Counts) -> np.ndarray:
    """Returns [draws]: F1 over all labels of all rows together."""
    right, rows, predicted = (sums.sum(axis=1) for sums in counts)
    return 2 * right / np.maximum(rows + predicted, 1)


def _matthews(counts: Counts) -> np.ndarray:
    total = counts.rows.sum(axis=1)
    covariance = counts.right.sum(axis=1) * total - (counts.rows * counts.predicted).sum(axis=1)
    spreads = [total**2 - (sums**2).sum(axis=1) for sums in (counts.rows, counts.predicted)]
    return covariance / np.maximum(np.sqrt(spreads[0] * spreads[1]), 1e-9)


# Maps a metric's name to a function that computes it for all bootstrap draws at once.
FIGURES = {
    "f1": lambda counts: _f1(counts)[:, 1],  # binary, F1 of class 1
    "macro_f1": _macro_f1,
    "matthews_correlation": _matthews,
}
# The same for rows with several labels, whose macro F1 is a mean over all labels.
FIGURES_OF_SETS = {
    "micro_f1": _micro_f1,
    "macro_f1": lambda counts: _f1(counts).mean(axis=1),
}


def figures_of_labels(counts: np.ndarray, labels: Sequence[str]) -> dict[str, dict]:
    """Returns figures_of_label for each label. `counts` is a confusion matrix."""
    rows, predicted = (counts.sum(axis=axis).tolist() for axis in (1, 0))
    figures = zip(np.diag(counts).tolist(), rows, predicted)
    return {label: figures_of_label(*numbers) for label, numbers in zip(labels, figures)}


def figures_of_label(right: int, rows: int, predicted: int) -> dict[str, Any]:
    """Returns the number of rows, precision and recall with their intervals, and F1.

    Precision is None for a label without predictions. Recall is None for a label without rows.
    """
    return {
        "rows": rows,
        "precision": right / predicted if predicted else None,
        "precision_interval": list(wilson_interval(right, predicted)),
        "recall": right / rows if rows else None,
        "recall_interval": list(wilson_interval(right, rows)),
        "f1": 2 * right / (rows + predicted) if rows + predicted else None,
    }


def describe_figures_of_labels(found: Mapping[str, dict], title: str) -> list[str]:
    """Formats a table of the labels with the most rows. `found` maps labels to figures_of_label."""
    lines = [f"{title:<24} {'rows':>8} {'precision':>11} {'recall':>8} {'F1':>8}"]
    by_rows = sorted(found.items(), key=lambda item: -item[1]["rows"])
    for label, row in by_rows[:_MOST_SHOWN]:
        shares = (row[name] for name in ("precision", "recall", "f1"))
        precision, recall, f1 = ("-" if share is None else f"{share:.4f}" for share in shares)
        lines.append(f"{label[:24]:<24} {row['rows']:>8,} {precision:>11} {recall:>8} {f1:>8}")
    if len(found) > _MOST_SHOWN:
        lines.append(f"{len(found) - _MOST_SHOWN} more labels in results.json")
    return lines
