"""A TFLite or ONNX model answers like the model it was made of; a TFLite file is small."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.packing import FEATURES, model_inputs
from albert_tf.text.tokenization import AlbertTokenizer
from export import fixed_graph
from export.to_tflite import convert
from tests.builders import raises_one_line
from tests.export.task_models import LABELS, TASKS
from tests.jobs import run as run_program

LENGTH = 19
MASK = np.array([[1] * 11, [1] * 4 + [0] * 7, [1] * 9 + [0] * 2], np.int32)
IDS = MASK * np.random.RandomState(0).randint(5, 50, MASK.shape).astype(np.int32)
KINDS = "pretraining classifier regressor multilabel multiple_choice token_classifier".split()
BEAMS = "question_answering, beams"


def expected(kind, outputs, names):
    if kind == "pretraining":
        order = tf.nn.log_softmax(outputs["sentence_order_logits"])
        return {"mlm_logits": outputs["masked_lm_logits"], "sop_log_probs": order}
    if kind == "multiple_choice":
        return {"value": tf.reshape(outputs["logits"], [-1])}  # one row of 3 choices
    if "logits" in outputs:
        return fixed_graph.KINDS[kind].answers(outputs["logits"])
    return {name: outputs[name] for name in names}


@pytest.mark.parametrize("name", [*KINDS, "embedder", "embedder, cls", "question_answering, 2.0"])
def test_answers_are_the_models(name, module_of):
    module, ids = module_of(name), dict(zip(FEATURES, (IDS, MASK, MASK * (np.arange(11) > 5))))
    answers = fixed_graph.answer(module, ids)
    wanted = expected(module.served.kind, module.model(model_inputs(ids)), answers)
    assert answers.keys() == wanted.keys()
    for output, values in wanted.items():
        for of_all, only, mask in zip(answers[output], values, MASK):
            if values.shape[1:2] == MASK.shape[1:]:  # padding has no answer
                of_all, only = of_all[mask == 1], only[mask == 1]
            np.testing.assert_allclose(of_all, only, atol=1e-5)


def test_a_pretrained_model_and_beams_have_the_graph_of_their_encoder(module_of):
    for name in ("pretraining", BEAMS):
        assert fixed_graph.load(module_of(name).served.model_dir).served.kind == "encoder"
    with pytest.raises(ValueError, match=r"^--kind=question_answering: .* take --kind=encoder$"):
        fixed_graph.load(module_of(BEAMS).served.model_dir, "question_answering")


def test_probabilities_of_other_columns_than_labels_are_refused(module_of, monkeypatch):
    kind = dataclasses.replace(
        fixed_graph.KINDS["classifier"], answers=lambda logits: {"probabilities": logits[:, 1:]}
    )
    monkeypatch.setitem(fixed_graph.KINDS, "classifier", kind)
    with raises_one_line("2 probabilities of 3 labels: the `answers` of 'classifier' in"):
        fixed_graph.answer(module_of("classifier"), dict.fromkeys(FEATURES, MASK))


def test_answers_that_are_not_finite_are_refused(module_of, tmp_path):
    module = module_of("classifier")
    nan = {"probabilities": np.full([3, 3], np.nan, np.float32)}
    answers = iter([nan, {"probabilities": np.zeros([3, 3], np.float32)}])
    found = fixed_graph.differences(module, lambda _: next(answers), [MASK, MASK])
    with raises_one_line(" in int8 gives answers that are not finite"):
        fixed_graph.write(module, str(tmp_path / "m.onnx"), b"", found, " in int8")
    assert not list(tmp_path.iterdir())


def run(path, **inputs):
    runner = tf.lite.Interpreter(str(path)).get_signature_runner()
    return runner(**{name: np.array([row], np.int32) for name, row in inputs.items()})


@pytest.mark.slow
def test_the_encoder_of_a_pretrained_model_answers_alike(model_dir, tmp_path):
    """It was pre-trained with LENGTH pieces, which is the default."""
    path = tmp_path / "float/model.tflite"
    trained = shutil.copytree(model_dir, tmp_path / "trained")
    (trained / "run.json").write_text(json.dumps({"max_seq_length": LENGTH}))
    differences = convert(fixed_graph.load(str(trained)), str(path))
    names = {file.name for file in path.parent.iterdir()}
    endings = ("", ".json", ".spiece.model", ".tokenizer.json")
    assert names == {f"model.tflite{ending}" for ending in endings}
    assert differences.keys() == {"sequence_output", "pooled_output"}
    assert max(differences.values()) < 1e-4
    answers = run(path, **dict.fromkeys(FEATURES, [1] * LENGTH))
    assert answers["sequence_output"].shape[:2] == (1, LENGTH)


@pytest.mark.slow
def test_a_classifier_in_int8_is_small_and_near(make_module, tmp_path):
    # Weights, not the graph, make the size; the layers are shared.
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}
    wide = make_module(TASKS["classifier of texts"], max_seq_length=LENGTH, scale=0.05, **sizes)
    parameters = sum(v.shape.num_elements() for v in wide.model.variables)
    of_file = {}
    for quantize, most in ((False, 1e-5), (True, 0.05)):
        path = tmp_path / f"{quantize}.tflite"
        found = convert(wide, str(path), quantize)
        assert found["probabilities"] < most
        of_file[quantize] = path.stat().st_size
    # Six layers of shared weights, stored once, and the graph. Were the gammas of the layer norms
    # folded into the kernels after them, these would be there twice: 0.8 MB more, 0.2 MB in int8.
    assert 4 * parameters < of_file[False] < 4 * parameters + 200_000
    assert parameters < of_file[True] < parameters + 150_000


def test_an_app_needs_the_files_beside_it_alone(module_of, tmp_path):
    """The steps of export/README.md, TFLite: a text to a label."""
    module = module_of("classifier of texts")
    path = tmp_path / "toy.tflite"
    convert(module, str(path))
    described = json.loads((tmp_path / "toy.tflite.json").read_text())
    assert described["labels"] == list(LABELS) and described["has_pairs"] is False
    assert described["kind"] == "classifier"
    length, special = described["max_seq_length"], described["special_pieces"]
    vocabulary = str(tmp_path / described["vocab_file"])
    tokenizer = AlbertTokenizer(vocabulary, described["do_lower_case"])
    assert tokenizer.sha256 == described["vocab_sha256"] and length == module.max_seq_length
    assert special["[MASK]"] == tokenizer.mask_id
    for text in ("The quick fox.", "The quick brown fox jumps over the lazy dogs. " * 3):
        pieces = [special["[CLS]"], *tokenizer.encode(text)[: length - 2], special["[SEP]"]]
        padding = [0] * (length - len(pieces))
        answers = run(
            path,
            input_ids=pieces + [special["<pad>"]] * len(padding),
            input_mask=[1] * len(pieces) + padding,
            segment_ids=[0] * length,
        )
        expected = tf.nn.softmax(module.model(tf.constant([pieces]))["logits"])
        np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "flag", "formats"),
    [("tflite", "dev_file=dev.csv", "openvino"), ("openvino", "quantize", "tflite, onnx")],
)
def test_a_flag_of_another_format_is_refused(form, flag, formats):
    given = f"--format={form}", "--checkpoint=a", "--output=b", f"--{flag}"
    expected = f"does not apply to --format={form}, only to {formats}: remove it\n"
    assert run_program("export.convert", *given, exit_code=2)[1].endswith(expected)


@pytest.mark.parametrize("output", ["a.onnx", "folder.tflite"])
def test_an_output_that_is_no_tflite_file_is_refused(output, tmp_path):
    (tmp_path / "folder.tflite").mkdir()
    given = "--format=tflite", "--checkpoint=a", f"--output={tmp_path}/{output}"
    error = run_program("export.convert", *given, exit_code=2)[1]
    assert error.endswith(f"{output}: expected the name of a file, ending in .tflite\n")
    assert len([*tmp_path.iterdir()]) == 1
