import pytest

from albert_tf import metrics
from albert_tf.losses import PRETRAINING_SUMS


def test_pretraining_metrics_are_per_counted_prediction():
    sums = {
        "masked_lm": {"loss": 12.0, "correct": 3.0, "weight": 8.0},
        "sentence_order": {"loss": 3.0, "correct": 4.0, "weight": 5.0},
        "openings": {"loss": 2.0, "correct": 2.0, "weight": 2.0},
        "separator": {"loss": 1.0, "correct": 3.0, "weight": 5.0},
    }
    expected = {
        **{"masked_lm_loss": 1.5, "masked_lm_accuracy": 0.375},
        **{"sentence_order_loss": 0.6, "sentence_order_accuracy": 0.8},
        **{"separator_loss": 0.2, "separator_accuracy": 0.6, "loss": 2.1},
        **{"openings_accuracy": 1.0, "openings_pairs": 2.0, "sentence_order_pairs": 5.0},
        **{"inside_accuracy": 2 / 3, "inside_pairs": 3.0},
    }
    assert metrics.pretraining_metrics(sums) == pytest.approx(expected)


def test_an_objective_without_predictions_has_no_figures_and_leaves_the_loss():
    sums = {name: {"loss": 0.0, "correct": 0.0, "weight": 0.0} for name in PRETRAINING_SUMS}
    assert metrics.pretraining_metrics(sums) == {}
    sums["masked_lm"] = {"loss": 12.0, "correct": 3.0, "weight": 8.0}
    expected = {"masked_lm_loss": 1.5, "masked_lm_accuracy": 0.375, "loss": 1.5}
    assert metrics.pretraining_metrics(sums) == expected


def test_wilson_interval():
    # Newcombe 1998, table I, method 3 (without continuity correction).
    assert metrics.wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert metrics.wilson_interval(0, 0) == (0.0, 1.0)
