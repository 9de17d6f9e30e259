import math

import numpy as np
import pytest
import tensorflow as tf

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


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [
        # Newcombe 1998, table I, method 3 (without continuity correction).
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        # And by symmetry; nothing is known of nothing.
        (20, 20, 0.8389, 1.0000),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_interval_is_the_published_one(correct, total, low, high):
    assert metrics.wilson_interval(correct, total) == pytest.approx((low, high), abs=5e-5)


def test_layer_distances_of_hand_made_states():
    """Two blocks, two examples, three positions of which one is padding."""
    states = np.zeros([3, 2, 3, 2], np.float32)
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    states[0] = [1.0, 0.0]
    # Block 1: a quarter turn and doubled length; distance sqrt(1 + 4). In the padding: far away.
    states[1] = [0.0, 2.0]
    states[1, 1, 2] = [1e6, -1e6]
    # Block 2: only longer, by 3; once turned back to where it came from.
    states[2] = [0.0, 5.0]
    states[2, 0, 0] = [0.0, -2.0]
    found = metrics.layer_distances(list(map(tf.constant, states)), tf.constant(mask))
    assert found["weight"] == 5
    np.testing.assert_allclose(found["l2_distance"], [5 * math.sqrt(5), 4 * 3 + 4], rtol=1e-6)
    np.testing.assert_allclose(found["degrees"], [5 * 90, 180], rtol=1e-6)
    means = metrics.layer_means({name: value.numpy() for name, value in found.items()})
    assert means == {
        "l2_distance": pytest.approx([math.sqrt(5), 3.2]),
        "degrees": pytest.approx([90, 36]),
    }


@pytest.mark.parametrize("degrees", [0.0, 0.001, 1.0, 89.0, 179.999])
def test_angles_are_exact_near_0_and_180(degrees):
    angle = math.radians(degrees)
    before = tf.constant([[[3.0, 0.0]]])
    after = tf.constant([[[math.cos(angle), math.sin(angle)]]])
    found = metrics.layer_distances([before, after], tf.constant([[1]]))
    np.testing.assert_allclose(found["degrees"], [degrees], rtol=1e-4, atol=1e-6)
