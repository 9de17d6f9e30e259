import numpy as np
import pytest
from scipy import special

from pipelines.tasks.scoring import confidence


def drawn(temperature, rows=20_000, seed=0):
    """Probabilities, and answers drawn from them at a temperature."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=[rows, 4])
    true = special.softmax(logits / temperature, axis=1)
    answers = (rng.random([rows, 1]) > np.cumsum(true, axis=1)).sum(axis=1)
    return answers, special.softmax(logits, axis=1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature_is_found_and_mends_the_calibration(temperature):
    answers, probabilities = drawn(temperature)
    found = confidence.confidence(answers, probabilities)
    assert found["temperature"] == pytest.approx(temperature, rel=0.05)
    assert found["calibration_error_with_temperature"] < 0.02
    assert (found["calibration_error"] < 0.02) == (temperature == 1.0)


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


def test_a_precision_that_is_never_reached():
    assert confidence.thresholds(np.array([0.9, 0.8]), np.array([False, True])) == {}
