"""One run on one device, on several, and on several machines: the same losses, and lost workers."""

from __future__ import annotations

import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.builders import finetune_flags, read_tsv, write_sentences
from tests.jobs import (
    NUM_STEPS,
    finish,
    free_port,
    log,
    num_entries,
    pretrain_flags,
    run,
    start,
    wait_for,
)

# What a sum over two workers may differ by, in another order of its terms.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def config(work):
    """The config of the runs, without dropout: replicas would draw different masks."""
    values = json.loads((work / "config.json").read_text())
    path = work / "without_dropout.json"
    path.write_text(json.dumps({**values, "hidden_dropout_prob": 0.0}))
    return path


def flags(work, config, model_dir, *more):
    return [*pretrain_flags(work, model_dir), f"--albert_config={config}", *more]


def environments():
    """Returns the variables of two processes that find each other on loopback; first the chief."""
    workers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    configs = [json.dumps({"cluster": {"worker": workers}, "task": task}) for task in tasks]
    return [{"TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1"} for config in configs]


def start_workers(*job, second=(), module="pipelines.pretrain", before=""):
    """Starts two processes that find each other.

    Args:
      second: flags of the second alone.
      before: code that the first, the chief, runs first.
    """
    chief, other = environments()
    flags = [*job, "--strategy=multi_worker"]
    return [
        start(module, *flags, before=before, env=chief),
        start(module, *flags, *second, env=other),
    ]


def losses(model_dir):
    entries = [entry for entry in log(model_dir) if "loss" in entry]
    names = ("masked_lm_loss", "sentence_order_loss", "masked_lm_accuracy", "gradient_norm")
    return {entry["step"]: [entry[name] for name in names] for entry in entries}


@pytest.fixture(scope="module")
def one_device(work, config):
    """The run that all others have to equal."""
    run("pipelines.pretrain", *flags(work, config, work / "one_device", "--eval_steps=10"))
    return work / "one_device"


def assert_same_run(model_dir, one_device):
    ours, theirs = losses(model_dir), losses(one_device)
    assert list(ours) == list(theirs) == list(range(2, NUM_STEPS + 1, 2))
    for step, values in ours.items():
        assert values == pytest.approx(theirs[step], rel=TOLERANCE), step


def test_collectives_of_a_step_and_whether_hosts_agree():
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda env: run("tests.collectives", env=env), environments()))
    for out, _ in found:
        report = json.loads(out)
        # One holds the denominators, before the forward pass; one the sums and the gradients.
        assert report["step"] == 2
        assert report["agree"] == ""
        assert "the hosts of this run do not agree" in report["differ"]


@pytest.mark.slow
def test_a_mirrored_strategy_of_one_device(work, config, one_device):
    """Its optimizer has replicas to merge, though there is one: it cannot be compiled."""
    run("pipelines.pretrain", *flags(work, config, work / "mirrored", "--strategy=mirrored"))
    assert_same_run(work / "mirrored", one_device)


@pytest.mark.slow
def test_two_workers_equal_one_device(work, config, one_device):
    for process in start_workers(*flags(work, config, work / "two_workers", "--eval_steps=10")):
        finish(process)
    assert_same_run(work / "two_workers", one_device)
    evaluated = [
        [entry["heldout_masked_lm_loss"] for entry in log(run) if "heldout_masked_lm_loss" in entry]
        for run in (work / "two_workers", one_device)
    ]
    assert len(evaluated[0]) == 3
    assert evaluated[0] == pytest.approx(evaluated[1], rel=TOLERANCE)


@pytest.mark.slow
def test_sigterm_to_one_worker_stops_both_at_one_step(work, config, one_device):
    job = flags(work, config, work / "stopped", "--num_train_steps=30000")
    processes = start_workers(*job)
    wait_for(lambda: num_entries(work / "stopped") >= 4, processes)
    processes[1].send_signal(signal.SIGTERM)
    for process in processes:
        finish(process, 128 + signal.SIGTERM)
    last = max(losses(work / "stopped"))
    assert (work / "stopped" / "checkpoints" / f"ckpt-{last}.index").exists()


@pytest.mark.slow
@pytest.mark.parametrize("difference", ["--num_warmup_steps=5", "--model_dir={work}/elsewhere"])
def test_hosts_that_differ_are_refused(work, config, one_device, difference):
    """Other flags, or a model directory that is not shared and so stands at another step."""
    directory = work / f"differ{len(difference)}"
    shutil.copytree(one_device, directory)
    job = flags(work, config, directory, "--eval_steps=10")
    for process in start_workers(*job, second=[difference.format(work=work)]):
        _, err = finish(process, 2)
        assert "the hosts of this run do not agree" in err and "Traceback" not in err


@pytest.mark.slow
def test_a_run_of_other_settings_is_one_line_on_every_host(work, config, one_device):
    """The chief refuses it before the hosts meet; the other waits for it and must not hang."""
    directory = work / "other_settings"
    shutil.copytree(one_device, directory)
    job = flags(work, config, directory, "--eval_steps=10", "--learning_rate=0.01")
    errors = [finish(process, 2)[1] for process in start_workers(*job)]
    assert not any("Traceback" in err for err in errors)
    first, second = (err.splitlines()[-1] for err in errors)
    assert "holds another run" in first and "was lost" in second


SLOW_CHIEF = """
import time
from pipelines.training.checkpointing import Checkpointer
save_best = Checkpointer.save_best
def save_late(self, step):
    time.sleep(3)
    save_best(self, step)
Checkpointer.save_best = save_late
"""


@pytest.mark.slow
def test_two_workers_fine_tune_as_one_device(work, one_device, tmp_path):
    """Both predict with the best weights, also when the chief is late with writing them."""
    write_sentences(tmp_path, train=61, dev=37, test=5)
    job = [
        *finetune_flags(tmp_path, one_device, ("train", "dev", "test")),
        "--hidden_dropout_prob=0",
        "--classifier_dropout_prob=0",
        "--gradient_accumulation_steps=2",
        "--num_train_steps=20",
        "--steps_per_loop=5",
        "--save_checkpoint_steps=5",
        "--eval_steps=5",
    ]
    run("pipelines.finetune", *job, f"--output_dir={tmp_path}/one")
    job.append(f"--output_dir={tmp_path}/two")
    for process in start_workers(*job, module="pipelines.finetune", before=SLOW_CHIEF):
        finish(process)
    ours, theirs = [
        json.loads((tmp_path / name / "results.json").read_text()) for name in ("two", "one")
    ]
    assert ours == theirs and set(ours) >= {"dev", "test"}
    predictions = "seed_12345/predictions/dev_predictions.tsv"
    ours, theirs = (read_tsv(tmp_path / name / predictions) for name in ("two", "one"))
    assert len(ours) == len(theirs) == 37
    for row, other in zip(ours, theirs):
        for (name, value), expected in zip(row.items(), other.values()):
            if name.startswith("probability"):
                value, expected = float(value), pytest.approx(float(expected), abs=1e-3)
            assert value == expected
