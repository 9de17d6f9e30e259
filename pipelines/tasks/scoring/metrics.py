"""Metrics of classification and regression, by scikit-learn and scipy; higher is better."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from scipy import stats
from sklearn import metrics


def correlation(measure: Callable, labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns a correlation, 0 where it is undefined: a single example, or constant values."""
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return measure(labels, predictions)


# Name -> (labels, predictions) -> metric; both are [n] numbers, integers for classes. F1 also
# accepts [n, labels], 1 where an example has a label.
METRICS = {
    "accuracy": metrics.accuracy_score,
    "f1": functools.partial(metrics.f1_score, zero_division=0),  # F1 of class 1 of two
    "micro_f1": functools.partial(metrics.f1_score, average="micro", zero_division=0),
    "macro_f1": functools.partial(metrics.f1_score, average="macro", zero_division=0),
    "matthews_correlation": functools.partial(correlation, metrics.matthews_corrcoef),
    "pearson": functools.partial(correlation, lambda *x: stats.pearsonr(*x).statistic),
    "spearman": functools.partial(correlation, lambda *x: stats.spearmanr(*x).statistic),
}
