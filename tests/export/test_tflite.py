"""A TFLite model answers like the model it was made of, and is as small as its weights."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.tokenization import AlbertTokenizer
from export.tflite import convert
from tests.export.conftest import MAX_SEQ_LENGTH, write_classifier

LENGTH = 19
LABELS = ["no", "yes", "perhaps"]


def run(path, **inputs):
    runner = tf.lite.Interpreter(str(path)).get_signature_runner()
    return runner(**{name: np.array([row], np.int32) for name, row in inputs.items()})


def padded(row):
    return [*row, *[0] * (LENGTH - len(row))]


IDS = padded([2, 17, 54, 33, 3, 8, 71, 3])
INPUTS = {"input_ids": IDS, "input_mask": padded([1] * 8), "segment_ids": padded([0] * 5 + [1] * 3)}


@pytest.fixture(scope="module")
def float_file(model_dir, tmp_path_factory):
    """The encoder of a model that was pre-trained with LENGTH pieces, which is the default."""
    path = tmp_path_factory.mktemp("tflite") / "float.tflite"
    trained = shutil.copytree(model_dir, path.parent / "trained")
    (trained / "run.json").write_text(json.dumps({"max_seq_length": LENGTH}))
    differences = convert(checkpoint=str(trained), output=str(path))
    names = {file.name for file in path.parent.iterdir() if file.is_file()}
    assert names == {"float.tflite", "float.json", "float.spiece.model"}
    assert set(differences) == {"sequence_output", "pooled_output"}
    assert max(differences.values()) < 1e-4
    return path


def test_the_encoder_answers_alike_without_padding(float_file, model):
    answers = run(float_file, **INPUTS)
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    alone = {names.get(n, n): tf.constant([row[:8]], tf.int32) for n, row in INPUTS.items()}
    expected = model.encoder(alone)
    np.testing.assert_allclose(answers["pooled_output"], expected["pooled_output"], atol=1e-4)
    np.testing.assert_allclose(
        answers["sequence_output"][:, :8], expected["sequence_output"], atol=1e-4
    )


@pytest.fixture(scope="module")
def wide_dir(model_dir, tmp_path_factory):
    """A classifier of which weights, not the graph, make the size; its layers are shared."""
    directory = tmp_path_factory.mktemp("wide") / "model"
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}
    described = {"has_pairs": False, "max_seq_length": LENGTH}
    model = write_classifier(directory, model_dir, "classifier", LABELS, 0.05, **sizes, **described)
    return directory, model


@pytest.fixture(scope="module")
def classifier_file(wide_dir):
    path = wide_dir[0].parent / "float" / "toy.tflite"
    differences = convert(checkpoint=str(wide_dir[0]), output=str(path))
    assert differences["probabilities"] < 1e-5
    return path


@pytest.mark.slow
def test_a_classifier_in_int8_is_small_and_near(wide_dir, classifier_file, tmp_path):
    directory, model = wide_dir
    parameters = sum(v.shape.num_elements() for v in model.variables)
    path = tmp_path / "int8.tflite"
    differences = convert(checkpoint=str(directory), output=str(path), quantize=True)
    assert differences["probabilities"] < 0.05
    # Six layers of shared weights, stored once, and the graph. Were the gammas of the layer norms
    # folded into the kernels after them, these would be there twice: 0.8 MB more, 0.2 MB in int8.
    assert 4 * parameters < classifier_file.stat().st_size < 4 * parameters + 200_000
    assert parameters < path.stat().st_size < parameters + 150_000
    answers = run(classifier_file, **INPUTS)
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    logits = model({names.get(n, n): tf.constant([row]) for n, row in INPUTS.items()})["logits"]
    np.testing.assert_allclose(answers["probabilities"], tf.nn.softmax(logits), atol=1e-5)
    assert answers["probabilities"].shape == (1, len(LABELS))


def test_an_app_needs_the_files_beside_it_alone(wide_dir, classifier_file):
    """The steps of export/README.md, TFLite: a text to a label."""
    described = json.loads((classifier_file.parent / "toy.json").read_text())
    assert described["labels"] == LABELS and described["has_pairs"] is False
    assert described["kind"] == "classifier"
    length, special = described["max_seq_length"], described["special_pieces"]
    vocabulary = str(classifier_file.parent / described["vocab_file"])
    tokenizer = AlbertTokenizer(vocabulary, described["do_lower_case"])
    assert tokenizer.sha256 == described["vocab_sha256"] and length == LENGTH
    assert special["[MASK]"] == tokenizer.mask_id
    model = wide_dir[1]
    for text in ("The quick fox.", "The quick brown fox jumps over the lazy dogs. " * 3):
        pieces = [special["[CLS]"], *tokenizer.encode(text)[: length - 2], special["[SEP]"]]
        padding = [0] * (length - len(pieces))
        answers = run(
            classifier_file,
            input_ids=pieces + [special["<pad>"]] * len(padding),
            input_mask=[1] * len(pieces) + padding,
            segment_ids=[0] * length,
        )
        expected = tf.nn.softmax(model(tf.constant([pieces]))["logits"])
        np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)


def test_wrong_requests_are_refused_before_anything_is_written(model_dir, tmp_path):
    output = tmp_path / "m.tflite"
    with pytest.raises(ValueError, match="67 rows"):
        convert(checkpoint=str(model_dir), output=str(output), max_seq_length=68)
    with pytest.raises(ValueError, match="holds a model for pretraining"):
        convert(checkpoint=str(model_dir), output=str(output), kind="classifier")
    assert MAX_SEQ_LENGTH < 68 and not output.exists()
