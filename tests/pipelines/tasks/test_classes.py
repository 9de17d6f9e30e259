"""Intervals and the figures of each label."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from pipelines.tasks.scoring import classes
from pipelines.tasks.scoring.metrics import METRICS


def rows(number, num_labels, seed, right=0.6):
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, num_labels, number)
    guesses = rng.integers(0, num_labels, number)
    return answers, np.where(rng.random(number) < right, answers, guesses)


@pytest.mark.parametrize("name", classes.FIGURES)
@pytest.mark.parametrize("number", [3, 40])
def test_figures_of_confusion_matrices_are_those_of_rows(name, number):
    num_labels = 2 if name == "f1" else 4
    pairs = [rows(number, num_labels, seed) for seed in range(20)]
    pairs.append((np.zeros(number, int), np.zeros(number, int)))  # one label only
    counts = np.stack([classes.confusion_matrix(*pair, num_labels) for pair in pairs])
    expected = [METRICS[name](*pair) for pair in pairs]
    np.testing.assert_allclose(classes.FIGURES[name](counts.astype(float)), expected, atol=1e-9)


def test_intervals_cover_what_is_true():
    """Of 200 samples, some 190 intervals hold the figure of all rows."""
    answers, predictions = rows(100_000, 3, seed=0)
    whole = classes.confusion_matrix(answers, predictions, 3)
    names = ("accuracy", "macro_f1", "matthews_correlation", "pearson")
    truth = {name: METRICS[name](answers, predictions) for name in names[:3]}
    covered = dict.fromkeys(truth, 0)
    rng = np.random.default_rng(5)
    for _ in range(200):
        drawn = rng.multinomial(300, (whole / whole.sum()).ravel()).reshape(3, 3)
        found = classes.intervals(drawn, names)
        assert found.keys() == truth.keys()
        for name, (low, high) in found.items():
            covered[name] += low <= truth[name] <= high
    assert all(180 <= number <= 200 for number in covered.values()), covered


def test_figures_of_labels():
    answers, predictions = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 0])
    found = classes.figures_of_labels(classes.confusion_matrix(answers, predictions, 3), "abc")
    precision, recall, f1, number = sklearn_metrics.precision_recall_fscore_support(
        answers, predictions
    )
    for place, label in enumerate("ab"):
        expected = (precision[place], recall[place], f1[place], number[place])
        assert tuple(found[label][k] for k in ("precision", "recall", "f1", "rows")) == expected
    assert found["a"]["recall_interval"] == pytest.approx([0.2077, 0.9385], abs=1e-4)
    nothing = {"rows": 0, "precision": None, "recall": None, "f1": None}
    assert nothing.items() <= found["c"].items() and found["c"]["recall_interval"] == [0.0, 1.0]
