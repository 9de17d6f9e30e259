"""An ONNX model answers like the model it was made of, and holds each shared weight once."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from albert_tf.kinds import KINDS
from albert_tf.text.packing import FEATURES
from export import fixed_graph, to_openvino
from export.to_onnx import convert
from tests.builders import raises_one_line
from tests.export.task_models import TASKS

needs_packages = pytest.mark.extras("onnx", "onnxruntime")


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
        ("multiple_choice", {}),
        ("embedder", {}),
        ("embedder, cls", {}),
        ("token_classifier", {}),
        ("question_answering", {}),
        ("pretraining", {}),
    ],
)
def test_answers_are_equal(kind, changes, make_module, model_dir, tmp_path):
    import onnx
    import onnxruntime

    directory = str(model_dir)
    if kind != "pretraining":
        task = TASKS["regressor" if kind == "encoder" else kind]
        layers = {"num_hidden_layers": 2, **changes}
        directory = make_module(task, scale=0.3, **layers).served.model_dir
    path = tmp_path / "out.onnx"
    differences = convert(fixed_graph.load(directory, kind.partition(",")[0]), str(path))
    assert max(differences.values()) < 1e-4
    session = onnxruntime.InferenceSession(str(path))
    outputs = ("sequence_output", "pooled_output") if kind == "encoder" else (*differences,)
    assert [output.name for output in session.get_outputs()] == [*outputs]
    mask = np.array([[1] * 11, [1] * 4 + [0] * 7])
    ids = mask * np.random.RandomState(0).randint(5, 50, mask.shape)
    inputs = dict(zip(FEATURES, (ids, mask, mask * 0)))
    found = session.run(outputs[-1:], inputs)[0][1:]
    alone = session.run(outputs[-1:], {name: rows[1:, :4] for name, rows in inputs.items()})[0]
    declared = onnx.load(str(path)).graph.output[-1].type.tensor_type.shape
    assert len(declared.dim) == alone.ndim
    found = found[tuple(map(slice, alone.shape))]  # of pieces: without those of padding
    np.testing.assert_allclose(found, alone, atol=1e-4)  # padding makes no difference


# What is sent instead of good inputs [2, 3], and what the error of onnxruntime then names.
BAD = [
    (name, [[most, 1, 1], [1, value, 0]], f"{name} must be 0 to {most}")
    for name, most in (("input_ids", 163), ("input_mask", 1), ("segment_ids", 1))
    for value in (-1, most + 1)
]
BAD += [("input_mask", np.ones(shape, int), "one shape") for shape in ([1, 3], [2, 1], [3, 2])]
BAD += [("segment_ids", [[0, 0, 0]], "one shape")]


@needs_packages
@pytest.mark.parametrize("quantize", [False, True])
def test_bad_inputs_are_refused(quantize, make_module, tmp_path):
    import onnxruntime

    module = make_module(TASKS["classifier"])
    path = tmp_path / "out.onnx"
    convert(module, str(path), quantize)
    session = onnxruntime.InferenceSession(str(path))
    ids = np.array([[2, 163, 3], [2, 5, 0]])
    good = dict(zip(FEATURES, (ids, np.array([[1, 1, 1], [1, 1, 0]]), ids % 2)))
    assert np.isfinite(session.run(None, good)[0]).all()
    for name, value, expected in BAD:
        with pytest.raises(Exception, match=expected):
            session.run(None, {**good, name: np.array(value)})
            pytest.fail(f"answered {name}={value}")


@needs_packages
def test_shared_weights_are_stored_once_and_what_an_application_needs(make_module, tmp_path):
    import onnx

    wide = {"hidden_size": 128, "num_hidden_layers": 9}
    module = make_module(TASKS["classifier"], scale=0.05, **wide)
    path, weights = tmp_path / "out/rte.onnx", module.model.variables
    convert(module, str(path))
    assert path.stat().st_size < sum(4 * v.shape.num_elements() for v in weights) + 50_000
    model = onnx.load(str(path))
    (query,) = (t for t in model.graph.initializer if t.name == "encoder/attention_0/query/kernel")
    assert sum(query.name in node.input for node in model.graph.node) == 9
    names = {file.name for file in path.parent.iterdir()}
    endings = ("", ".json", ".spiece.model", ".tokenizer.json")
    assert names == {f"rte.onnx{ending}" for ending in endings}
    described = json.loads(path.with_suffix(".onnx.json").read_text())
    assert described["vocab_file"] == "rte.onnx.spiece.model" and described["kind"] == "classifier"
    assert described == {entry.key: json.loads(entry.value) for entry in model.metadata_props}

    differences = convert(module, str(path), quantize=True)
    assert 1e-4 < differences["probabilities"] < 0.2
    initializers = onnx.load(str(path)).graph.initializer
    int8 = [tensor for tensor in initializers if tensor.name.endswith("kernel_quantized")]
    assert {tensor.data_type for tensor in int8} == {onnx.TensorProto.INT8}
    # Each shared kernel once: four of attention, two of feed-forward, and those around the blocks.
    assert sum("attention_0" in tensor.name for tensor in int8) == 4
    kernels = sum(v.shape.num_elements() for v in weights if v.name.endswith("kernel:0"))
    assert sum(np.prod(tensor.dims) for tensor in int8) >= 0.95 * kernels


@needs_packages
def test_another_answer_is_refused(module, tmp_path, monkeypatch):
    monkeypatch.setattr("export.to_onnx.LAYER_NORM_EPSILON", 0.5)
    with pytest.raises(ValueError, match=r"answers are \S+ from the model's, expected 0.0001 at"):
        convert(module, str(tmp_path / "out.onnx"))
    assert not list(tmp_path.iterdir())


@needs_packages
def test_answers_by_an_op_that_is_not_converted_are_refused(module_of, tmp_path, monkeypatch):
    answers = dataclasses.replace(KINDS["classifier"], answers=lambda x: {"probabilities": x - 1})
    monkeypatch.setitem(KINDS, "classifier", answers)
    with raises_one_line("^kind 'classifier': no ONNX op for Sub: add it to _OPS"):
        convert(module_of("classifier"), str(tmp_path / "out.onnx"))


@pytest.mark.parametrize(
    ("name", "convert_to", "more"),
    [("onnx", convert, ()), ("openvino", to_openvino.convert, (None, None, 0.5))],
)
def test_a_missing_package_is_one_clear_error(
    name, convert_to, more, module, tmp_path, monkeypatch
):
    """Also where it is installed: None makes its import fail."""
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "export.openvino_graph", raising=False)
    expected = rf"^{name} is missing: pip install 'albert_tf\[{name}\]'$"
    with pytest.raises(ValueError, match=expected):
        convert_to(module, str(tmp_path / "out"), *more)
