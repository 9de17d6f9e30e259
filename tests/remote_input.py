"""A worker in a process of its own, and the batches that a dataset yields there.

`python -m tests.remote_input DIRECTORY` starts a worker in a second process, as a pod has one on
each host. It places datasets there, as TPUStrategy places each host's input, and prints for each
how many batches equal those of the same dataset in its own process. A dataset that needs the Python
of the process that made it never answers: the caller sets a time limit.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data.examples import ExampleOptions
from pipelines.data.pretraining_dataset import evaluation_dataset, pretraining_dataset, read_sources
from pipelines.tasks.running.batches import training_dataset
from pipelines.tasks.task import Sequences
from tests.jobs import free_port

_BATCHES = 7


def serve(port: int) -> None:
    """Runs a worker until the process that started it ends, however it does."""
    parent = os.getppid()
    cluster = {"worker": [f"127.0.0.1:{port}"]}
    server = tf.distribute.Server(cluster, job_name="worker", task_index=0, protocol="grpc")
    while os.getppid() == parent:
        time.sleep(0.2)
    del server
    os._exit(0)


def datasets(directory: pathlib.Path) -> dict:
    """Returns name -> function that makes the dataset: of a second host, after a resume."""
    one, two = str(directory / "one"), str(directory / "two")
    tokenizer = AlbertTokenizer(str(directory / "vocabulary.model"))
    options = ExampleOptions(max_seq_length=24, seed=77)
    rng = np.random.default_rng(3)
    row_splits = np.cumsum([0, *rng.integers(3, 60, 43)])
    sequences = Sequences(
        pieces=rng.integers(5, 100, row_splits[-1]).astype(np.int32),
        row_splits=row_splits,
        first_lengths=np.full(43, 2, np.int32),
        labels={"label": np.arange(43, dtype=np.int32)},
    )

    def pretraining(record_dirs, weights, start_step, context=None):
        sources = read_sources(record_dirs, weights)
        return pretraining_dataset(sources, options, tokenizer, 6, start_step, context)

    def finetuning(start_step, context):
        return training_dataset(sequences, 6, 5, start_step, 60, False, context)

    second_host = tf.distribute.InputContext(2, 1, 2)
    return {
        "pretraining": lambda: pretraining(one, None, 9, second_host),
        "mixture": lambda: pretraining(f"{one},{two}", [0.7, 0.3], 11, second_host),
        "finetuning": lambda: finetuning(13, second_host),
        "evaluation": lambda: evaluation_dataset(one, "heldout", options, tokenizer, 4),
    }


def take(dataset: tf.data.Dataset, job: str) -> list[dict[str, bytes]]:
    """Returns the bytes of the first batches, which are computed by a job."""
    batches = []
    for batch in dataset:
        assert all(f"/job:{job}/" in value.device for value in batch.values())
        batches.append({name: value.numpy().tobytes() for name, value in batch.items()})
        if len(batches) == _BATCHES:
            break
    return batches


def start_worker():
    """Forks a worker, before this process does anything with TensorFlow; returns its process."""
    port = free_port()
    worker = multiprocessing.get_context("fork").Process(target=serve, args=(port,), daemon=True)
    worker.start()
    tf.config.experimental_connect_to_host(f"127.0.0.1:{port}", job_name="worker")
    return worker


def main(directory: str) -> None:
    """Prints [name, equal batches, batches here, batches there, seconds there] of each dataset."""
    makers = datasets(pathlib.Path(directory))
    worker = start_worker()
    for name, make in makers.items():
        local = take(make(), "localhost")
        started = time.monotonic()
        with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
            there = take(make(), "worker")
        equal = sum(ours == theirs for ours, theirs in zip(local, there))
        seconds = time.monotonic() - started
        print(json.dumps([name, equal, len(local), len(there), round(seconds, 1)]), flush=True)
    worker.kill()


if __name__ == "__main__":
    main(sys.argv[1])
