import numpy as np
import pytest
import tensorflow as tf

from albert_tf import optimization
from albert_tf.storage.errors import UserError
from tests.jobs import curves
from tests.pipelines.training.test_train_loop import assert_equal_weights, run, with_bad_batches

PRECISIONS = ["bfloat16", "float16"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_is_near_float32(three_steps, eager, tmp_path, precision):
    directory, full = three_steps
    half = run(tmp_path, 3, every=2, mixed_precision=precision)
    for ours, theirs in zip(curves(tmp_path), curves(directory)):
        ours.pop("loss_scale", None)
        assert ours == pytest.approx(theirs, rel=0.03)
    assert {variable.dtype for variable in half.variables} == {tf.float32}
    differences = [a - b for a, b in zip(half.variables, full.variables)]
    assert 0.0 < tf.linalg.global_norm(differences) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_resumes_in_the_same_bits(tmp_path, monkeypatch, precision):
    # The first steps of a float16 run have gradients beyond its range.
    monkeypatch.setattr(optimization.LossScale, "INITIAL", 2.0**22)
    whole = run(tmp_path / "whole", 14, dropout=0.3, mixed_precision=precision)
    run(tmp_path / "parts", 14, stop_step=8, dropout=0.3, mixed_precision=precision)
    resumed = run(tmp_path / "parts", 14, dropout=0.3, mixed_precision=precision)
    assert_equal_weights(whole, resumed)
    assert curves(tmp_path / "whole") == curves(tmp_path / "parts")
    assert np.isfinite(curves(tmp_path / "whole")[-1]["loss"])
    # An overflow halves the scale, and is no bad batch.
    scales = [entry.get("loss_scale") for entry in curves(tmp_path / "whole")]
    assert precision == "bfloat16" or scales[-1] == scales[-2] < 2.0**22


@pytest.mark.usefixtures("eager")
def test_overflows_leave_the_loss_in_the_log_and_no_loss_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(optimization.LossScale, "INITIAL", 2.0**60)
    with pytest.raises(UserError, match="not finite in the batch of step 2"):
        run(tmp_path, 4, every=2, dataset_fn=with_bad_batches(2), mixed_precision="float16")
    [entry] = curves(tmp_path)
    assert np.isfinite(entry["loss"]) and "gradient_norm" not in entry
    assert entry["loss_scale"] == 2.0**58


def test_scale(monkeypatch):
    monkeypatch.setattr(optimization.LossScale, "STEPS_TO_DOUBLE", 9)
    scale, seen = optimization.LossScale(optimization.lamb(0.1)), []
    for is_finite, times in ((False, 0), (False, 1), (True, 8), (True, 1), (True, 1)):
        for _ in range(times):
            scale.update(tf.constant(is_finite))
        seen.append((scale.value.numpy(), scale.steps.numpy()))
    assert seen == [(2**15, 0), (2**14, 0), (2**14, 8), (2**15, 0), (2**15, 1)]
    for _ in range(20):
        scale.update(tf.constant(False))
    assert scale.value == 1.0 and scale.steps == 0.0
