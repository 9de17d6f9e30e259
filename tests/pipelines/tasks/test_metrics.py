"""The figures against values worked out by hand, and where they are not defined."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from pipelines.tasks.scoring.metrics import METRICS

# 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
LABELS = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
PREDICTIONS = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", 7 / 10),
        ("f1", 2 * 3 / (2 * 3 + 1 + 2)),
        ("macro_f1", (6 / 9 + 8 / 11) / 2),
        ("matthews_correlation", (3 * 4 - 1 * 2) / np.sqrt(4 * 5 * 5 * 6)),
    ],
)
def test_classes(name, expected):
    assert METRICS[name](LABELS, PREDICTIONS) == pytest.approx(expected)


def test_numbers():
    labels, predictions = np.array([0.0, 1.0, 2.0, 5.0]), np.array([1.0, 2.0, 4.0, 3.0])
    # Deviations from the means, 2 and 2.5: -2, -1, 0, 3 and -1.5, -0.5, 1.5, 0.5.
    assert METRICS["pearson"](labels, predictions) == pytest.approx(5 / np.sqrt(14 * 5))
    # Ranks 1, 2, 3, 4 and 1, 2, 4, 3: 1 - 6 * 2 / (4 * 15).
    assert METRICS["spearman"](labels, predictions) == pytest.approx(0.8)


@pytest.mark.parametrize("name", METRICS)
def test_a_model_that_always_says_the_same_gets_a_number(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = METRICS[name](LABELS, np.zeros_like(LABELS))
        expected = {"accuracy": 0.5, "micro_f1": 0.5, "macro_f1": (10 / 15) / 2}
        assert figure == pytest.approx(expected.get(name, 0.0))
        one = METRICS[name](LABELS[:1], PREDICTIONS[:1])
    assert one == (0 if name in ("pearson", "spearman", "matthews_correlation") else 1)


@pytest.mark.parametrize("name", ["pearson", "spearman", "matthews_correlation"])
def test_labels_that_are_all_the_same_correlate_with_nothing(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert METRICS[name](np.ones(10), PREDICTIONS) == 0
