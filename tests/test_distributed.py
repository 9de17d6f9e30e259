"""One run on one device, on several, and on several machines: the same losses, and lost workers."""

import json
import shutil
import signal

import pytest

from tests import jobs
from tests.builders import DEV, near, read_tsv, table_flags

# What a sum over two workers may differ by, in another order of its terms.
TOLERANCE = 1e-5


def flags(work, model_dir, *more):
    """Of a run without dropout: replicas would draw different masks."""
    config = f"--albert_config={work}/without_dropout.json"
    return [*jobs.pretrain_flags(work, model_dir), config, *more]


def environments():
    """Returns the variables of two processes that find each other on loopback; first the chief."""
    workers = [f"127.0.0.1:{jobs.free_port()}" for _ in range(2)]
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    configs = [json.dumps({"cluster": {"worker": workers}, "task": task}) for task in tasks]
    return [{"TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1"} for config in configs]


def start_workers(*job, second=(), module="pipelines.pretrain", before=""):
    """Starts two; `before` is code of the first, the chief, `second` are flags of the other."""
    chief, other = environments()
    job = [module, *job, "--strategy=multi_worker"]
    return [jobs.start(*job, before=before, env=chief), jobs.start(*job, *second, env=other)]


def losses(model_dir):
    entries = [entry for entry in jobs.log(model_dir) if "loss" in entry]
    names = ("masked_lm_loss", "sentence_order_loss", "masked_lm_accuracy", "gradient_norm")
    return {entry["step"]: [entry[name] for name in names] for entry in entries}


@pytest.fixture(scope="module")
def one_device(work):
    """The run that all others have to equal."""
    jobs.run("pipelines.pretrain", *flags(work, work / "one_device", "--eval_steps=10"))
    return work / "one_device"


def assert_same_run(model_dir, one_device):
    ours, theirs = losses(model_dir), losses(one_device)
    assert list(ours) == list(theirs) == list(range(2, jobs.NUM_STEPS + 1, 2))
    for step, values in ours.items():
        assert values == pytest.approx(theirs[step], rel=TOLERANCE), step


@pytest.mark.slow
def test_a_mirrored_strategy_of_one_device(work, one_device):
    """Its optimizer has replicas to merge, though there is one: it cannot be compiled."""
    jobs.run("pipelines.pretrain", *flags(work, work / "mirrored", "--strategy=mirrored"))
    assert_same_run(work / "mirrored", one_device)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--unpad"]])
def test_two_workers_equal_one_device(work, one_device, more):
    directory = work / f"two_workers{len(more)}"
    for process in start_workers(*flags(work, directory, "--eval_steps=10", *more)):
        jobs.finish(process)
    assert_same_run(directory, one_device)
    name = "heldout_masked_lm_loss"
    evaluated = [
        [entry[name] for entry in jobs.log(directory) if name in entry]
        for directory in (directory, one_device)
    ]
    assert len(evaluated[0]) == 3
    assert evaluated[0] == pytest.approx(evaluated[1], rel=TOLERANCE)


@pytest.mark.slow
def test_sigterm_to_one_worker_stops_both_at_one_step(work, one_device):
    job = flags(work, work / "stopped", "--num_train_steps=30000")
    processes = start_workers(*job)
    jobs.wait_for(lambda: jobs.num_entries(work / "stopped") >= 4, processes)
    processes[1].send_signal(signal.SIGTERM)
    for process in processes:
        jobs.finish(process, 128 + signal.SIGTERM)
    last = max(losses(work / "stopped"))
    assert (work / "stopped" / "checkpoints" / f"ckpt-{last}.index").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_both", "of_second", "messages"),
    [
        ("", "--num_warmup_steps=5", ["the hosts of this run do not agree"] * 2),
        ("", "--stop_step=100", ["the hosts of this run do not agree"] * 2),
        # A model directory that is not shared and so stands at another step.
        ("", "--model_dir={work}/elsewhere", ["the hosts of this run do not agree"] * 2),
        # The chief refuses it before the hosts meet; the other waits for it and must not hang.
        ("--learning_rate=0.01", "", ["holds another run", "was lost"]),
    ],
)
def test_hosts_that_differ_are_refused(work, one_device, tmp_path, of_both, of_second, messages):
    directory = shutil.copytree(one_device, tmp_path / "run")
    job = flags(work, directory, "--eval_steps=10", *of_both.split())
    workers = start_workers(*job, second=of_second.format(work=work).split())
    for process, message in zip(workers, messages):
        _, err = jobs.finish(process, 2)
        assert message in err.splitlines()[-1] and "Traceback" not in err


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
def test_two_workers_fine_tune_as_one_device(one_device, table, tmp_path):
    """Both predict with the best weights, also when the chief is late with writing them."""
    job = [
        *table_flags(table, one_device, tmp_path / "one", splits=("train", "dev", "test")),
        *"--hidden_dropout_prob=0 --num_train_steps=20".split(),
        *"--gradient_accumulation_steps=2 --steps_per_loop=5".split(),
        *"--save_checkpoint_steps=5 --eval_steps=5".split(),
    ]
    jobs.run("pipelines.finetune", *job)
    job.append(f"--output_dir={tmp_path}/two")
    for process in start_workers(*job, module="pipelines.finetune", before=SLOW_CHIEF):
        jobs.finish(process)
    results = [(tmp_path / name / "results.json").read_text() for name in ("two", "one")]
    assert results[0] == results[1] and {"dev", "test"} <= json.loads(results[0]).keys()
    predictions = "seed_12345/predictions/dev_predictions.tsv"
    ours, theirs = (read_tsv(tmp_path / name / predictions) for name in ("two", "one"))
    assert len(ours) == len(theirs) == DEV
    for row in (*ours, *theirs):
        row.update((name, float(row[name])) for name in row if name.startswith("probability"))
    assert ours == near(theirs, 1e-3)
