import numpy as np
import pytest
from scipy import special

from albert_tf.jobs.settings import numbers_by_label
from pipelines.tasks.running.results import describe_details
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
    needs = "needs --min_probability=0.95: 90.2 % of the rows, 100.0 % of them right"
    assert lines[2].startswith(f"precision 0.99  {needs}")


def sample(rng, rows, sureness):
    """Labels drawn from a model's probabilities at temperature `sureness`, and these at 1."""
    logits = sureness * rng.normal(0, 2.5, (rows, 4))
    answers = [rng.choice(4, p=row) for row in special.softmax(logits / sureness, axis=1)]
    return np.array(answers), special.softmax(logits, axis=1)


@pytest.mark.parametrize("sureness", [0.5, 2.5])
def test_a_temperature_fits_a_model_that_is_too_sure_or_not_sure_enough(sureness):
    rng = np.random.default_rng(1)
    found = confidence.confidence(*sample(rng, 3000, sureness))
    assert found["temperature"] == pytest.approx(sureness, rel=0.1)
    assert found["temperature"] == float(f"{found['temperature']:.3g}"), "users copy it"
    before, after = found["calibration_error"], found["calibration_error_at_temperature"]
    assert before > 0.08 and after < 0.03
    line, *others = confidence.describe_confidence(found)
    assert line.endswith(f"{found['temperature']}: calibration error {before:.3f} -> {after:.3f}")
    assert f"--temperature={found['temperature']} --min_probability=" in others[2]
    # Rows that did not fit it, and the printed threshold at it.
    answers, probabilities = sample(rng, 3000, sureness)
    cooled = confidence.tempered(probabilities, found["temperature"])
    np.testing.assert_allclose(cooled.sum(axis=1), 1)
    best, right = cooled.max(axis=1), cooled.argmax(axis=1) == answers
    assert confidence.calibration_error(best, right) < 0.03
    row = found["thresholds"]["0.95"]
    assert right[best >= row["min_probability"]].mean() == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(("logit", "wrong"), [(30, 3), (0.005, 10)])
def test_a_fit_at_a_bound_of_the_search_is_none(logit, wrong):
    """Too sure for the highest temperature, and too unsure for the lowest one."""
    answers = np.arange(300) % 2
    found = np.where(np.arange(300) % wrong, answers, 1 - answers)
    assert confidence.fit_temperature(answers, special.softmax(logit * np.eye(2)[found], 1)) is None


def test_equal_predictions_are_not_calibrated():
    probabilities = np.tile([0.9, 0.1], (100, 1))
    found = confidence.confidence(np.arange(100) % 2, probabilities)
    assert found == {"calibration_error": pytest.approx(0.4)}
    [line] = describe_details({"confidence": found}, 1)
    assert line == "not calibrated: all predictions are equal"
    assert "thresholds" in confidence.confidence(np.zeros(100, int), probabilities)


def test_thresholds_of_labels_by_hand():
    rng = np.random.default_rng(4)
    known = rng.random((400, 3)) < [0.3, 0.3, 0.04]  # the last has fewer than 20 rows
    assert known[:, 2].sum() < 20
    shift = np.array([-1.5, 0.0, -1.5])
    found = special.expit(3.0 * known - 1.5 + shift + rng.normal(0, 1, known.shape))
    known, found = np.c_[known, known[:, 0]], np.c_[found, 0.2 + 0.6 * known[:, 0]]
    names = ["low", "even", "rare", "perfect"]
    figures = confidence.label_thresholds(known, found, names)
    assert not any("threshold" in figures[name] for name in names[2:])
    assert figures["low"]["threshold"] < 0.4
    for place, (label, row) in enumerate(figures.items()):
        truth, of_label = known[:, place], found[:, place]
        assert row["rows"] == truth.sum()

        def f1(threshold, truth=truth, of_label=of_label):
            is_found = of_label >= threshold
            return 2 * (truth & is_found).sum() / (truth.sum() + is_found.sum())

        assert row["f1"] == f1(0.5)
        if "threshold" in row:
            best = max(map(f1, of_label))
            assert row["f1_at_threshold"] == pytest.approx(best) == f1(row["threshold"]), label
            assert best > row["f1"]
    [line] = confidence.describe_label_thresholds(figures)
    _, _, flag = line.partition("--label_thresholds=")
    copied = numbers_by_label("label_thresholds", flag, np.isfinite, "")
    assert copied == {n: row["threshold"] for n, row in figures.items() if "threshold" in row}
    assert confidence.describe_label_thresholds({"rare": figures["rare"]}) == []
