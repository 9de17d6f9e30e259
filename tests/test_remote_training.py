"""Whole jobs whose input, variables and checkpoints are those of a worker in another process.

As TPUStrategy places each host's input. Python generators would hang there for ever.
"""

import json
import shutil
import signal

import pytest

from tests import jobs
from tests.builders import table_flags


def flags(work, model_dir):
    """Of a mixture: its records are those of two directories."""
    mixture = [f"--record_dir={work}/records,{work}/records", "--record_weights=0.7,0.3"]
    return [*jobs.pretrain_flags(work, model_dir), *mixture, "--eval_steps=10"]


@pytest.fixture(scope="module")
def here(work):
    jobs.run("pipelines.pretrain", *flags(work, work / "here"))
    return work / "here"


@pytest.mark.slow
def test_pretraining_on_a_worker_is_the_run_on_this_machine(work, here):
    """Also after a kill, from a step in the middle of an epoch."""
    job = flags(work, work / "there")
    process = jobs.start("tests.remote_training", "pipelines.pretrain", *job)
    jobs.wait_for(lambda: jobs.num_entries(work / "there") >= 5, [process])
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 5 <= jobs.num_entries(work / "there") < jobs.NUM_STEPS // 2
    jobs.finish(jobs.start("tests.remote_training", "pipelines.pretrain", *job))
    jobs.assert_same_bits(here, work / "there")
    assert jobs.curves(here) == jobs.curves(work / "there")


@pytest.mark.slow
def test_fine_tuning_on_a_worker_is_the_run_on_this_machine(here, table, tmp_path):
    """Also from step 3: the last checkpoint of another run is damaged."""
    jobs.run("pipelines.finetune", *table_flags(table, here, tmp_path / "here"))
    shutil.copytree(tmp_path / "here", tmp_path / "late")
    (tmp_path / "late/seed_12345/results.json").unlink()
    late = tmp_path / "late/seed_12345/checkpoints/ckpt-6.data-00000-of-00001"
    late.write_bytes(b"cut")
    results = json.loads((tmp_path / "here/results.json").read_text())
    assert "dev" in results
    for name in ("there", "late"):
        flags = table_flags(table, here, tmp_path / name)
        jobs.finish(jobs.start("tests.remote_training", "pipelines.finetune", *flags))
        assert json.loads((tmp_path / name / "results.json").read_text()) == results
        jobs.assert_same_bits(tmp_path / "here/seed_12345", tmp_path / f"{name}/seed_12345")
