"""LAMB and AdamW against the reference's own steps, and what bias correction changes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import losses, optimization
from albert_tf.checkpoints import google, name_map
from tests.albert_tf.test_optimization import is_excluded
from tests.albert_tf.test_parity import relative_error, write_tf1_checkpoint
from tests.golden import make_golden


class Reference:
    """The reference's own steps, and its gradients computed by the imported model."""

    def __init__(self, name, directory):
        self.case = make_golden.read_fixture(name)
        path = write_tf1_checkpoint(directory / name, self.case)
        self.model, fresh = name_map.build(google.read(path), path)
        assert not fresh
        self.variables = name_map.model_variables(self.model)
        batch = {key: tf.constant(array) for key, array in self.case.batch.items()}
        denominators = {  # the reference adds 1e-5
            "masked_lm": tf.reduce_sum(batch["masked_lm_weights"]) + 1e-5,
            "sentence_order": tf.reduce_sum(batch["sentence_order_weights"]),
        }

        @tf.function
        def gradients():
            with tf.GradientTape() as tape:
                sums = losses.pretraining_sums(self.model(batch), batch)
                loss = losses.pretraining_loss(sums, denominators)
            gradients = tape.gradient(loss, list(self.variables.values()))
            return [tf.convert_to_tensor(gradient) for gradient in gradients], loss

        self.gradients = gradients

    def weights(self):
        """Returns TF1 name -> array."""
        return self.named(self.variables.values())

    def named(self, variables):
        """Returns TF1 name -> array of `variables`, which are the model's or slots of them."""
        arrays = {name: v.numpy() for name, v in zip(self.variables, variables)}
        return name_map.from_ours(arrays, self.model.config, "google")

    def step(self, optimizer, max_norm=None, norm=None):
        """Clips (by `norm` if the reference's is known) and steps; returns the loss before."""
        gradients, loss = self.gradients()
        if norm:
            gradients, _ = tf.clip_by_global_norm(gradients, max_norm, use_norm=tf.constant(norm))
        elif max_norm:
            gradients, _ = optimization.clip_by_global_norm(gradients, max_norm)
        optimizer.apply_gradients(zip(gradients, self.variables.values()))
        return float(loss)


def assert_equals_reference(actual, expected, start, tolerance):
    """Compares whole arrays, or whole arrays with summaries, in units of the largest element.

    `start` holds the weights before all steps, which may be larger: None for slots, which begin
    at 0. The true gradient of a key bias is 0: what is left is rounding.
    """
    assert set(actual) == set(expected)
    for name, array in expected.items():
        if "/key/bias" not in name:
            scale = np.abs(start[name]).max() if start else 0.0
            error = relative_error(actual[name], array, scale)
            assert error <= tolerance, f"{name}: off by {error:.1e}"


@pytest.fixture(
    params=["summaries", pytest.param("whole", marks=[pytest.mark.shared, pytest.mark.slow])]
)
def read_run(request):
    """A function: run -> description, step -> name -> array or its summary.

    Whole arrays are compared by the slow tests, since every run is repeated for them.
    """
    if request.param == "summaries":
        return make_golden.read_run_fixture
    golden = request.getfixturevalue("shared") / "golden"
    return functools.partial(make_golden.read_run, golden)


