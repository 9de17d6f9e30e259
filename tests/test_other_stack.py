"""Records and runs of this stack and of the other one: TensorFlow 2.15 and TensorFlow 2.21.

ALBERT_TF_OTHER_PYTHON names the Python of an environment with the other stack.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests import sentences
from tests.jobs import (
    PROJECT,
    log,
    num_entries,
    pretrain_flags,
    record_flags,
    wait_for,
    weights,
)

OTHER = os.environ.get("ALBERT_TF_OTHER_PYTHON", "")
NUM_STEPS = 60
HALF = 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not OTHER, reason="ALBERT_TF_OTHER_PYTHON is not set"),
]


def start(python, module, *flags):
    # TensorFlow 2.15, too, would read this variable.
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    return subprocess.Popen(
        [python, "-m", module, *flags],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(python, module, *flags):
    process = start(python, module, *flags)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors


def test_the_other_python_has_the_other_stack():
    code = "import tensorflow as tf; print(tf.__version__)"
    versions = {
        subprocess.run([python, "-c", code], capture_output=True, text=True).stdout[:4]
        for python in (sys.executable, OTHER)
    }
    assert versions == {"2.15", "2.21"}


def test_records_are_byte_identical(work):
    corpus = work / "languages.txt"
    corpus.write_text(
        (work / "corpus.txt").read_text() + "\n" + "\n\n".join(sentences.SENTENCES.values()) + "\n",
        encoding="utf-8",
    )
    found = []
    for name, python in (("here", sys.executable), ("there", OTHER)):
        directory = work / f"records_{name}"
        flags = record_flags(work, directory, f"--input_file={corpus}", "--num_workers=2")
        run(python, "pipelines.create_pretraining_data", *flags)
        found.append({path.name: path.read_bytes() for path in directory.rglob("*.tfrecord*")})
    assert len(found[0]) > 2
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def whole(work):
    """A run on this stack."""
    model_dir = work / "whole_here"
    run(sys.executable, "pipelines.pretrain", *flags(work, model_dir))
    return model_dir


def flags(work, model_dir):
    return [
        *pretrain_flags(work, model_dir),
        f"--num_train_steps={NUM_STEPS}",
        "--steps_per_loop=1",
    ]


@pytest.mark.parametrize("begun", ["here", "there"])
def test_a_run_resumes_on_the_other_stack(work, whole, begun):
    model_dir = work / f"begun_{begun}"
    first, second = (sys.executable, OTHER) if begun == "here" else (OTHER, sys.executable)
    process = start(first, "pipelines.pretrain", *flags(work, model_dir))
    wait_for(lambda: num_entries(model_dir) >= HALF, [process])
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert HALF <= num_entries(model_dir) < NUM_STEPS
    run(second, "pipelines.pretrain", *flags(work, model_dir))

    ours, theirs = weights(model_dir), weights(whole)
    assert ours.keys() == theirs.keys()
    difference = max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)
    assert difference < 1e-6
    losses, expected = ([e["loss"] for e in log(d) if "loss" in e] for d in (model_dir, whole))
    assert len(losses) == NUM_STEPS
    np.testing.assert_allclose(losses, expected, atol=1e-6)
    print(f"weights differ by {difference:.1e}")
