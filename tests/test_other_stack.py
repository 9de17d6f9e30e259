"""Records and runs of this stack and of the other one: TensorFlow 2.15 and TensorFlow 2.21.

ALBERT_TF_OTHER_PYTHON names the Python of an environment with the other stack.
"""

import os
import signal
import sys

import numpy as np
import pytest

from tests import jobs, sentences

OTHER = os.environ.get("ALBERT_TF_OTHER_PYTHON", "")
NUM_STEPS = 60
HALF = 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not OTHER, reason="ALBERT_TF_OTHER_PYTHON is not set"),
]


@pytest.fixture(autouse=True)
def keras_of_each_stack(monkeypatch):
    """Unsets a variable of this stack that the other one, too, would read."""
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


def test_records_are_byte_identical(work):
    corpus = work / "languages.txt"
    corpus.write_text((work / "corpus.txt").read_text() + "\n" + sentences.TEXT, encoding="utf-8")
    found = []
    for name, python in (("here", sys.executable), ("there", OTHER)):
        directory = work / f"records_{name}"
        flags = jobs.record_flags(work, directory, f"--input_file={corpus}", "--num_workers=2")
        jobs.finish(jobs.start("pipelines.create_pretraining_data", *flags, python=python))
        found.append({path.name: path.read_bytes() for path in directory.rglob("*.tfrecord*")})
    assert len(found[0]) > 2
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def whole(work):
    model_dir = work / "whole_here"
    jobs.finish(start_run(sys.executable, work, model_dir))
    return model_dir


def start_run(python, work, model_dir):
    flags = [f"--num_train_steps={NUM_STEPS}", "--steps_per_loop=1"]
    return jobs.start(
        "pipelines.pretrain", *jobs.pretrain_flags(work, model_dir), *flags, python=python
    )


@pytest.mark.parametrize("begun", ["here", "there"])
def test_a_run_resumes_on_the_other_stack(work, whole, begun):
    model_dir = work / f"begun_{begun}"
    first, second = (sys.executable, OTHER) if begun == "here" else (OTHER, sys.executable)
    process = start_run(first, work, model_dir)
    jobs.wait_for(lambda: jobs.num_entries(model_dir) >= HALF, [process])
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert HALF <= jobs.num_entries(model_dir) < NUM_STEPS
    jobs.finish(start_run(second, work, model_dir))

    ours, theirs = jobs.weights(model_dir), jobs.weights(whole)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=0, atol=1e-6, err_msg=name)
    losses, expected = ([e["loss"] for e in jobs.log(d) if "loss" in e] for d in (model_dir, whole))
    assert len(losses) == NUM_STEPS
    np.testing.assert_allclose(losses, expected, atol=1e-6)
