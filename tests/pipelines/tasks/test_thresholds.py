import numpy as np
import pytest
from scipy import special

from albert_tf.jobs.settings import numbers_by_label
from pipelines.tasks.scoring import thresholds


def test_thresholds_by_hand():
    best = np.array([0.5, 0.99, 0.8, 0.8, 0.7] + [0.95] * 36)
    right = np.array([False, True, True, False, True] + [True] * 36)
    found = thresholds.thresholds(best, right)
    # Above 0.8 all 37 are right; the two of 0.8 count together; with 0.7 it is 39 of 40.
    values = {wished: row["min_probability"] for wished, row in found.items()}
    assert values == {"0.9": 0.5, "0.95": 0.5, "0.99": 0.95}
    assert found["0.99"]["precision"] == 1 and found["0.99"]["share"] == 37 / 41
    assert found["0.99"]["interval"][1] == 1.0
    lines = thresholds.describe_thresholds(found)
    assert lines[0] == "precision 0.9   is reached by all rows"
    needs = "needs --min_probability=0.95: 90.2 % of the rows, 100.0 % of them right"
    assert lines[2].startswith(f"precision 0.99  {needs}")


def test_thresholds_of_labels_by_hand():
    rng = np.random.default_rng(4)
    known = rng.random((400, 3)) < [0.3, 0.3, 0.04]  # the last has fewer than 20 rows
    assert known[:, 2].sum() < 20
    shift = np.array([-1.5, 0.0, -1.5])
    found = special.expit(3.0 * known - 1.5 + shift + rng.normal(0, 1, known.shape))
    known, found = np.c_[known, known[:, 0]], np.c_[found, 0.2 + 0.6 * known[:, 0]]
    names = ["low", "even", "rare", "perfect"]
    figures = thresholds.label_thresholds(known, found, names)
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
    [line] = thresholds.describe_label_thresholds(figures)
    _, _, flag = line.partition("--label_thresholds=")
    copied = numbers_by_label("label_thresholds", flag, np.isfinite, "")
    assert copied == {n: row["threshold"] for n, row in figures.items() if "threshold" in row}
    assert thresholds.describe_label_thresholds({"rare": figures["rare"]}) == []
