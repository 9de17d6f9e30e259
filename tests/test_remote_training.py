"""Whole jobs whose input, variables and checkpoints are those of a worker in another process."""

from __future__ import annotations

import json

import pytest

from tests.builders import finetune_flags, write_sentences
from tests.jobs import assert_same_bits, curves, finish, pretrain_flags, run, start


def run_remotely(module, *flags):
    process = start("tests.remote_training", module, *flags)
    try:
        finish(process)
    finally:
        process.kill()


def flags(work, model_dir):
    config = f"--albert_config={work}/config.json"
    return [*pretrain_flags(work, model_dir), config, "--eval_steps=10"]


@pytest.fixture(scope="module")
def here(work):
    run("pipelines.pretrain", *flags(work, work / "here"))
    return work / "here"


@pytest.mark.slow
def test_pretraining_on_a_worker_is_the_run_on_this_machine(work, here):
    run_remotely("pipelines.pretrain", *flags(work, work / "there"))
    assert_same_bits(here, work / "there")
    assert curves(here) == curves(work / "there")


@pytest.mark.slow
def test_fine_tuning_on_a_worker_is_the_run_on_this_machine(here, tmp_path):
    write_sentences(tmp_path, train=61, dev=37)
    job = finetune_flags(tmp_path, here)
    run("pipelines.finetune", *job, f"--output_dir={tmp_path}/here")
    run_remotely("pipelines.finetune", *job, f"--output_dir={tmp_path}/there")
    results = [
        json.loads((tmp_path / name / "results.json").read_text()) for name in ("here", "there")
    ]
    assert results[0] == results[1] and "dev" in results[0]
    assert_same_bits(tmp_path / "here/seed_12345", tmp_path / "there/seed_12345")
