"""LAMB and AdamW: their formulas, what they leave out, the reference's steps; the learning rate."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import optimization
from albert_tf.checkpoints import name_map
from albert_tf.config import SHARING_MODES
from albert_tf.models import AlbertForPreTraining
from tests.builders import tiny_config
from tests.golden import make_golden

# Of each array's largest element, float32 against float64. LAMB's bias correction takes 1 - 0.999^t
# in float32.
TOLERANCE = {"lamb": 2e-6, "adamw": 1e-6}

# Pairwise different shapes and magnitudes.
SHAPES = {
    "dense/kernel": (4, 7),
    "dense/bias": (7,),
    "layer_norm/gamma": (5,),
    "word_embeddings": (11, 3),
    "masked_lm/output_bias": (11,),
}


def tiny_model(**changes):
    model = AlbertForPreTraining(tiny_config(num_hidden_layers=3, **changes))
    model.create_variables()
    return model


def is_excluded(name):
    return any(part in name for part in ("LayerNorm", "layer_norm", "bias"))


def random_arrays(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        name: (scale * (i + 1) * rng.normal(size=shape)).astype(np.float32)
        for i, (name, shape) in enumerate(SHAPES.items())
    }


def numpy_steps(kind, weights, gradients, rates, weight_decay, bias_correction, max_norm=None):
    """Returns float64 weights after the steps: the formulas of LAMB and AdamW in full.

    AdamW with bias correction is torch's, without it the reference's AdamWeightDecayOptimizer.
    """
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    m = {name: np.zeros_like(array) for name, array in weights.items()}
    v = {name: np.zeros_like(array) for name, array in weights.items()}
    for step, (rate, grads) in enumerate(zip(rates, gradients), 1):
        norm = np.sqrt(sum((grad.astype(np.float64) ** 2).sum() for grad in grads.values()))
        scale = 1.0 if max_norm is None else max_norm / max(norm, max_norm)
        for name, weight in weights.items():
            grad = scale * grads[name]
            m[name] = 0.9 * m[name] + 0.1 * grad
            v[name] = 0.999 * v[name] + 0.001 * grad**2
            m_hat, v_hat = m[name], v[name]
            if bias_correction:
                m_hat = m_hat / (1 - 0.9**step)
                v_hat = v_hat / (1 - 0.999**step)
            update = m_hat / (np.sqrt(v_hat) + 1e-6)
            ratio = 1.0
            if not is_excluded(name):
                update = update + weight_decay * weight
                if kind == "lamb":
                    ratio = np.linalg.norm(weight) / np.linalg.norm(update)
            weights[name] = weight - ratio * rate * update
    return weights


def assert_close(actual, expected, tolerance):
    assert set(actual) == set(expected)
    for name, array in expected.items():
        error = np.abs(actual[name] - array).max() / np.abs(array).max()
        assert error <= tolerance, f"{name}: off by {error:.1e} of its largest element"


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("kind", ["lamb", "adamw"])
class TestFormula:
    # Epsilon is 1e-6: it is the larger part of the divisor where gradients are 1e-7.
    @pytest.mark.parametrize(
        ("scale", "max_norm", "scheduled"),
        [(1, None, False), (1, 2.0, True), (1e-6, None, True), (1e-7, None, False)],
    )
    def test_twelve_steps(self, kind, bias_correction, scale, max_norm, scheduled):
        weights = random_arrays(0)
        gradients = [random_arrays(step, scale) for step in range(1, 13)]
        schedule = optimization.WarmUpPolynomialDecay(0.1, 20, 2) if scheduled else 0.1
        falling = [0.1 * (1 - step / 20) for step in range(2, 12)]
        rates = [0.0, 0.05, *falling] if scheduled else [0.1] * 12
        optimizer = getattr(optimization, kind)(schedule, 0.3, bias_correction)
        variables = [tf.Variable(array, name=name) for name, array in weights.items()]
        for step in gradients:
            grads = [tf.constant(step[name]) for name in weights]
            if max_norm:
                grads, _ = optimization.clip_by_global_norm(grads, max_norm)
            optimizer.apply_gradients(zip(grads, variables))
        actual = {name: variable.numpy() for name, variable in zip(weights, variables)}
        expected = numpy_steps(
            kind, weights, gradients, rates, 0.3, bias_correction, max_norm=max_norm
        )
        assert_close(actual, expected, TOLERANCE[kind])

    def test_sparse_gradient_equals_dense(self, kind, bias_correction):
        start = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
        results = []
        for sparse in (False, True):
            optimizer = getattr(optimization, kind)(0.1, 0.3, bias_correction)
            table = tf.Variable(start, name="word_embeddings")
            for step in range(3):
                values = np.random.default_rng(step).normal(size=(4, 3)).astype(np.float32)
                gradient = tf.IndexedSlices(values, tf.constant([4, 1, 4, 0]), (6, 3))
                gradient = gradient if sparse else tf.convert_to_tensor(gradient)
                optimizer.apply_gradients([(gradient, table)])
            results.append(table.numpy())
        np.testing.assert_allclose(*results, atol=TOLERANCE[kind])
        assert np.abs(results[0] - start).max() > 0.05


class TestExclusions:
    @pytest.mark.parametrize("sharing", SHARING_MODES)
    def test_vectors_are_excluded_and_matrices_are_not(self, sharing):
        optimizer = optimization.lamb(0.1)
        variables = name_map.model_variables(tiny_model(parameter_sharing=sharing))
        for name, variable in variables.items():
            is_matrix = len(variable.shape) == 2
            assert optimizer._do_layer_adaptation(variable) == is_matrix
            assert optimizer._do_use_weight_decay(variable) == is_matrix
            assert is_excluded(name) != is_matrix
        if sharing == "all":
            assert sum(map(is_excluded, variables)) == 19 and len(variables) == 32

    @pytest.mark.parametrize("kind", ["lamb", "adamw"])
    def test_without_gradient_only_the_others_decay(self, kind):
        variables = name_map.model_variables(tiny_model())
        rng = np.random.default_rng(0)
        for variable in variables.values():  # biases begin at 0: nothing would decay
            variable.assign(rng.normal(size=variable.shape))
        before = {name: variable.numpy() for name, variable in variables.items()}
        optimizer = getattr(optimization, kind)(0.25, 0.5)
        optimizer.apply_gradients([(tf.zeros_like(v), v) for v in variables.values()])
        # LAMB's update, 0.5 * w, is brought to the norm of w.
        kept = 0.75 if kind == "lamb" else 0.875
        for name, variable in variables.items():
            factor = 1.0 if is_excluded(name) else kept
            rtol = 0 if is_excluded(name) else 1e-5
            np.testing.assert_allclose(variable, factor * before[name], rtol, err_msg=name)


class TestSchedule:
    def test_equals_reference(self):
        cases = json.loads(make_golden.LEARNING_RATES.read_text())
        assert len(cases) == 5
        names = ("init_lr", "num_train_steps", "num_warmup_steps", "poly_power")
        for case in cases:
            schedule = optimization.WarmUpPolynomialDecay(*(case[name] for name in names))
            steps, rates = zip(*case["values"])
            # The last steps of 125,000 lie at float32's rounding of 1 - t / total.
            np.testing.assert_allclose(
                [schedule(step) for step in steps], rates, rtol=1e-5, atol=1e-7 * case["init_lr"]
            )

    def test_by_hand(self):
        schedule = optimization.WarmUpPolynomialDecay(1.0, 20, 4)
        rates = {0: 0, 1: 0.25, 3: 0.75, 4: 0.8, 5: 0.75, 10: 0.5, 19: 0.05, 20: 0, 25: 0}
        for step, rate in rates.items():
            assert float(schedule(step)) == pytest.approx(rate, abs=1e-6), step
            assert float(schedule(tf.constant(step, tf.int64))) == pytest.approx(rate, abs=1e-6)
        assert float(optimization.WarmUpPolynomialDecay(8.0, 4, 0, 2.0)(2)) == pytest.approx(2.0)
        assert float(optimization.WarmUpPolynomialDecay(0.5, 10, 0)(0)) == 0.5

    def test_config_makes_the_same(self):
        schedule = optimization.WarmUpPolynomialDecay(0.3, 20, 4, 2.0)
        again = optimization.WarmUpPolynomialDecay.from_config(schedule.get_config())
        assert [float(again(t)) for t in range(22)] == [float(schedule(t)) for t in range(22)]

    @pytest.mark.parametrize(("total", "warmup"), [(10, 11), (10, -1)])
    def test_impossible(self, total, warmup):
        with pytest.raises(ValueError, match=f"num_warmup_steps {warmup} is not between"):
            optimization.WarmUpPolynomialDecay(0.1, total, warmup)


@pytest.mark.parametrize(("max_norm", "factor"), [(3.5, 0.5), (7.5, 1.0)])
@pytest.mark.parametrize("sparse", [True, False])
def test_the_norm_that_clips_adds_repeated_rows(sparse, max_norm, factor):
    slices = np.float32([[3, 0], [0, 2], [3, 0]])  # rows 2, 0 and 2 again: 6, not 3 and 3
    table = tf.IndexedSlices(slices, tf.constant([2, 0, 2]), (4, 2))
    table = table if sparse else tf.convert_to_tensor(table)
    clipped, norm = optimization.clip_by_global_norm([table, tf.constant([3.0, 0.0])], max_norm)
    assert float(norm) == pytest.approx(7.0)  # sqrt(36 + 4 + 9)
    np.testing.assert_allclose(clipped[0], factor * np.float32([[0, 2], [0, 0], [6, 0], [0, 0]]))
    np.testing.assert_allclose(clipped[1], [factor * 3, 0])


@pytest.mark.parametrize("kind", ["lamb", "adamw"])
def test_slots_exist_before_the_first_step_and_take_a_checkpoint_at_once(kind, tmp_path):
    def make():
        model = tiny_model()
        optimizer = getattr(optimization, kind)(0.1)
        return model, optimizer, tf.train.Checkpoint(model=model, optimizer=optimizer)

    model, optimizer, checkpoint = make()
    assert not optimizer.variables()
    optimization.create_slots(optimizer, model)
    shapes = [variable.shape for variable in model.trainable_variables]
    assert [v.shape for v in optimizer.variables()] == [[], *shapes, *shapes]
    optimizer.apply_gradients([(tf.ones_like(v), v) for v in model.trainable_variables])
    path = checkpoint.write(str(tmp_path / "ckpt"))

    fresh_model, fresh, checkpoint = make()
    optimization.create_slots(fresh, fresh_model)
    checkpoint.read(path).assert_consumed()
    for saved, restored in zip(optimizer.variables(), fresh.variables()):
        np.testing.assert_array_equal(saved.numpy(), restored.numpy())
    assert fresh.get_slot(fresh_model.trainable_variables[0], "m").numpy().min() > 0