class TestReference:
    @pytest.mark.parametrize(
        ("run", "weight_tolerance", "slot_tolerance"),
        [
            # Updates are 0.03 large, a gamma is 1, a beta 0. How gradients are rounded depends on
            # processor and kernels. Weights were off by 6.7e-6 (lamb_const) and 1.8e-6 (lamb_sched)
            # on an EPYC with AVX2, the moments of adamw_sched by 2.3e-6 on one with AVX512.
            ("lamb_const", 1e-5, 2e-6),
            ("lamb_sched", 2e-6, 2e-6),
            ("adamw_sched", 2e-6, 4e-6),
        ],
    )
    def test_without_bias_correction_every_step_is_theirs(
        self, run, weight_tolerance, slot_tolerance, read_run, tmp_path
    ):
        described, states = read_run(run)
        reference = Reference("forward", tmp_path)
        start = reference.weights()
        rate = described.get("learning_rate") or optimization.WarmUpPolynomialDecay(
            described["init_lr"], described["num_train_steps"], described["num_warmup_steps"]
        )
        optimizer = getattr(optimization, described["optimizer"])(rate, bias_correction=False)
        for step in range(1, described["steps"] + 1):
            loss = reference.step(optimizer, described.get("clip_global_norm"))
            assert loss == pytest.approx(described["losses_before_step"][step - 1], rel=1e-6)
            expected = {name: states[step][name] for name in start}
            assert_equals_reference(reference.weights(), expected, start, weight_tolerance)
            for slot in ("m", "v"):
                slots = [optimizer.get_slot(v, slot) for v in reference.variables.values()]
                expected = {name: states[step][f"{name}/adam_{slot}"] for name in start}
                assert_equals_reference(reference.named(slots), expected, None, slot_tolerance)

    @pytest.mark.parametrize("kind", ["lamb", "adamw"])
    def test_eight_steps(self, kind, read_run, tmp_path):
        described, states = read_run(kind)
        reference = Reference("tiny_gelu", tmp_path)
        start = reference.weights()
        rates = described["learning_rates"]
        optimizer = getattr(optimization, kind)(rates[0], bias_correction=False)
        for step in range(1, 9):
            optimizer.learning_rate = rates[step - 1]
            # The reference's norm on CPU counts repeated rows of the word embeddings apart.
            norm = described["global_norm_before_clip"][step - 1]
            loss = reference.step(optimizer, described["clip_norm"], norm)
            expected = described["loss_before_each_step_then_final"][step - 1]
            assert loss == pytest.approx(expected, rel=1e-5)
            if step in states:
                assert_equals_reference(reference.weights(), states[step], start, 1e-5)
        assert list(states) == [1, 2, 3, 8]

    @pytest.mark.parametrize("name", ["forward", "tiny_gelu"])
    def test_what_bias_correction_changes(self, name, tmp_path):
        """Update by update from the same weights and gradients, along the reference's own way.

        The figures of tests/benchmarks/README.md, lamb_bias_correction. `forward` at a rate of
        0.01 is the golden run lamb_const.
        """
        reference = Reference(name, tmp_path)
        variables = list(reference.variables.values())
        theirs = optimization.lamb(0.01, bias_correction=False)
        ours = optimization.lamb(0.01)
        found = {}
        for step in range(1, 9):
            before, start = [tf.identity(variable) for variable in variables], reference.weights()
            reference.step(ours)
            corrected = {n: array - start[n] for n, array in reference.weights().items()}
            for variable, value in zip(variables, before):
                variable.assign(value)
            reference.step(theirs)
            published = {n: array - start[n] for n, array in reference.weights().items()}
            found[step] = [*differences(corrected, published)]
        # Update -> how far excluded variables move, the reference's being 1. The formula is
        # sqrt(1 - 0.999^t) / (1 - 0.9^t); where gradients are tiny, epsilon adds to it.
        for step, ratio in {1: 0.316, 2: 0.235, 3: 0.202, 8: 0.157}.items():
            excluded, adapted = found[step]
            assert min(excluded["ratio"]) == pytest.approx(ratio, abs=1e-3)
            assert max(excluded["ratio"]) == pytest.approx(ratio, rel=0.03)
            assert adapted["ratio"] == pytest.approx([1, 1], abs=1e-5)
            assert excluded["cosine"] > (0.994 if step == 1 else 0.999)
            # The weights' decay is a smaller share of their larger update.
            assert adapted["cosine"] > (0.996 if step == 1 else 0.999)


def differences(corrected, published):
    """Returns for excluded and adapted variables the range of their ratios and lowest cosine."""
    groups = {True: [], False: []}
    for name, update in published.items():
        if "/key/bias" not in name:
            norms = np.linalg.norm(corrected[name]), np.linalg.norm(update)
            cosine = (corrected[name] * update).sum() / (norms[0] * norms[1])
            groups[is_excluded(name)].append((norms[0] / norms[1], cosine))
    for excluded in (True, False):
        ratios, cosines = zip(*groups[excluded])
        yield {"ratio": [min(ratios), max(ratios)], "cosine": min(cosines)}
