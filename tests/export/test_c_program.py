"""The export answers outside of Python and outside of this code: a C program, saved_model_cli."""

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

# What the graph needs of tensorflow-text: SentencePiece, and Unicode normalization.
LIBRARIES = [
    str(Path(tensorflow_text.__file__).parent / "python" / "ops" / name)
    for name in ("_sentencepiece_tokenizer.so", "_normalize_ops.so")
]
TEXT = ["The [MASK] fox.", "Où sont les neiges?", "北京是中国的首都。"]
TEXT_PAIR = ["Dogs run.", "", "Seven small birds sing in trees."]
OUTPUTS = ["in_order_probability", "mean_pooled_output"]


@pytest.fixture(scope="module")
def expected(loaded):
    answers = loaded.signatures["serving_default"](
        text=tf.constant(TEXT), text_pair=tf.constant(TEXT_PAIR)
    )
    return {name: answers[name].numpy() for name in OUTPUTS}


def compiled(directory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc)")
    place = tf.sysconfig.get_lib()
    libraries = [f"-l:{file.name}" for file in Path(place).glob("libtensorflow_*.so.2")]
    command = [compiler, "-std=c11", "-Wall", "-Werror", f"-I{tf.sysconfig.get_include()}"]
    command += ["-o", str(directory / "ask"), str(Path(__file__).with_name("ask.c"))]
    command += [f"-L{place}", f"-Wl,-rpath,{place}", *libraries]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return directory / "ask"


def ask(program, saved_model, libraries, texts):
    message = saved_model_pb2.SavedModel.FromString((saved_model / "saved_model.pb").read_bytes())
    signature = message.meta_graphs[0].signature_def["serving_default"]
    inputs = ",".join(signature.inputs[name].name for name in ("text", "text_pair"))
    outputs = ",".join(signature.outputs[name].name for name in OUTPUTS)
    command = [program, saved_model, ",".join(libraries), inputs, outputs, *texts]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_a_c_program_prints_the_same_numbers(exported, expected, tmp_path):
    program = compiled(tmp_path)
    done = ask(program, exported, LIBRARIES, TEXT + TEXT_PAIR)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(OUTPUTS)
    for name, line in zip(OUTPUTS, lines):
        numbers = np.array(line.split(), np.float32).reshape(expected[name].shape)
        np.testing.assert_allclose(numbers, expected[name], rtol=1e-5, atol=1e-5)
    for library in LIBRARIES:  # both are needed
        done = ask(program, exported, [library], TEXT + TEXT_PAIR)
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
