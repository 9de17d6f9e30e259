"""How far a classifier's probabilities can be trusted: calibration, and thresholds for "unsure"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from albert_tf.metrics import wilson_interval

_BINS = 15
# Precisions that users ask for.
PRECISIONS = (0.9, 0.95, 0.99)
_FEWEST_ROWS = 20  # at or above a threshold; the precision of fewer rows is a matter of luck


def confidence(answers: np.ndarray, probabilities: np.ndarray) -> dict:
    """Returns `calibration_error` and `thresholds`, see the functions of these names.

    `answers` are the right classes, int [n]; `probabilities` float64 [n, classes].
    """
    best, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == answers
    return {
        "calibration_error": calibration_error(best, right),
        "thresholds": thresholds(best, right),
    }


def describe_confidence(found: Mapping[str, Any]) -> list[str]:
    """Returns a line about each of PRECISIONS in a result of `confidence`."""
    lines = []
    for wished in map(str, PRECISIONS):
        row = found["thresholds"].get(wished)
        if not row:
            lines.append(f"precision {wished:<5} is not reached by {_FEWEST_ROWS} rows or more")
        elif row["share"] == 1:
            lines.append(f"precision {wished:<5} is reached by all rows")
        else:
            low, high = row["interval"]
            lines.append(
                f"precision {wished:<5} needs --min_probability={row['min_probability']}: "
                f"{100 * row['share']:.1f} % of the rows, {100 * row['precision']:.1f} % of them "
                f"right (95 % interval {100 * low:.1f} to {100 * high:.1f})"
            )
    return lines


def calibration_error(best: np.ndarray, right: np.ndarray) -> float:
    """Returns the expected calibration error with 15 bins of equal width.

    `best` is the probability of the best class, float64 [n], and `right` whether it is the answer,
    bool [n]. The error is the mean distance between `best` and the share of `right` in a bin.

    Source: Guo et al. 2017, section 2.
    """
    bins = np.minimum((best * _BINS).astype(int), _BINS - 1)
    differences = np.bincount(bins, weights=best - right, minlength=_BINS)
    return float(np.abs(differences).sum() / len(best))


def thresholds(best: np.ndarray, right: np.ndarray) -> dict[str, dict]:
    """Returns wished precision -> the lowest probability of the best class that reaches it.

    `min_probability` is rounded down to 6 digits. `precision`, with its 95 % `interval`, is of the
    rows at or above it, and `share` their share of all rows. A precision that no threshold with 20
    rows reaches is left out. The threshold is chosen on these rows, so on others the precision is
    lower on average.
    """
    # All is counted at the rounded values, which users copy.
    best = np.floor(1e6 * best) / 1e6
    order = np.argsort(-best, kind="stable")
    hits, counts = np.cumsum(right[order]), np.arange(1, len(best) + 1)
    # A threshold takes all rows of one probability or none of them.
    is_last = np.append(np.diff(best[order]) != 0, True)
    found = {}
    for wished in PRECISIONS:
        enough = is_last & (hits >= wished * counts) & (counts >= _FEWEST_ROWS)
        enough = np.flatnonzero(enough)
        if len(enough):
            count, hit = int(counts[enough[-1]]), int(hits[enough[-1]])
            found[str(wished)] = {
                "min_probability": float(best[order][enough[-1]]),
                "precision": hit / count,
                "interval": list(wilson_interval(hit, count)),
                "share": count / len(best),
            }
    return found
