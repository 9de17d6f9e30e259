import numpy as np
import pytest

from pipelines.tasks.scoring import confidence


def test_calibration_error_by_hand():
    """Two bins: 0.6 with half right is off by 0.1, and 0.9 with all right by 0.1."""
    best = np.array([0.6, 0.6, 0.9, 0.9])
    right = np.array([True, False, True, True])
    assert confidence.calibration_error(best, right) == pytest.approx(0.1)
    assert confidence.calibration_error(np.ones(3), np.ones(3, bool)) == 0


def test_thresholds_by_hand():
    best = np.array([0.5, 0.99, 0.8, 0.8, 0.7] + [0.95] * 36)
    right = np.array([False, True, True, False, True] + [True] * 36)
    found = confidence.thresholds(best, right)
    # Above 0.8 all 37 are right; the two of 0.8 count together; with 0.7 it is 39 of 40.
    values = {wished: row["min_probability"] for wished, row in found.items()}
    assert values == {"0.9": 0.5, "0.95": 0.5, "0.99": 0.95}
    assert found["0.99"]["precision"] == 1 and found["0.99"]["share"] == 37 / 41
    assert found["0.99"]["interval"][1] == 1.0
    lines = confidence.describe_confidence({"thresholds": found})
    assert lines[0] == "precision 0.9   is reached by all rows"
    start = (
        "precision 0.99  needs --min_probability=0.95: 90.2 % of the rows, 100.0 % of them right"
    )
    assert lines[2].startswith(start)


def test_a_printed_threshold_has_the_printed_figures():
    """Of a model that is very sure: wrong rows are between the digits that are printed."""
    rng = np.random.default_rng(0)
    best = 1 - 10 ** rng.uniform(-9, -4, 500)
    right = rng.random(500) < np.where(best > 1 - 1e-6, 0.97, 0.8)
    found = confidence.thresholds(best, right)
    assert found
    for row in found.values():
        chosen = best >= row["min_probability"]
        assert row["share"] == chosen.mean() and row["precision"] == right[chosen].mean()


def test_a_precision_that_is_never_reached_or_by_few_rows():
    assert confidence.thresholds(np.array([0.9] * 30), np.arange(30) % 2 == 0) == {}
    few = confidence.thresholds(np.array([0.9] * 19), np.ones(19, bool))
    assert few == {}
    [line, *_] = confidence.describe_confidence({"thresholds": few})
    assert line == "precision 0.9   is not reached by 20 rows or more"
