import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import addons, keras_lamb, optimization
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


def random_arrays(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {
        name: (scale * (i + 1) * rng.normal(size=shape)).astype(np.float32)
        for i, (name, shape) in enumerate(SHAPES.items())
    }


def numpy_steps(kind, weights, gradients, rates, weight_decay, bias_correction, max_norm=None):
    """AdamW with bias correction is torch's, without it the reference's."""
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
            if "layer_norm" not in name and "bias" not in name:
                update = update + weight_decay * weight
                if kind == "lamb":
                    ratio = np.linalg.norm(weight) / np.linalg.norm(update)
            weights[name] = weight - ratio * rate * update
    return weights


def sparse(gradient):
    """Returns the gradient by rows, the first one in two halves."""
    halved = tf.concat([gradient[:1] / 2, gradient[1:], gradient[:1] / 2], 0)
    rows = len(gradient)
    return tf.IndexedSlices(halved, tf.constant([*range(rows), 0]), gradient.shape)


@pytest.mark.parametrize("kind", ["lamb", "adamw"])
# Epsilon is 1e-6: it is as large a part of the divisor as gradients of 1e-6.
@pytest.mark.parametrize(
    ("scale", "max_norm", "scheduled", "bias_correction"),
    [
        (1, None, False, True),
        (1, 2.0, True, False),
        (1e-6, None, True, True),
    ],
)
def test_steps_equal_the_formula(kind, bias_correction, scale, max_norm, scheduled):
    weights = random_arrays(0)
    gradients = [random_arrays(step, scale) for step in range(1, 5)]
    schedule = optimization.WarmUpPolynomialDecay(0.1, 20, 2) if scheduled else 0.1
    rates = [0.0, 0.05, 0.09, 0.085] if scheduled else [0.1] * 4
    optimizer = getattr(optimization, kind)(schedule, 0.3, bias_correction)
    # The model's name does not exclude all of its variables, and copies are treated alike.
    name = "layer_norm_bias/x/{}" + "/replica_1" * scheduled
    variables = [tf.Variable(array, name=name.format(n)) for n, array in weights.items()]
    for step in gradients:
        grads = [tf.constant(step[name]) for name in weights]
        grads[3] = sparse(grads[3])
        if max_norm:
            grads, _ = optimization.clip_by_global_norm(grads, max_norm)
        optimizer.apply_gradients(zip(grads, variables))
    expected = numpy_steps(kind, weights, gradients, rates, 0.3, bias_correction, max_norm=max_norm)
    for variable, (name, array) in zip(variables, expected.items()):
        error = np.abs(variable.numpy() - array).max() / np.abs(array).max()
        assert error <= TOLERANCE[kind], f"{name}: off by {error:.1e} of its largest element"


def test_learning_rates_equal_the_reference():
    cases = json.loads(make_golden.LEARNING_RATES.read_text())
    assert len(cases) == 5
    names = ("init_lr", "num_train_steps", "num_warmup_steps", "poly_power")
    for case in cases:
        schedule = optimization.WarmUpPolynomialDecay(*(case[name] for name in names))
        steps, rates = zip(*case["values"])
        found = [schedule(step) for step in steps]
        # The last steps of 125,000 lie at float32's rounding of 1 - t / total.
        np.testing.assert_allclose(found, rates, rtol=1e-5, atol=1e-7 * case["init_lr"])


def test_impossible_warm_up():
    for warmup in (11, -1):
        with pytest.raises(ValueError, match=f"num_warmup_steps {warmup} is not between"):
            optimization.WarmUpPolynomialDecay(0.1, 10, warmup)


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


BASES = {"addons": addons._Optimizer.__bases__, "own": (keras_lamb.LAMB,)}


@pytest.fixture
def use_base():
    """A function: name of a base class -> None; optimizers then compute with it."""
    yield lambda base: setattr(addons._Optimizer, "__bases__", BASES[base])
    addons._Optimizer.__bases__ = BASES["addons"]


class Run:
    def __init__(self, kind, bias_correction):
        self.variables = [tf.Variable(a, name=name) for name, a in random_arrays(0).items()]
        self.variables[3].assign(tf.zeros(SHAPES["word_embeddings"]))  # has no ratio of norms
        schedule = optimization.WarmUpPolynomialDecay(0.1, 10, 2)
        self.optimizer = getattr(optimization, kind)(schedule, 0.01, bias_correction)
        trained = SimpleNamespace(trainable_variables=self.variables)
        optimization.create_slots(self.optimizer, trained)
        self.optimizer.loss_scale = optimization.LossScale(self.optimizer)
        self.checkpoint = tf.train.Checkpoint(optimizer=self.optimizer, variables=self.variables)

    def step(self, step):
        gradients = [tf.constant(array) for array in random_arrays(step).values()]
        if step % 2:
            gradients = [sparse(gradient) for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, self.variables))
        self.optimizer.loss_scale.update(tf.constant(step % 3 > 0))
        return self.state()

    def state(self):
        slots = [self.optimizer.get_slot(v, slot) for slot in "mv" for v in self.variables]
        scale = self.optimizer.loss_scale
        others = [self.optimizer.iterations, scale.value, scale.steps]
        return [variable.numpy() for variable in (*self.variables, *slots, *others)]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="tensorflow-addons has no wheel")
@pytest.mark.parametrize(
    ("kind", "bias_correction"),
    [("lamb", True), pytest.param("adamw", False, marks=pytest.mark.slow)],
)
def test_our_base_equals_tensorflow_addons_bit_by_bit(kind, bias_correction, use_base, tmp_path):
    """Steps, settings and checkpoints, from which each resumes the other's run."""
    states, configs, paths = {}, [], {}
    for base in BASES:
        use_base(base)
        run = Run(kind, bias_correction)
        configs.append(run.optimizer.get_config())
        states[base] = [run.step(step) for step in (1, 2)]
        paths[base] = run.checkpoint.write(str(tmp_path / base))
        states[base].append(run.step(3))
    assert configs[0] == configs[1]
    assert states["addons"][1][3].any(), "of zeros"
    for theirs, ours in zip(*states.values()):
        np.testing.assert_equal(ours, theirs)
    for first, second in (("addons", "own"), ("own", "addons")):
        use_base(second)
        resumed = Run(kind, bias_correction)
        restored = resumed.checkpoint.read(paths[first])
        restored.assert_consumed().assert_existing_objects_matched()
        np.testing.assert_equal(resumed.state(), states[first][1])
        np.testing.assert_equal(resumed.step(3), states[first][2])
