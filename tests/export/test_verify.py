"""The verification passes what is equal, or near in bfloat16, and stops what is not."""

import dataclasses
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.text.tokenization import AlbertTokenizer
from export import verify
from export.loading import load_module, open_checkpoint
from tests.export.conftest import MAX_SEQ_LENGTH
from tests.export.task_models import TASKS


def test_another_weight_is_noticed(loaded, module, monkeypatch):
    """The module in memory answers anew, and the SavedModel in this process."""

    def answer_here(command, input, **_):
        answers = verify._answers(loaded.signatures, pickle.loads(input))
        return subprocess.CompletedProcess(command, 0, pickle.dumps(answers))

    monkeypatch.setattr(subprocess, "run", answer_here)
    bias = module.encoder.pooler.bias
    bias.assign_add(tf.fill(bias.shape, 1e-3))
    try:
        with pytest.raises(RuntimeError, match=r"pooled returns another \w+ than in memory"):
            verify.verify("saved", module, {"pooled": module.function("pooled")})
    finally:
        bias.assign_sub(tf.fill(bias.shape, 1e-3))


def test_another_tokenizer_is_noticed(make_module, monkeypatch):
    """What was saved does not judge itself."""
    module = make_module(TASKS["regressor"])
    other = AlbertTokenizer(f"{module.served.model_dir}/spiece.model", do_lower_case=False)
    monkeypatch.setattr(module, "served", dataclasses.replace(module.served, tokenizer=other))
    with pytest.raises(RuntimeError, match=r"divide 'The \[MASK\] function .* into other pieces"):
        verify.verify("saved", module, {})


@pytest.mark.slow
def test_our_code_is_out_of_reach_of_the_process(tmp_path, module, monkeypatch):
    script = tmp_path / "script.py"
    source = Path(verify.__file__).read_text(encoding="utf-8")
    before = "    import tensorflow_text"
    assert source.count(before) == 1
    script.write_text(source.replace(before, "    import albert_tf\n" + before), encoding="utf-8")
    monkeypatch.setattr(verify, "__file__", str(script))
    # The hardest case: it lies on the path.
    monkeypatch.setenv("PYTHONPATH", str(Path(albert_tf.__file__).parents[1]))
    with pytest.raises(RuntimeError, match=r"fresh process:(.|\n)*import of albert_tf halted"):
        verify.verify(str(tmp_path), module, {"pooled": module.function("pooled")})


def test_what_counts_as_equal():
    def pieces(*names):
        return {"pieces": np.array([names], object)}

    expected = {"x": np.float32([1.0, 2.0]), "n": np.int32([3]), **pieces(b"a", b"b", b"c", b"d")}
    expected["probabilities"] = np.float32([[0.5, 0.2, 0.2, 0.1]])
    tie_and_last = pieces(b"a", b"c", b"b", b"e")
    for change in ({}, {"x": np.float32([1.0, 2.0 + 9e-6])}, tie_and_last):
        assert verify._difference(("s", {}), expected, {**expected, **change}) < 1e-4
    for change in (
        *({"x": np.float32(values)} for values in ([1.0, 2.1], [1.0], [1.0, np.nan])),
        *({name: np.int32([4])} for name in ("n", "another")),
        pieces(b"x", b"b", b"c", b"d"),
    ):
        with pytest.raises(RuntimeError, match="s returns"):
            verify._difference(("s", {}), expected, {**expected, **change})


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
    with pytest.raises(RuntimeError, match=r"in bfloat16 is 0\.\d+ from the float32 model, above"):
        verify.verify(str(tmp_path), module, functions, exact)


NAMES = {"pretraining", *TASKS} - {"embedder"}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(NAMES)]


@pytest.mark.parametrize("name", ["embedder", *SLOW])
def test_every_kind_answers_in_float32(module_of, name):
    exact = module_of(name)
    half = load_module(dataclasses.replace(exact.served, precision="bfloat16"))
    assert exact.trainable_variables and not half.trainable_variables
    for variable in half.variables:
        is_float32 = "embeddings:0" in variable.name or "layer_norm" in variable.name
        assert variable.dtype == (tf.float32 if is_float32 else tf.bfloat16), variable.name
    asked = [{"serving_default": of.function("serving_default")} for of in (exact, half)]
    questions = verify._questions(half, asked[0])
    differences = []
    for theirs, answer in zip(*(verify._answers(functions, questions) for functions in asked)):
        forms = [{n: (a.dtype, a.shape) for n, a in found.items()} for found in (answer, theirs)]
        assert forms[0] == forms[1]
        differences.append(verify._rounding(theirs, answer))
    # Random weights are large, and a processor without bfloat16 instructions rounds more often: the
    # regressor has 0.056 there. A span may change.
    most = verify.BFLOAT16_TOLERANCE * (1 if name == "pretraining" else 2)
    assert max(differences) < most or "question" in name
    # Answers and spans are text, of which no rounding is computed.
    assert max(differences) > 0 or "question" in name or name == "token_classifier"


def test_what_rounding_is():
    exact = {"score": np.float32([3.0, 4.0, -1e30]), "answer": np.array([b"a"], object)}
    near = {"score": np.float32([3.3, 4.4, -1e30]), "answer": np.array([b"b"], object)}
    assert verify._rounding(exact, near) == pytest.approx(0.1, rel=1e-5)
    far = {**near, "score": np.float32([np.nan, 4.0, -1e30])}
    assert not verify._rounding(exact, far) <= verify.BFLOAT16_TOLERANCE
    assert verify._rounding(exact, exact) == 0.0
