import numpy as np
import pytest
import tensorflow as tf

from albert_tf import losses


def test_only_an_infinite_logit_has_no_finite_loss():
    def loss_and_gradient(logits):
        x = tf.constant(logits)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = losses.weighted_cross_entropy(x, tf.constant([0]), tf.ones([1]))["loss"]
        return loss, tape.gradient(loss, x)

    loss, gradient = loss_and_gradient([[0.0, 500.0]])
    assert loss == 500.0
    np.testing.assert_array_equal(gradient, [[-1.0, 1.0]])
    loss, _ = loss_and_gradient([[np.inf, 0.0]])
    assert not np.isfinite(loss)  # train_step leaves such a batch out


def test_each_objective_has_its_mean_and_the_order_its_weight():
    costs = {"masked_lm": 12.0, "sentence_order": 3.0, "separator": 1.0}
    sums = {name: {"loss": tf.constant(cost)} for name, cost in costs.items()}
    denominators = {"masked_lm": tf.constant(8.0), "sentence_order": tf.constant(5.0)}
    assert float(losses.pretraining_loss(sums, denominators)) == pytest.approx(1.5 + 0.8)
    weighted = losses.pretraining_loss(sums, denominators, order_weight=5.0)
    assert float(weighted) == pytest.approx(1.5 + 5 * 0.8)
    # A batch without an order has no such loss.
    denominators["sentence_order"] = tf.constant(0.0)
    assert float(losses.pretraining_loss(sums, denominators)) == pytest.approx(1.5)


def test_openings_are_a_part_of_the_pairs():
    outputs = {
        "masked_lm_logits": tf.zeros([3, 1, 4]),
        "sentence_order_logits": tf.constant([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]]),
    }
    batch = {
        "masked_lm_ids": tf.zeros([3, 1], tf.int32),
        "masked_lm_weights": tf.ones([3, 1]),
        "sentence_order_labels": tf.constant([0, 0, 1]),
        "sentence_order_weights": tf.constant([1.0, 1.0, 0.0]),
        "opens_document": tf.constant([1, 0, 1]),
    }
    sums = losses.pretraining_sums(outputs, batch)
    assert (float(sums["openings"]["correct"]), float(sums["openings"]["weight"])) == (1.0, 1.0)
    assert float(sums["sentence_order"]["weight"]) == 2.0
    assert float(sums["separator"]["weight"]) == 0.0
    # Examples made elsewhere do not say what opens a document.
    del batch["opens_document"]
    assert float(losses.pretraining_sums(outputs, batch)["openings"]["weight"]) == 0.0


def test_token_classification_loss_is_the_mean_of_the_labelled_words():
    logits = np.random.default_rng(1).normal(size=[3, 4, 5]).astype(np.float32)
    labels = np.array([[2, -1, 0, -1, -1], [-1, -1, -1, -1, 4], [1, 2, 3, 4, -1]], np.int16)
    found = losses.token_classification_loss(tf.constant(logits), tf.constant(labels)).numpy()
    costs = np.log(np.exp(logits).sum(-1, keepdims=True)) - logits
    expected = [(costs[0, 0, 2] + costs[0, 2, 0]) / 2, 0, costs[2, range(4), [1, 2, 3, 4]].mean()]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
