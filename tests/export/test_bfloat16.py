"""An export in bfloat16: smaller weights, float32 answers, near those of the float32 export."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from export import verify
from export.loading import load_module, open_checkpoint
from tests.export.conftest import MAX_SEQ_LENGTH
from tests.export.task_models import TASKS, function_of


@pytest.mark.slow
def test_a_model_that_bfloat16_distorts_is_refused(model_dir, tmp_path):
    served = open_checkpoint(str(model_dir), None, MAX_SEQ_LENGTH)
    exact = load_module(served)
    module = load_module(dataclasses.replace(served, precision="bfloat16"))
    functions = module.functions()
    tf.saved_model.save(module, str(tmp_path), signatures=functions)
    difference = verify.verify(str(tmp_path), module, functions, exact)
    assert 0.0 < difference < verify.BFLOAT16_TOLERANCE
    bias = exact.model.encoder.pooler.bias
    bias.assign_add(tf.fill(bias.shape, 0.5))
    with pytest.raises(RuntimeError, match=r"in bfloat16 is 0\.\d+ from the float32 model's"):
        verify.verify(str(tmp_path), module, functions, exact)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in TASKS if name != "classifier"]


@pytest.mark.parametrize("name", ["pretraining", "classifier", *SLOW])
def test_every_kind_answers_in_float32(make_module, module, name):
    exact = module if name == "pretraining" else make_module(TASKS[name])
    half = load_module(dataclasses.replace(exact.served, precision="bfloat16"))
    assert exact.trainable_variables and not half.trainable_variables
    for variable in half.variables:
        is_float32 = "embeddings:0" in variable.name or "layer_norm" in variable.name
        assert variable.dtype == (tf.float32 if is_float32 else tf.bfloat16), variable.name
    functions = {"serving_default": half.function("serving_default")}
    questions = verify._questions(half, functions)
    answers = verify._answers(functions, questions)
    asked = {"serving_default": function_of(exact, "serving_default")}
    differences = []
    for theirs, answer in zip(verify._answers(asked, questions), answers):
        forms = [{n: (a.dtype, a.shape) for n, a in found.items()} for found in (answer, theirs)]
        assert forms[0] == forms[1]
        differences.append(verify._rounding(theirs, answer))
    # Random weights are large, and a processor without bfloat16 instructions rounds more often: the
    # regressor has 0.056 there. A span may change.
    most = verify.BFLOAT16_TOLERANCE * (1 if name == "pretraining" else 2)
    assert max(differences) < most or "question" in name
    if name in ("pretraining", "classifier"):  # spans may all be the same
        assert max(differences) > 0


def test_what_rounding_is():
    exact = {"score": np.float32([3.0, 4.0, -1e30]), "answer": np.array([b"a"], object)}
    near = {"score": np.float32([3.3, 4.4, -1e30]), "answer": np.array([b"b"], object)}
    assert verify._rounding(exact, near) == pytest.approx(0.1, rel=1e-5)
    far = {**near, "score": np.float32([np.nan, 4.0, -1e30])}
    assert not verify._rounding(exact, far) <= verify.BFLOAT16_TOLERANCE
    assert verify._rounding(exact, exact) == 0.0
