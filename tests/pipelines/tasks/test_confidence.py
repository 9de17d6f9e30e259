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
    best = np.array([0.5, 0.99, 0.8, 0.8, 0.7] + [0.95] * 16)
    right = np.array([False, True, True, False, True] + [True] * 16)
    found = confidence.thresholds(best, right)
    # Above 0.8 all 17 are right; the two of 0.8 count together; with 0.7 it is 19 of 20.
    assert {wished: row["min_probability"] for wished, row in found.items()} == {
        "0.9": 0.5,
        "0.95": 0.7,
        "0.99": 0.95,
    }
    assert found["0.95"]["precision"] == 19 / 20 and found["0.95"]["share"] == 20 / 21
    assert found["0.99"]["interval"][1] == 1.0


def test_thresholds_near_one_can_be_copied():
    best, right = np.array([0.99999987, 0.9999951, 0.999]), np.array([True, True, False])
    [line, *_] = confidence.describe_confidence({"thresholds": confidence.thresholds(best, right)})
    assert line.startswith("precision 0.9   needs --min_probability=0.999995: 66.7 % of the rows")
    [line, *_] = confidence.describe_confidence(
        {"thresholds": confidence.thresholds(best, best > 0)}
    )
    assert line == "precision 0.9   is reached by all rows"


def test_a_precision_that_is_never_reached():
    assert confidence.thresholds(np.array([0.9, 0.8]), np.array([False, True])) == {}
