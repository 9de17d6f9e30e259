"""Probability thresholds that give a precision, or a better F1 of a label."""

import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from albert_tf.metrics import wilson_interval
from .metrics import figures_of_label, rounded_down

PRECISIONS = (0.9, 0.95, 0.99)
# Minimum number of rows for a threshold. With fewer rows it is unreliable.
_FEWEST_ROWS = 20


def describe_thresholds(found: Mapping[str, dict]) -> list[str]:
    """Formats a result of `thresholds`: a line for each of PRECISIONS."""
    lines = []
    for wished in map(str, PRECISIONS):
        row = found.get(wished)
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


def thresholds(best: np.ndarray, right: np.ndarray) -> dict[str, dict]:
    """Maps each of PRECISIONS to the lowest probability threshold that reaches it, if any.

    `best` is the probability of the predicted class, float64 [n]. `right`, bool [n], is True if the
    prediction is correct. `precision` and its 95 % `interval` refer to the rows at or above
    `min_probability`, and `share` is their share of all rows. A precision is omitted if no
    threshold with at least 20 rows reaches it. On other rows, precision is lower on average.
    """
    values, hits, counts = _possible_thresholds(best, right)
    found = {}
    for wished in PRECISIONS:
        enough = np.flatnonzero((hits >= wished * counts) & (counts >= _FEWEST_ROWS))
        if len(enough):
            count, hit = int(counts[enough[-1]]), int(hits[enough[-1]])
            found[str(wished)] = {
                "min_probability": float(values[enough[-1]]),
                "precision": hit / count,
                "interval": list(wilson_interval(hit, count)),
                "share": count / len(best),
            }
    return found


def label_thresholds(
    known: np.ndarray, probabilities: np.ndarray, labels: Sequence[str]
) -> dict[str, dict]:
    """Returns figures_of_label at 0.5 for each label, and the threshold with the best F1.

    `known`, bool [n, labels], is True if a row has a label. `probabilities` are float64
    [n, labels]. `threshold` and `f1_at_threshold` are omitted for labels with fewer than 20 rows
    and for labels whose F1 is best at 0.5. On other rows, F1 is lower on average.
    """
    found = {}
    for place, label in enumerate(labels):
        has, likely = known[:, place], probabilities[:, place]
        rows, is_predicted = int(has.sum()), likely >= 0.5
        row = figures_of_label(int((has & is_predicted).sum()), rows, int(is_predicted.sum()))
        values, hits, counts = _possible_thresholds(likely, has)
        f1 = 2 * hits / (rows + counts)
        best = f1.argmax()
        if rows >= _FEWEST_ROWS and f1[best] > row["f1"]:
            row.update(threshold=float(values[best]), f1_at_threshold=float(f1[best]))
        found[label] = row
    return found


def describe_label_thresholds(found: Mapping[str, dict]) -> list[str]:
    """Formats the thresholds in a result of `label_thresholds` as a line, if there are any."""
    chosen = {label: row for label, row in found.items() if "threshold" in row}
    if not chosen:
        return []
    figures = ("f1", "f1_at_threshold")
    before, after = (np.mean([row[name] for row in chosen.values()]) for name in figures)
    values = ",".join(f"{label}={row['threshold']}" for label, row in chosen.items())
    flag = shlex.quote(f"--label_thresholds={values}")
    return [f"mean F1 {before:.4f} -> {after:.4f} of the labels in {flag}"]


def _possible_thresholds(
    best: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns all thresholds in descending order, with the numbers of correct and of all rows.

    Both numbers count the rows at or above a threshold. Probabilities are first rounded down to 6
    decimals, because users copy the rounded thresholds.
    """
    best = rounded_down(best)
    order = np.argsort(-best, kind="stable")
    # Rows with equal probabilities are all at or above a threshold, or all below it.
    last = np.flatnonzero(np.append(np.diff(best[order]) != 0, True))
    return best[order][last], np.cumsum(right[order])[last], last + 1
