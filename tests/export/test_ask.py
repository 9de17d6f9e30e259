"""Programs that ask print the SavedModel's answers: ours, one in C, and saved_model_cli."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2

from export import signatures
from export.ask import ask, load
from tests.jobs import finish, run, start

# What the graph needs of tensorflow-text: SentencePiece, and Unicode normalization.
LIBRARIES = [
    str(Path(tensorflow_text.__file__).parent / "python" / "ops" / name)
    for name in ("_sentencepiece_tokenizer.so", "_normalize_ops.so")
]
TEXT = ["The [MASK] fox.", "Où sont les neiges?", "北京是中国的首都。"]
TEXT_PAIR = ["Dogs run.", "", "Seven small birds sing in trees."]
OUTPUTS = ["in_order_probability", "mean_pooled_output"]


def test_the_answers_printed_are_the_saved_models(exported, loaded, monkeypatch, capsys):
    paths = []
    monkeypatch.setattr(tf.saved_model, "load", lambda path: paths.append(path) or loaded)
    texts = ["The [MASK] fox [MASK].", "[MASK]", "[MASK]" * 22]
    # Of a pair and the same swapped one is told right.
    pairs = ["Dogs run. ||| Birds sing.", "Birds sing. ||| Dogs run.", "A fox. ||| A fox."]
    lines = ask(load(str(exported.parent)), {}, masked_texts=texts, pairs=pairs)
    assert lines[-1] == "rather in order as given than swapped: 1 of 3 pairs (by chance half)"
    assert "  (2 more [MASK] without an answer: too far back, or too many)" in lines
    printed = "\n".join(lines)
    assert capsys.readouterr().out == f"{exported} answers\n" and paths == [str(exported)]
    filled = loaded.signatures["fill_mask"](text=tf.constant(texts))
    assert printed.count("  [MASK] ") == 3 + 20
    for row, mask in ((0, 0), (0, 1), (1, 0)):
        piece = filled["pieces"][row, mask, 0].numpy().decode()
        percent = 100 * filled["probabilities"][row, mask, 0].numpy()
        assert f"  [MASK] {mask + 1}: {piece} {percent:.1f} %," in printed
    sides = ["Dogs run.", "Birds sing.", "A fox."]
    others = [*sides[1::-1], sides[2]]
    inputs = {"text": tf.constant(sides), "text_pair": tf.constant(others)}
    order = loaded.signatures["serving_default"](**inputs)["in_order_probability"].numpy()
    assert (
        f"text: Dogs run.\ntext_pair: Birds sing.\n  in_order_probability: {order[0]:.6g}"
        in printed
    )
    assert f"  in_order_probability, swapped: {order[1]:.6g}\n" in printed
    assert "  pooled_output: 20 numbers\n" in printed


def test_a_pretrained_model_scores_texts_and_names_its_flags(exported, loaded, monkeypatch):
    monkeypatch.setattr(tf.saved_model, "load", lambda path: loaded)
    call, texts = load(str(exported)), {"text": ["Dogs run."]}
    lines = ask(call, texts, pairs=["Dogs run. ||| Birds sing."])
    answer = loaded.signatures["score"](text=tf.constant(["Dogs run."]))
    assert lines[1:3] == ["text: Dogs run.", f"  log_likelihood: {answer['log_likelihood'][0]:.6g}"]
    assert "text_pair: Birds sing." in lines and "rather" not in "".join(lines)
    assert ask(call, {}, signature="tokenization_info")[0] == "do_lower_case: True"
    with pytest.raises(ValueError, match=r"needs text and text_pair .*, not context and question"):
        ask(call, {"question": ["Who?"], "context": ["I."]})
    with pytest.raises(ValueError, match="has no signature 'labels'"):
        ask(call, texts, signature="labels")
    with pytest.raises(ValueError, match="for tokens, not text: call it in Python, it takes ids"):
        ask(call, texts, signature="tokens")
    monkeypatch.delitem(loaded.signatures._signatures, "score")
    with pytest.raises(ValueError, match=r"not text: give --pair$"):
        ask(call, texts)


def test_wrong_questions_are_refused():
    for asked, message in (
        ({}, "nothing is asked"),
        ({"masked_texts": ["no mask"]}, r"holds no \[MASK\]"),
        ({"pairs": ["one sentence"]}, "expected two sentences"),
        ({"pairs": ["one ||| "]}, "expected two sentences"),
        ({"inputs": {"question": ["a", "b"], "context": ["c"]}}, "2 of --question, 1 of --context"),
    ):
        with pytest.raises(ValueError, match=message):
            ask(None, **{"inputs": {}, **asked})
    assert "one of them" in run("export.ask", "--text=a", exit_code=2)[1]


@pytest.mark.slow
def test_asking_loads_no_model_code(exported):
    before = "import atexit, sys; atexit.register(lambda: print(*sys.modules))"
    flags = (f"--saved_model={exported}", "--fill_mask=a [MASK]")
    out, _ = finish(start("export.ask", *flags, before=before))
    assert out.startswith(f"{exported} answers")
    modules = set(out.splitlines()[-1].split())
    assert {"albert_tf.storage.versions", "tensorflow"} <= modules
    code = {"encoder", "heads", "layers", "models", "text.tokenization"}
    assert not {f"albert_tf.{name}" for name in code} & modules


@pytest.fixture(scope="module")
def expected(loaded):
    answers = loaded.signatures["serving_default"](
        text=tf.constant(TEXT), text_pair=tf.constant(TEXT_PAIR)
    )
    return {name: answers[name].numpy() for name in OUTPUTS}


def ask_in_c(program, saved_model, libraries, texts):
    message = saved_model_pb2.SavedModel.FromString((saved_model / "saved_model.pb").read_bytes())
    signature = message.meta_graphs[0].signature_def["serving_default"]
    inputs = ",".join(signature.inputs[name].name for name in ("text", "text_pair"))
    outputs = ",".join(signature.outputs[name].name for name in OUTPUTS)
    command = [program, saved_model, ",".join(libraries), inputs, outputs, *texts]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_a_c_program_prints_the_same_numbers(exported, expected, tmp_path):
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
    assert len(lines) == len(OUTPUTS)
    for name, line in zip(OUTPUTS, lines):
        numbers = np.array(line.split(), np.float32).reshape(expected[name].shape)
        np.testing.assert_allclose(numbers, expected[name], rtol=1e-5, atol=1e-5)
    for library in LIBRARIES:  # both are needed
        done = ask_in_c(program, exported, [library], TEXT + TEXT_PAIR)
        assert done.returncode == 1 and "Op type not registered" in done.stderr


@pytest.mark.slow
def test_saved_model_cli_prints_the_same_numbers(exported, expected, tmp_path):
    # TensorFlow's command has no flag for libraries of operations: the import loads them.
    inputs = f"text={TEXT!r};text_pair={TEXT_PAIR!r}"
    command = ["run", "--dir", str(exported), "--tag_set", "serve"]
    command += ["--signature_def", "serving_default", "--input_exprs", inputs]
    command += ["--outdir", str(tmp_path)]
    readme = Path(signatures.__file__).with_name("README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r'`python -c "(.*)" show --dir', readme)
    done = subprocess.run(
        [sys.executable, "-c", script, *command], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for name in OUTPUTS:
        numbers = np.load(tmp_path / f"{name}.npy")
        np.testing.assert_allclose(numbers, expected[name], rtol=1e-5, atol=1e-5)
