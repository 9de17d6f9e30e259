"""Runs a program whose only device is that of a worker in a process of its own, as on a TPU pod.

`python -m tests.remote_training pipelines.pretrain --flags`: the program is the coordinator; input,
variables and checkpoints are the worker's. A dataset that needs Python never answers there.
"""

import contextlib
import importlib
import multiprocessing
import os
import sys
import time

import tensorflow as tf

from albert_tf.jobs import program
from tests.jobs import free_port

DEVICE = "/job:worker/replica:0/task:0/device:CPU:0"


def serve(port: int) -> None:
    """Runs a worker until the process that started it ends, however it does."""
    parent = os.getppid()
    cluster = {"worker": [f"127.0.0.1:{port}"]}
    server = tf.distribute.Server(cluster, job_name="worker", task_index=0, protocol="grpc")
    while os.getppid() == parent:
        time.sleep(0.2)
    del server
    os._exit(0)


def connect() -> tf.distribute.Strategy:
    """Forks a worker and makes it the default device and only replica, before any other work."""
    port = free_port()
    worker = multiprocessing.get_context("fork").Process(target=serve, args=(port,), daemon=True)
    worker.start()
    tf.config.experimental_connect_to_host(f"127.0.0.1:{port}", job_name="worker")
    contextlib.ExitStack().enter_context(tf.device(DEVICE))
    return tf.distribute.OneDeviceStrategy(DEVICE)


def main() -> None:
    job = importlib.import_module(sys.argv.pop(1))
    job.create_strategy = lambda *_: connect()
    job.define_flags()
    program.run(job.main)


if __name__ == "__main__":
    main()
