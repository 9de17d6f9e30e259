"""One run on one device, on several, and on several machines: the same losses, and lost workers."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket

import pytest

from tests.jobs import NUM_STEPS, log, num_entries, pretrain_flags, run, start, wait_for

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


def start_workers(*job, second=(), module="pipelines.pretrain", before=""):
    """Starts two processes that find each other on loopback.

    Args:
      second: flags of the second alone.
      before: code that the first, the chief, runs first.
    """
    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return [
        start(
            module,
            *job,
            *(second if index else ()),
            "--strategy=multi_worker",
            before="" if index else before,
            env={
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
                ),
                "CUDA_VISIBLE_DEVICES": "-1",
            },
        )
        for index in range(2)
    ]


def finish(processes, timeout=300):
    for process in processes:
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == 0, f"{out}\n{err}"


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
    reports = []
    for process in start_workers(module="tests.collectives"):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, f"{out}\n{err}"
        reports.append(json.loads(out))
    for report in reports:
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
    finish(start_workers(*flags(work, config, work / "two_workers", "--eval_steps=10")))
    assert_same_run(work / "two_workers", one_device)
    evaluated = [
        [
            entry["heldout_masked_lm_loss"]
            for entry in log(directory)
            if "heldout_masked_lm_loss" in entry
        ]
        for directory in (work / "two_workers", one_device)
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
        out, err = process.communicate(timeout=120)
        assert process.returncode == 128 + signal.SIGTERM, f"{out}\n{err}"
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
        out, err = process.communicate(timeout=120)
        assert process.returncode == 2, f"{out}\n{err}"
        assert "the hosts of this run do not agree" in err and "Traceback" not in err


@pytest.mark.slow
def test_a_run_of_other_settings_is_one_line_on_every_host(work, config, one_device):
    """The chief refuses it before the hosts meet; the other waits for it and must not hang."""
    directory = work / "other_settings"
    shutil.copytree(one_device, directory)
    job = flags(work, config, directory, "--eval_steps=10", "--learning_rate=0.01")
    messages = []
    for process in start_workers(*job):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 2 and "Traceback" not in err, f"{out}\n{err}"
        messages.append(err.splitlines()[-1])
    assert "holds another run" in messages[0] and "was lost" in messages[1]


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
    rng = random.Random(3)
    words = ["river", "lazy", "green", "summer", "boats"]
    for split, number in (("train", 61), ("dev", 37), ("test", 5)):
        rows = [(rng.choice(words), " ".join(rng.choices(words, k=9))) for _ in range(number)]
        lines = ["label\ttext", *(f"{int('y' in w)}\t{w} {text}" for w, text in rows)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    job = [
        "--task=classification",
        *(f"--{split}_file={tmp_path}/{split}.tsv" for split in ("train", "dev", "test")),
        f"--init_checkpoint={one_device}",
        "--hidden_dropout_prob=0",
        "--classifier_dropout_prob=0",
        "--global_batch_size=12",
        "--gradient_accumulation_steps=2",
        "--num_train_steps=20",
        "--num_warmup_steps=2",
        "--learning_rate=2e-3",
        "--steps_per_loop=5",
        "--eval_steps=5",
    ]
    run("pipelines.finetune", *job, f"--output_dir={tmp_path}/one")
    finish(
        start_workers(
            *job, f"--output_dir={tmp_path}/two", module="pipelines.finetune", before=SLOW_CHIEF
        )
    )
    ours, theirs = [
        json.loads((tmp_path / name / "results.json").read_text()) for name in ("two", "one")
    ]
    assert ours == theirs and set(ours) >= {"dev", "test"}
    tables = [
        (tmp_path / name / "seed_12345/predictions/dev_predictions.tsv").read_text().split("\n")
        for name in ("two", "one")
    ]
    assert len(tables[0]) == len(tables[1]) == 39
    for mine, other in zip(*[[row.split("\t") for row in table[1:38]] for table in tables]):
        assert mine[:3] == other[:3]
        assert [float(p) for p in mine[3:]] == pytest.approx(
            [float(p) for p in other[3:]], abs=1e-3
        )
