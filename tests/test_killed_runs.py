"""Runs that are killed over and over, at random times of their whole life, and end as if never.

Two thirds of the kills fall between log entries and into the writing of checkpoints, which these
runs do most of the time; the others anywhere in start-up.
"""

from __future__ import annotations

import json
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
from tests.jobs import (
    assert_same_bits,
    bytes_of_weights,
    curves,
    log,
    num_entries,
    pretrain_flags,
    run,
    start,
    wait_for,
    weights,
)
from tests.test_distributed import assert_same_run, start_workers

NUM_STEPS = 240
KILLS_PER_RUN = 10
OPTIONS = {
    "plain": [],
    "all": [
        "--gradient_accumulation_steps=3",
        "--depth_schedule=1,3:101",
        "--eval_steps=5",
        "--eval_examples=25",
    ],
}


def flags(work, model_dir, options):
    return [
        *pretrain_flags(work, model_dir),
        f"--num_train_steps={NUM_STEPS}",
        "--steps_per_loop=1",
        "--save_checkpoint_steps=2",
        *options,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_killed_at_random_times(work, options):
    whole, killed = work / f"never_killed_{options}", work / f"killed_{options}"
    began = time.monotonic()
    process = start("pipelines.pretrain", *flags(work, whole, OPTIONS[options]))
    wait_for(lambda: num_entries(whole) > 0, [process])
    start_up = time.monotonic() - began
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, f"{out}\n{err}"

    rng = random.Random(options)
    stood_at = []
    for kill in range(KILLS_PER_RUN):
        process = start("pipelines.pretrain", *flags(work, killed, OPTIONS[options]))
        # Every third somewhere in start-up; the others once training has begun: there is a new
        # entry, or the old ones were cut back.
        started, first = time.monotonic(), num_entries(killed)
        wait = rng.uniform(0, start_up) if kill % 3 == 2 else 240
        wait_for(
            lambda started=started, first=first, wait=wait: (
                time.monotonic() > started + wait or num_entries(killed) != first
            ),
            [process],
        )
        time.sleep(rng.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, f"ended before it was killed: {out}\n{err}"
        stood_at.append(num_entries(killed))
    assert 0 < stood_at[-1] < NUM_STEPS, stood_at
    run("pipelines.pretrain", *flags(work, killed, OPTIONS[options]))

    assert_same_bits(killed, whole)
    assert curves(killed) == curves(whole)
    trained = [entry["step"] for entry in log(killed) if "loss" in entry]
    assert trained == list(range(1, NUM_STEPS + 1))
    if options == "all":
        assert bytes_of_weights(killed, "best") == bytes_of_weights(whole, "best")
    for directory in ("checkpoints", "best"):
        left = sorted(path.name for path in (killed / directory).glob("*"))
        assert left == sorted(path.name for path in (whole / directory).glob("*"))


@pytest.mark.slow
def test_two_workers_killed_at_random_times(work):
    """In turn the chief, the other and both; the one that is left cannot go on and says so."""
    config = work / "killed_workers.json"
    values = json.loads((work / "config.json").read_text())
    config.write_text(json.dumps({**values, "hidden_dropout_prob": 0.0}))
    job = [*pretrain_flags(work, work / "killed_workers"), f"--albert_config={config}"]
    rng = random.Random(4)
    for lost in ([0], [1], [0, 1], [1]):
        processes = start_workers(*job)
        first = num_entries(work / "killed_workers")
        wait_for(lambda first=first: num_entries(work / "killed_workers") != first, processes)
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
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, f"{out}\n{err}"
    flags_of_one = [*pretrain_flags(work, work / "killed_one"), f"--albert_config={config}"]
    run("pipelines.pretrain", *flags_of_one)
    assert_same_run(work / "killed_workers", work / "killed_one")
    ours, theirs = weights(work / "killed_workers"), weights(work / "killed_one")
    for variable, value in ours.items():
        if "key/bias" not in variable:
            np.testing.assert_allclose(value, theirs[variable], atol=1e-4, err_msg=variable)


def test_a_late_restart_reads_nothing_that_lies_before(work, tmp_path, monkeypatch):
    """Its cost does not grow with the step: what lies before may be damaged."""
    monkeypatch.setattr(training_order, "_GROUP_BYTES", 1)  # each part of a shard is a group
    options = ExampleOptions(max_seq_length=40)
    tokenizer = AlbertTokenizer(str(work / "vocabulary.model"))
    shutil.copytree(work / "records", tmp_path / "records")
    [source] = pretraining_dataset.read_sources(str(tmp_path / "records"))
    train = source.manifest.splits["train"]
    assert len(train.shards) > 3

    # The last group of the fifth epoch.
    order = training_order.shuffled_groups(train.shards, options.seed, 4 * train.examples)
    groups = [g for g in order.take(99).as_numpy_iterator() if g.first < 5 * train.examples]
    assert len(groups) > 4
    late = groups[-1].first // 2 + 1

    def batches(step, count):
        dataset = pretraining_dataset.pretraining_dataset([source], options, tokenizer, 2, step)
        return [batch["input_word_ids"].numpy().tolist() for batch in dataset.take(count)]

    expected = batches(late, 1)
    for group in groups[:-1]:
        for shard, offset in zip(group.slices.shards, group.slices.offsets):
            with open(source.manifest.paths(source.record_dir, "train")[shard], "r+b") as file:
                file.seek(offset)
                file.write(bytes(12))
    with pytest.raises(tf.errors.DataLossError):
        batches(0, train.examples // 2)
    assert batches(late, 1) == expected
