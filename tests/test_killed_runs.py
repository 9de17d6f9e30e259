"""Runs that are killed over and over, at random times of their whole life, and end as if never.

Two thirds of the kills fall into training, most of which is the writing of checkpoints.
"""

import random
import shutil
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data import pretraining_dataset, training_order
from pipelines.data.examples import ExampleOptions
from tests import jobs
from tests.test_distributed import assert_same_run, start_workers
from tests.test_distributed import flags as flags_without_dropout

NUM_STEPS = 240
KILLS_PER_RUN = 10
ALL = "--gradient_accumulation_steps=3 --eval_steps=5 --eval_examples=25"
OPTIONS = {"plain": [], "all": [*ALL.split(), "--unpad"]}


def flags(work, model_dir, options):
    steps = [f"--num_train_steps={NUM_STEPS}", "--steps_per_loop=1", "--save_checkpoint_steps=2"]
    return ["pipelines.pretrain", *jobs.pretrain_flags(work, model_dir), *steps, *OPTIONS[options]]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_killed_at_random_times(work, options):
    whole, killed = work / f"never_killed_{options}", work / f"killed_{options}"
    began = time.monotonic()
    process = jobs.start(*flags(work, whole, options))
    jobs.wait_for(lambda: jobs.num_entries(whole) > 0, [process])
    start_up, trained_from = time.monotonic() - began, time.monotonic()
    jobs.finish(process, timeout=600)
    seconds_per_step = (time.monotonic() - trained_from) / NUM_STEPS
    rng = random.Random(options)
    stood_at = []
    for kill in range(KILLS_PER_RUN):
        process = jobs.start(*flags(work, killed, options))
        # Every third somewhere in start-up; the others once training has begun: there is a new
        # entry, or the old ones were cut back.
        wait = rng.uniform(0, start_up) if kill % 3 == 2 else 240
        until, first = time.monotonic() + wait, jobs.num_entries(killed)
        jobs.wait_for(
            lambda u=until, f=first: time.monotonic() > u or jobs.num_entries(killed) != f,
            [process],
        )
        time.sleep(rng.uniform(0, 8 * seconds_per_step))
        process.send_signal(signal.SIGKILL)
        jobs.finish(process, -signal.SIGKILL)
        stood_at.append(jobs.num_entries(killed))
    assert 0 < stood_at[-1] < NUM_STEPS, stood_at
    jobs.run(*flags(work, killed, options))
    jobs.assert_same_bits(killed, whole)
    assert jobs.curves(killed) == jobs.curves(whole)
    trained = [entry["step"] for entry in jobs.log(killed) if "loss" in entry]
    assert trained == list(range(1, NUM_STEPS + 1))
    if options == "all":
        assert jobs.bytes_of_weights(killed, "best") == jobs.bytes_of_weights(whole, "best")
    for directory in ("checkpoints", "best"):
        left = sorted(path.name for path in (killed / directory).glob("*"))
        assert left == sorted(path.name for path in (whole / directory).glob("*"))


@pytest.mark.slow
def test_two_workers_killed_at_random_times(work):
    """In turn the chief, the other and both; the one that is left cannot go on and says so."""
    job = flags_without_dropout(work, work / "killed_workers")
    rng = random.Random(4)
    for lost in ([0], [1], [0, 1], [1]):
        processes = start_workers(*job)
        first = jobs.num_entries(work / "killed_workers")
        jobs.wait_for(
            lambda first=first: jobs.num_entries(work / "killed_workers") != first, processes
        )
        time.sleep(rng.uniform(0, 0.05))
        for index in lost:
            processes[index].send_signal(signal.SIGKILL)
        for index, process in enumerate(processes):
            out, err = process.communicate(timeout=300)
            if index not in lost:
                assert process.returncode in (0, 2), f"{out}\n{err}"
                assert "Traceback" not in err
                assert process.returncode == 0 or "lost" in err.splitlines()[-1], err
    for process in start_workers(*job):
        jobs.finish(process)
    jobs.run("pipelines.pretrain", *flags_without_dropout(work, work / "killed_one"))
    assert_same_run(work / "killed_workers", work / "killed_one")
    ours, theirs = jobs.weights(work / "killed_workers"), jobs.weights(work / "killed_one")
    for variable, value in ours.items():
        if "key/bias" not in variable:
            np.testing.assert_allclose(value, theirs[variable], atol=1e-4, err_msg=variable)


@pytest.mark.slow
def test_a_late_restart_reads_nothing_that_lies_before(work, tmp_path, monkeypatch):
    monkeypatch.setattr(training_order, "_GROUP_BYTES", 1)  # each part of a shard is a group
    monkeypatch.setattr(
        pretraining_dataset, "_example_maker", lambda *_: lambda records, _: {"records": records}
    )
    options = ExampleOptions(max_seq_length=40)
    tokenizer = AlbertTokenizer(str(work / "vocabulary.model"))
    shutil.copytree(work / "records", tmp_path / "records")
    [source] = pretraining_dataset.read_sources(str(tmp_path / "records"))
    train = source.manifest.splits["train"]
    assert len(train.shards) > 3

    # The last group of the fifth epoch.
    begin, groups = 4 * train.examples, []
    order = training_order.shuffled_groups(train.shards, options.seed, begin).as_numpy_iterator()
    while begin < 5 * train.examples:
        late = begin // 2 + 1
        groups.append(next(order))
        begin += len(groups[-1][1])
    assert len(groups) > 4

    paths = source.manifest.paths(source.record_dir, "train")
    for slices, _ in groups[:-1]:
        for shard, offset in zip(slices.shards, slices.offsets):
            with open(paths[shard], "r+b") as file:
                file.seek(offset)
                file.write(bytes(12))
    with pytest.raises(tf.errors.DataLossError):
        list(tf.data.TFRecordDataset(paths))

    dataset = pretraining_dataset.pretraining_dataset([source], options, tokenizer, 2, late)

    def first_batch():
        [batch] = dataset.take(1)
        return batch["records"].numpy().tolist()

    found = first_batch()
    shutil.copytree(work / "records", tmp_path / "records", dirs_exist_ok=True)
    assert first_batch() == found
