"""Programs that ask print the SavedModel's answers: ours, and one in C."""

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2

from export.ask import _check_inputs, ask, load
from export.export_saved_model import how_to_use
from tests.builders import raises_one_line
from tests.jobs import run

# What the graph needs of tensorflow-text: SentencePiece, and Unicode normalization.
LIBRARIES = [
    str(Path(tensorflow_text.__file__).parent / "python" / "ops" / name)
    for name in ("_sentencepiece_tokenizer.so", "_normalize_ops.so")
]
TEXT = ["The [MASK] fox.", "Où sont les neiges?", "北京是中国的首都。"]
TEXT_PAIR = ["Dogs run.", "", "Seven small birds sing in trees."]
OUTPUTS = ["in_order_probability", "mean_pooled_output"]


@pytest.fixture
def asked(exported, loaded, monkeypatch, capsys):
    """A function of the flags' texts that asks the export, which is loaded already."""
    monkeypatch.setattr(
        tf.saved_model, "load", lambda path: loaded if path == str(exported) else None
    )
    call = load(str(exported.parent))
    assert capsys.readouterr().out == f"{exported} answers\n"
    return lambda signature="", **texts: ask(call, texts, signature)


def test_the_answers_printed_are_the_saved_models(asked, loaded):
    texts = ["The [MASK] fox [MASK].", "[MASK]", "[MASK]" * 22]
    # Of a pair and the same swapped one is told right.
    pairs = ["Dogs run. ||| Birds sing.", "Birds sing. ||| Dogs run.", "A fox. ||| A fox."]
    lines = asked(text=texts, pair=pairs)
    assert lines[-1] == "rather in order as given than swapped: 1 of 3 pairs (by chance half)"
    assert "  no answer: 2 more [MASK], too far back or too many" in lines
    printed = "\n".join(lines)
    filled = loaded.signatures["fill_mask"](text=tf.constant(texts))
    assert printed.count("  [MASK] ") == 3 + 20
    for row, mask in ((0, 0), (0, 1), (1, 0)):
        piece = filled["pieces"][row, mask, 0].numpy().decode()
        percent = 100 * filled["probabilities"][row, mask, 0].numpy()
        assert f"  [MASK] {mask + 1}: {piece} {percent:.1f} %," in printed
    inputs = {"text": ["Dogs run.", "Birds sing."], "text_pair": ["Birds sing.", "Dogs run."]}
    inputs = {name: tf.constant(texts) for name, texts in inputs.items()}
    order = loaded.signatures["serving_default"](**inputs)["in_order_probability"].numpy()
    head = "text: Dogs run.\ntext_pair: Birds sing.\n"
    assert f"{head}  in_order_probability: {order[0]:.6g}" in printed
    assert f"  in_order_probability, swapped: {order[1]:.6g}\n" in printed
    assert "  pooled_output: 20 numbers\n" in printed


def test_what_else_is_asked(asked, exported):
    lines = asked(pair=["Dogs run. ||| Birds sing."])
    assert "text_pair: Birds sing." in lines and "rather" not in "".join(lines)
    assert asked("tokenization_info")[0] == "do_lower_case: True"
    assert ' --text="The [MASK] function' in how_to_use(str(exported))


def test_spans_are_printed_whole():
    spans = [{"start": i, "label": "é", "probability": 0.5} for i in range(12)]
    lines = ask(lambda *_: {"spans": [spans], "num_spans": [12]}, {"text": ["a"]})
    assert lines == [
        "",
        "text: a",
        "  num_spans: 12",
        f"  spans: {str(spans).replace(chr(39), chr(34))}",
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({}, "serving_default needs --pair, given none$"),
        ({"text": ["a [MASK]"], "signature": "serving_default"}, "needs --pair, given --text$"),
        ({"text": ["a [MASK]", "b"]}, "serving_default needs --pair, given --text$"),
        ({"pair": ["one sentence"]}, "expected two sentences"),
        ({"pair": ["one ||| "]}, "expected two sentences"),
        ({"question": ["a", "b"], "context": ["c"]}, "2 of --question, 1 of --context"),
        ({"question": ["Who?"], "context": ["I."]}, "--pair, given --question, --context$"),
        ({"options": ["a ||| b", "c"]}, "expected equally many options"),
        ({"signature": "labels"}, "has no signature 'labels', only .*fill_mask"),
        ({"signature": "pooled"}, "input_ids and input_mask and segment_ids, given none$"),
    ],
)
def test_wrong_questions_are_one_line(asked, texts, message):
    with raises_one_line(message):
        asked(**texts)


def test_a_saved_model_or_a_server():
    assert "one of them" in run("export.ask", "--text=a", exit_code=2)[1]


def ask_in_c(program, saved_model, libraries, texts):
    message = saved_model_pb2.SavedModel.FromString((saved_model / "saved_model.pb").read_bytes())
    signature = message.meta_graphs[0].signature_def["serving_default"]
    inputs = ",".join(signature.inputs[name].name for name in ("text", "text_pair"))
    outputs = ",".join(signature.outputs[name].name for name in OUTPUTS)
    command = [program, saved_model, ",".join(libraries), inputs, outputs, *texts]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_a_c_program_prints_the_same_numbers(exported, loaded, tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc)")
    place, program = tf.sysconfig.get_lib(), tmp_path / "ask"
    libraries = [f"-l:{file.name}" for file in Path(place).glob("libtensorflow_*.so.2")]
    command = [compiler, "-std=c11", "-Wall", "-Werror", f"-I{tf.sysconfig.get_include()}"]
    command += ["-o", str(program), str(Path(__file__).with_name("ask.c"))]
    command += [f"-L{place}", f"-Wl,-rpath,{place}", *libraries]
    subprocess.run(command, check=True, capture_output=True, text=True)
    done = ask_in_c(program, exported, LIBRARIES, TEXT + TEXT_PAIR)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    inputs = {"text": tf.constant(TEXT), "text_pair": tf.constant(TEXT_PAIR)}
    expected = loaded.signatures["serving_default"](**inputs)
    for name, line in zip(OUTPUTS, lines, strict=True):
        numbers = np.array(line.split(), np.float32)
        np.testing.assert_allclose(numbers, np.ravel(expected[name]), rtol=1e-5, atol=1e-5)
    for library in LIBRARIES:  # both are needed
        done = ask_in_c(program, exported, [library], TEXT + TEXT_PAIR)
        assert done.returncode == 1 and "Op type not registered" in done.stderr


def test_options_are_as_many_as_the_model_has():
    texts = {name: tf.TensorSpec([None]) for name in ("context", "question", "options")}
    outputs = {"probabilities": tf.TensorSpec([None, 3])}
    function = SimpleNamespace(structured_input_signature=((), texts), structured_outputs=outputs)
    inputs = {"context": ["c"], "question": ["q"], "options": [["1", "2", "3"]]}
    _check_inputs("race", function, inputs)
    with raises_one_line("race needs --context and --options and --question with 3 options, given"):
        _check_inputs("race", function, {**inputs, "options": [["1", "2"]]})
