"""keras_lamb against tensorflow-addons: the same steps, the same checkpoints."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import addons, keras_lamb, optimization
from tests.albert_tf.test_optimization_parity import Reference
from tests.golden import make_golden

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="tensorflow-addons has no wheel for this Python"
)
BASES = {"addons": addons._Optimizer.__bases__, "own": (keras_lamb.LAMB,)}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return Reference("tiny_gelu", tmp_path_factory.mktemp("reference"))


class Run:
    """The golden steps by an optimizer of one base, from the reference's weights."""

    def __init__(self, base, kind, bias_correction, reference):
        self._base, self._reference = base, reference
        self._variables = list(reference.variables.values())
        self._rates = make_golden.read_run_fixture(kind)[0]["learning_rates"]
        addons._Optimizer.__bases__ = BASES[base]
        self.optimizer = getattr(optimization, kind)(0.1, 0.01, bias_correction)
        optimization.create_slots(self.optimizer, reference.model)
        optimization.add_loss_scale(self.optimizer)
        self.checkpoint = tf.train.Checkpoint(optimizer=self.optimizer, model=reference.model)

    def step(self, step):
        """Takes a step; returns weights, moments and what else a checkpoint holds."""
        addons._Optimizer.__bases__ = BASES[self._base]
        self.optimizer.learning_rate = self._rates[step - 1]
        gradients, _ = self._reference.gradients()
        if step % 2:
            gradients = [sparse(gradient) for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, self._variables))
        self.optimizer.loss_scale.update(tf.constant(step % 3 > 0))
        return self.state()

    def state(self):
        slots = [self.optimizer.get_slot(v, slot) for slot in "mv" for v in self._variables]
        scale = self.optimizer.loss_scale
        others = [self.optimizer.iterations, scale.value, scale.steps]
        return [variable.numpy() for variable in (*self._variables, *slots, *others)]


def sparse(gradient):
    """Returns the gradient by rows, the first one in two halves."""
    halved = tf.concat([gradient[:1] / 2, gradient[1:], gradient[:1] / 2], 0)
    rows = len(gradient)
    return tf.IndexedSlices(halved, tf.constant([*range(rows), 0]), gradient.shape)


@pytest.fixture
def make(reference):
    start = [variable.numpy() for variable in reference.variables.values()]

    def create(*arguments):
        for variable, array in zip(reference.variables.values(), start):
            variable.assign(array)
        return Run(*arguments, reference)

    yield create
    create("addons", "lamb", True)  # what other tests in this process expect


def assert_equal(found, expected):
    for array, other in zip(found, expected):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("kind", ["lamb", "adamw"])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_golden_steps_are_bit_equal(kind, bias_correction, make):
    states, configs = [], []
    for base in BASES:
        run = make(base, kind, bias_correction)
        configs.append(run.optimizer.get_config())
        states.append([run.step(step) for step in range(1, 9)])
    assert configs[0] == configs[1]
    assert not np.array_equal(states[0][0][0], states[0][7][0])
    for theirs, ours in zip(*states):
        assert_equal(ours, theirs)


def test_a_kernel_of_zeros_moves(make):
    moved = []
    for base in BASES:
        kernel = tf.Variable(tf.zeros([2, 2]), name="kernel")
        make(base, "lamb", True).optimizer.apply_gradients([(tf.ones([2, 2]), kernel)])
        moved.append(kernel.numpy())
    assert moved[0].all()
    assert_equal(moved[1], moved[0])


@pytest.mark.parametrize(("kind", "bias_correction"), [("lamb", True), ("adamw", False)])
@pytest.mark.parametrize(("first", "second"), [("addons", "own"), ("own", "addons")])
def test_a_checkpoint_resumes_on_the_other(kind, bias_correction, first, second, make, tmp_path):
    run = make(first, kind, bias_correction)
    for step in range(1, 4):
        saved = run.step(step)
    path = run.checkpoint.write(str(tmp_path / "checkpoint"))
    expected = [run.step(step) for step in (4, 5)]

    resumed = make(second, kind, bias_correction)
    resumed.checkpoint.read(path).assert_consumed().assert_existing_objects_matched()
    assert_equal(resumed.state(), saved)
    for step, state in zip((4, 5), expected):
        assert_equal(resumed.step(step), state)
