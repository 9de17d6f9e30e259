"""Reliability of probabilities: calibration error, temperature scaling and thresholds."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from albert_tf.jobs.decision import TEMPERATURES
from albert_tf.metrics import wilson_interval
from .metrics import figures_of_label, rounded_down

PRECISIONS = (0.9, 0.95, 0.99)
# Minimum number of rows for a threshold or a temperature. With fewer rows they are unreliable.
_FEWEST_ROWS = 20
# Twice the log-likelihood that a temperature gains by chance in less than 5 % of the cases.
_CHANCE = stats.chi2.ppf(0.95, 1)


def confidence(answers: np.ndarray, probabilities: np.ndarray) -> dict:
    """Returns a dict with the results of `calibration_error` and `thresholds`.

    `answers` are the correct classes, int [n]. `probabilities` are float64 [n, classes]. If a
    temperature lowers the error, the dict also has `temperature` and
    `calibration_error_at_temperature`, and the thresholds are computed at this temperature. If all
    predictions are equal and some are wrong, there are no thresholds.
    """
    predictions = probabilities.argmax(axis=1)
    right = predictions == answers
    before = calibration_error(probabilities.max(axis=1), right)
    found: dict[str, Any] = {"calibration_error": before}
    if np.ptp(predictions) == 0 and not right.all():
        return found
    if temperature := fit_temperature(answers, probabilities):
        cooled = tempered(probabilities, temperature)
        after = calibration_error(cooled.max(axis=1), right)
        if after < before:
            found.update(temperature=temperature, calibration_error_at_temperature=after)
            probabilities = cooled
    return {**found, "thresholds": thresholds(probabilities.max(axis=1), right)}


def describe_confidence(found: Mapping[str, Any]) -> list[str]:
    """Formats a result of `confidence`: the temperature, and a line for each of PRECISIONS."""
    lines, flag = [], ""
    if temperature := found.get("temperature"):
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

    `best` is the probability of the predicted class, float64 [n]. `right`, bool [n], is True if the
    prediction is correct. The error is the absolute difference between mean probability and
    accuracy in a bin, averaged over all bins and weighted by their numbers of rows.

    Source: Guo et al. 2017, section 2.
    """
    bins = np.minimum((best * 15).astype(int), 14)
    differences = np.bincount(bins, weights=best - right)
    return float(np.abs(differences).sum() / len(best))


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Returns softmax(logits / temperature), float64, given softmax(logits), [n, classes]."""
    logits = np.log(np.maximum(probabilities.astype(np.float64), np.finfo(np.float64).tiny))
    return special.softmax(logits / temperature, axis=1)


def fit_temperature(answers: np.ndarray, probabilities: np.ndarray) -> float | None:
    """Returns the temperature that minimises the negative log-likelihood, with 3 digits.

    For the arguments see `confidence`. Returns None for fewer than 20 rows, or if all predictions
    are correct: a lower temperature would always be better. Also returns None if chance explains
    the gain (likelihood-ratio test at 5 %), or if the best value is at a bound of the search.

    Source: Guo et al. 2017, section 4.2.
    """
    if len(answers) < _FEWEST_ROWS or (probabilities.argmax(axis=1) == answers).all():
        return None
    rows = np.arange(len(answers))

    def loss(log_temperature: float) -> float:
        likely = tempered(probabilities, np.exp(log_temperature))[rows, answers]
        return -np.log(np.maximum(likely, np.finfo(np.float64).tiny)).mean()

    best = optimize.minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded")
    is_at_bound = np.abs(best.x - np.log(TEMPERATURES)).min() < 0.05
    if is_at_bound or 2 * len(answers) * (loss(0.0) - best.fun) <= _CHANCE:
        return None
    return float(f"{np.exp(best.x):.3g}")


def thresholds(best: np.ndarray, right: np.ndarray) -> dict[str, dict]:
    """Maps each of PRECISIONS to the lowest probability threshold that reaches it, if any.

    For the arguments see `calibration_error`. `precision` and its 95 % `interval` refer to the rows
    at or above `min_probability`, and `share` is their share of all rows. A precision is omitted if
    no threshold with at least 20 rows reaches it. On other rows, precision is lower on average.
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
