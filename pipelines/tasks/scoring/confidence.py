"""How far probabilities can be trusted: calibration, a temperature, and thresholds."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from albert_tf.jobs.decision import TEMPERATURES
from albert_tf.metrics import wilson_interval
from .metrics import figures_of_label

_BINS = 15
# Precisions that users ask for.
PRECISIONS = (0.9, 0.95, 0.99)
# At or above a threshold, with a label, or for a temperature: fewer rows are a matter of luck.
_FEWEST_ROWS = 20
# Twice the log-likelihood that a temperature gains by chance in less than 5 % of the cases.
_CHANCE = stats.chi2.ppf(0.95, 1)


def confidence(answers: np.ndarray, probabilities: np.ndarray) -> dict:
    """Returns `calibration_error` and `thresholds`, see the functions of these names.

    `answers` are the right classes, int [n]; `probabilities` float64 [n, classes]. If there is a
    `temperature` that lowers the error, it is there too, with `calibration_error_at_temperature`,
    and the thresholds are those at this temperature.
    """
    right = probabilities.argmax(axis=1) == answers
    before = calibration_error(probabilities.max(axis=1), right)
    found: dict[str, Any] = {"calibration_error": before}
    if temperature := fit_temperature(answers, probabilities):
        cooled = tempered(probabilities, temperature)
        after = calibration_error(cooled.max(axis=1), right)
        if after < before:
            found.update(temperature=temperature, calibration_error_at_temperature=after)
            probabilities = cooled
    return {**found, "thresholds": thresholds(probabilities.max(axis=1), right)}


def describe_confidence(found: Mapping[str, Any]) -> list[str]:
    """Returns lines about the temperature and each of PRECISIONS in a result of `confidence`."""
    lines, flag = [], ""
    if temperature := found.get("temperature"):  # results of version 0.13.0 have none
        before, after = (found[f"calibration_error{at}"] for at in ("", "_at_temperature"))
        lines.append(f"temperature {temperature}: calibration error {before:.3f} -> {after:.3f}")
        flag = f"--temperature={temperature} "
    for wished in map(str, PRECISIONS):
        row = found["thresholds"].get(wished)
        if not row:
            lines.append(f"precision {wished:<5} is not reached by {_FEWEST_ROWS} rows or more")
        elif row["share"] == 1:
            lines.append(f"precision {wished:<5} is reached by all rows")
        else:
            low, high = row["interval"]
            lines.append(
                f"precision {wished:<5} needs {flag}--min_probability={row['min_probability']}: "
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


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Returns softmax(logits / temperature), float64, of the softmax of logits, [n, classes]."""
    logits = np.log(np.maximum(probabilities.astype(np.float64), np.finfo(np.float64).tiny))
    return special.softmax(logits / temperature, axis=1)


def fit_temperature(answers: np.ndarray, probabilities: np.ndarray) -> float | None:
    """Returns the temperature with the least negative log-likelihood of `answers`, in 3 digits.

    For the arguments see `confidence`. None: there are fewer than 20 rows; all are right, so the
    lowest temperature fits best; or chance explains the gain (likelihood-ratio test, 5 %).

    Source: Guo et al. 2017, section 4.2.
    """
    if len(answers) < _FEWEST_ROWS or (probabilities.argmax(axis=1) == answers).all():
        return None
    rows = np.arange(len(answers))

    def loss(log_temperature: float) -> float:
        likely = tempered(probabilities, np.exp(log_temperature))[rows, answers]
        return -np.log(np.maximum(likely, np.finfo(np.float64).tiny)).mean()

    best = optimize.minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded")
    if 2 * len(answers) * (loss(0.0) - best.fun) <= _CHANCE:
        return None
    return float(f"{np.exp(best.x):.3g}")


def thresholds(best: np.ndarray, right: np.ndarray) -> dict[str, dict]:
    """Returns wished precision -> the lowest probability of the best class that reaches it.

    `min_probability` is rounded down to 6 digits. `precision`, with its 95 % `interval`, is of the
    rows at or above it, and `share` their share of all rows. A precision that no threshold with 20
    rows reaches is left out. The threshold is chosen on these rows, so on others the precision is
    lower on average.
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
    """Returns label -> figures_of_label at 0.5; for some a better `threshold`, `f1_at_threshold`.

    `known`, bool [n, labels], is whether a row has a label, and `probabilities` float64 [n, labels]
    the model's. A label with fewer than 20 rows has no threshold, nor one whose F1 is best at 0.5.
    A threshold is chosen on these rows, so on others F1 is lower on average.
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
    """Returns a line about the thresholds in a result of `label_thresholds`, if it has any."""
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
    """Returns all thresholds, falling; of the rows at or above each, how many are right, and all.

    All is counted at values rounded down to 6 digits, which users copy.
    """
    best = np.floor(1e6 * best) / 1e6
    order = np.argsort(-best, kind="stable")
    # A threshold takes all rows of one probability or none of them.
    last = np.flatnonzero(np.append(np.diff(best[order]) != 0, True))
    return best[order][last], np.cumsum(right[order])[last], last + 1
