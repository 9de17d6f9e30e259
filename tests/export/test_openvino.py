"""An OpenVINO model takes texts and answers like the model in memory; a task checks its int8."""

import contextlib
import json

import numpy as np
import pytest

from albert_tf.text import model_normalizer
from albert_tf.text.settings import TextSettings
from albert_tf.text.tokenization import AlbertTokenizer
from export import fixed_graph, to_openvino
from tests import vocabularies
from tests.builders import raises_one_line
from tests.export.task_models import TASKS, serve


def convert(module, output, calibration_file=None, dev_file=None, max_accuracy_loss=0.5):
    return to_openvino.convert(module, str(output), calibration_file, dev_file, max_accuracy_loss)


needs_packages = pytest.mark.extras("onnx", "openvino", "openvino_tokenizers", "nncf")


@needs_packages
@pytest.mark.parametrize(
    "name",
    [
        "pretraining",
        "embedder",
        "classifier",
        "classifier of texts, WordPiece",
        "regressor",
        "multilabel",
    ],
)
def test_texts_are_answered_like_the_model_does(name, make_module, module_of, model_dir, tmp_path):
    from export import openvino_graph

    module = module_of(name)
    if name == "regressor":  # an odd number of pieces for two texts
        module = make_module(TASKS[name], max_seq_length=42)
    served = fixed_graph.load(str(model_dir)) if name == "pretraining" else module
    path = convert(served, tmp_path / "models")  # compares the answers to many texts
    assert path.endswith("models/1")
    model = openvino_graph.openvino.Core().read_model(f"{path}/model.xml")
    described = model.get_rt_info(["model_info", "labels"]).astype(str)
    assert json.loads(described) == module.served.task.get("labels")
    texts = {"text": [b"seven birds", b""], "text_pair": [b"sing " * 50, b"caf\xe9"]}
    found = openvino_graph.answering(model)(texts)
    if name == "pretraining":
        assert found.keys() == {"pooled_output", "mean_pooled_output"}
        texts["text_pair"] = [b"", b""]
    if "of texts" in name or name == "embedder":
        del texts["text_pair"]
    elif name != "pretraining":
        with contextlib.suppress(RuntimeError):  # without AVX-512, OpenVINO answers no row instead
            answers = openvino_graph.answering(model)({**texts, "text_pair": [b"one for two"]})
            assert not any(map(len, answers.values()))
    for output, expected in serve(module, "serving_default", **texts).items():
        if output in found and output == "label":
            assert found[output].tolist() == expected.tolist()
        elif output in found:
            np.testing.assert_allclose(found[output], expected, atol=1e-5)


@pytest.fixture
def greek(tmp_path):
    """A vocabulary with both forms of sigma, and with a piece that is split at digit and comma."""
    text = ["ο οδυσσεας ηρθε 2 1 , 0."]
    settings = {"model_type": "char", "user_defined_symbols": ["1,"]}
    vocabularies.train(tmp_path / "greek", text, vocab_size=25, **settings)
    return tmp_path / "greek.model"


@pytest.fixture
def prepares_itself(greek):
    """A vocabulary whose model lower-cases text, and has no rule for the last sigma."""
    table = model_normalizer.normalizer(TextSettings())
    greek.write_bytes(model_normalizer.with_normalizer(greek.read_bytes(), table))
    return greek


@needs_packages
@pytest.mark.parametrize("name", ["greek", "prepares_itself", "tiny_vocabulary", "wordpiece"])
def test_pieces_of_awkward_texts_are_ours(name, nasty, request):
    from export import openvino_graph as graph

    tokenizer = AlbertTokenizer(str(request.getfixturevalue(name)))
    texts = [
        b"Caf\xe9",
        "Ο ΟΔΥΣΣΕΑΣ, ΣΑΣ.".encode(),
        b"a [SEP] 2010, 1,000",
        b"x" * 101,
    ]
    for file in sorted(nasty.glob("*.txt")):
        if file.is_file():
            texts += file.read_bytes()[:20_000].split(b"\n")
    texts = [text.rstrip(b"\0") for text in texts]  # NumPy drops NULs at the end
    parameter = graph.ops.parameter([-1], graph.openvino.Type.string)
    outputs = [graph.ops.result(x) for x in graph._tokenize(tokenizer.vocabulary, parameter)]
    model = graph.openvino.Model(outputs, [parameter])
    lengths, pieces = graph.openvino.Core().compile_model(model, "CPU")([np.array(texts)]).values()
    found = np.split(pieces, np.cumsum(lengths)[:-1])
    expected = tokenizer.encode_batch([text.decode("utf-8", "replace") for text in texts])
    for text, ours, theirs in zip(texts, expected, found, strict=True):
        assert theirs.tolist() == ours, text[:60]


@needs_packages
def test_int8_is_written_unless_it_loses_too_much_on_a_task(
    tuned, table, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("export.to_openvino._CALIBRATION_ROWS", 8)
    files = {"calibration_file": str(table / "train.tsv"), "dev_file": str(table / "dev.tsv")}
    module = fixed_graph.load(str(tuned / "seed_1"))
    path = convert(module, tmp_path, **files)
    printed = capsys.readouterr().out
    assert f"{path}: classifier in int8" in printed
    assert "float32  accuracy" in printed and "int8     accuracy" in printed
    with raises_one_line(
        r"^int8 lowers accuracy from \S+ to \S+, more than --max_accuracy_loss=-1"
    ):
        convert(module, tmp_path, **files, max_accuracy_loss=-1)
    assert [file.name for file in tmp_path.iterdir()] == ["1"]


@needs_packages
def test_what_has_no_metric_or_takes_no_texts_is_refused(module_of, model_dir, tmp_path):
    encoder = fixed_graph.load(str(model_dir))
    for module, kind in ((module_of("embedder"), "embedder"), (encoder, "encoder")):
        with raises_one_line(f"^--dev_file: kind {kind} has no metric: remove the flag$"):
            convert(module, tmp_path, dev_file="dev.csv")
    for kind in ("token_classifier", "pretraining"):
        with raises_one_line(f"no OpenVINO model of kind {kind} can take texts: use --format=onnx"):
            convert(module_of(kind), tmp_path)
