"""An ONNX model answers like the model it was made of, and holds each shared weight once."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest

from export.fixed_graph import INPUTS
from export.fixed_graph import answer as answer_of_model
from export.loading import load_module, open_checkpoint
from export.onnx import convert
from tests.export.conftest import write_classifier

needs_packages = pytest.mark.extras("onnx", "onnxruntime")
LABELS = ["no", "yes", "perhaps"]


def write_model(directory, model_dir, kind, **changes):
    labels = None if kind == "regressor" else LABELS
    write_classifier(directory, model_dir, kind, labels, **changes)
    return directory


@needs_packages
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("encoder", {}),
        ("encoder", {"parameter_sharing": "attention", "hidden_act": "relu"}),
        ("encoder", {"embedding_size": 20, "inner_group_num": 2, "hidden_act": "gelu_erf"}),
        ("classifier", {}),
        ("multilabel", {}),
        ("regressor", {"num_hidden_groups": 2}),
    ],
)
def test_answers_are_equal(kind, changes, model_dir, tmp_path):
    import onnxruntime

    written = "regressor" if kind == "encoder" else kind
    directory = write_model(tmp_path / "model", model_dir, written, **changes)
    path = tmp_path / "out.onnx"
    differences = convert(checkpoint=str(directory), output=str(path), kind=kind)
    assert max(differences.values()) < 1e-4
    session = onnxruntime.InferenceSession(str(path))
    rng = np.random.RandomState(0)
    mask = np.array([[1] * 11, [1] * 4 + [0] * 7])
    inputs = dict(zip(INPUTS, (mask * rng.randint(5, 50, mask.shape), mask, mask * 0)))
    module = load_module(open_checkpoint(str(directory), kind))
    expected = answer_of_model(module, inputs)
    assert [output.name for output in session.get_outputs()] == list(expected)
    for name, found in zip(expected, session.run(list(expected), inputs)):
        np.testing.assert_allclose(found, expected[name], atol=1e-4, err_msg=name)
        if name != "sequence_output":  # padding makes no difference
            alone = {key: ids[1:, :4] for key, ids in inputs.items()}
            (alone,) = session.run([name], alone)
            np.testing.assert_allclose(found[1:], alone, atol=1e-4, err_msg=name)


# What is sent instead of good inputs [2, 3], and what the error of onnxruntime then names.
BAD = {
    "a negative id": ({"input_ids": [[2, -1, 3], [2, 5, 3]]}, "input_ids must be 0 to 163"),
    "a large id": ({"input_ids": [[2, 164, 3], [2, 5, 3]]}, "input_ids must be 0 to 163"),
    "a mask of 2": ({"input_mask": [[1, 1, 1], [1, 2, 0]]}, "input_mask must be 0 to 1"),
    "a mask of -1": ({"input_mask": [[1, 1, 1], [1, -1, 0]]}, "input_mask must be 0 to 1"),
    "a negative segment": ({"segment_ids": [[0, 0, 0], [0, 0, -1]]}, "segment_ids must be 0 to 1"),
    "a large segment": ({"segment_ids": [[0, 0, 0], [0, 0, 2]]}, "segment_ids must be 0 to 1"),
    "one mask for all": ({"input_mask": [[1, 1, 1]]}, "must have one shape"),
    "a mask of one column": ({"input_mask": [[1], [1]]}, "must have one shape"),
    "one row of segments": ({"segment_ids": [[0, 0, 0]]}, "must have one shape"),
    "a turned mask": ({"input_mask": [[1, 1], [1, 1], [1, 1]]}, "must have one shape"),
}


@needs_packages
@pytest.mark.parametrize("quantize", [False, True])
def test_bad_inputs_are_refused(quantize, model_dir, tmp_path):
    import onnxruntime

    directory = write_model(tmp_path / "model", model_dir, "classifier")
    path = tmp_path / "out.onnx"
    convert(checkpoint=str(directory), output=str(path), quantize=quantize)
    session = onnxruntime.InferenceSession(str(path))
    ids = np.array([[2, 163, 3], [2, 5, 0]])
    good = dict(zip(INPUTS, (ids, np.array([[1, 1, 1], [1, 1, 0]]), ids % 2)))
    assert np.isfinite(session.run(None, good)[0]).all()
    for name, (changes, expected) in BAD.items():
        with pytest.raises(Exception, match=expected):
            session.run(None, {**good, **{key: np.array(value) for key, value in changes.items()}})
            pytest.fail(f"answered {name}")


@needs_packages
def test_shared_weights_are_stored_once(model_dir, tmp_path):
    import onnx

    directory = write_model(
        tmp_path / "model", model_dir, "classifier", hidden_size=128, num_hidden_layers=9
    )
    path = tmp_path / "out.onnx"
    convert(checkpoint=str(directory), output=str(path))
    module = load_module(open_checkpoint(str(directory)))
    weights = sum(4 * v.shape.num_elements() for v in module.model.variables)
    assert path.stat().st_size < weights + 50_000
    model = onnx.load(str(path))
    (query,) = (t for t in model.graph.initializer if t.name == "encoder/attention_0/query/kernel")
    assert sum(query.name in node.input for node in model.graph.node) == 9


@needs_packages
def test_int8_is_small_and_near(model_dir, tmp_path):
    import onnx

    shape = {"hidden_size": 128, "num_hidden_layers": 9}
    directory = write_model(tmp_path / "model", model_dir, "classifier", scale=0.05, **shape)
    path = tmp_path / "int8.onnx"
    differences = convert(checkpoint=str(directory), output=str(path), quantize=True)
    assert 1e-4 < differences["probabilities"] < 0.2
    model = onnx.load(str(path))
    int8 = [t for t in model.graph.initializer if t.name.endswith("kernel_quantized")]
    assert {t.data_type for t in int8} == {onnx.TensorProto.INT8}
    # Each shared kernel once: four of attention, two of feed-forward, and those around the blocks.
    assert sum("attention_0" in t.name for t in int8) == 4
    module = load_module(open_checkpoint(str(directory)))
    kernels = sum(
        v.shape.num_elements() for v in module.model.variables if v.name.endswith("kernel:0")
    )
    assert sum(np.prod(t.dims) for t in int8) >= 0.95 * kernels


@needs_packages
def test_what_an_application_needs_lies_beside(model_dir, tmp_path):
    """What it is: the same test of test_tflite.py."""
    import onnx

    directory = write_model(tmp_path / "model", model_dir, "classifier")
    convert(checkpoint=str(directory), output=str(tmp_path / "out" / "rte.onnx"))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"rte.onnx", "rte.json", "rte.spiece.model"}
    described = json.loads((tmp_path / "out/rte.json").read_text())
    assert described["vocab_file"] == "rte.spiece.model" and described["kind"] == "classifier"
    model = onnx.load(str(tmp_path / "out/rte.onnx"))
    inside = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert inside == described


@needs_packages
def test_another_answer_is_refused(model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("export.onnx.LAYER_NORM_EPSILON", 0.5)
    with pytest.raises(ValueError, match=r"answers are \S+ from the model's, expected 0.0001 at"):
        convert(checkpoint=str(model_dir), output=str(tmp_path / "out.onnx"))
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_one_clear_error(model_dir, tmp_path, monkeypatch):
    def without(name, *arguments, **options):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ValueError, match=r"^onnx is missing: pip install 'albert_tf\[onnx\]'$"):
        convert(checkpoint=str(model_dir), output=str(tmp_path / "out.onnx"))
