"""Runs a program whose only device is that of a worker in a process of its own.

`python -m tests.remote_training pipelines.pretrain --flags`: as on a TPU pod, but for the device.
The program is the coordinator; input, variables and checkpoints are the worker's.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

import tensorflow as tf

from albert_tf.jobs import program
from tests.remote_input import start_worker

DEVICE = "/job:worker/replica:0/task:0/device:CPU:0"


def connect() -> tf.distribute.Strategy:
    """Makes the worker the default device, as TPUClusterResolver does, and the only replica."""
    start_worker()
    contextlib.ExitStack().enter_context(tf.device(DEVICE))
    return tf.distribute.OneDeviceStrategy(DEVICE)


def main() -> None:
    """Runs the program of the first argument."""
    job = importlib.import_module(sys.argv.pop(1))
    job.strategy_from_flags = connect
    job.define_flags()
    program.run(job.main)


if __name__ == "__main__":
    main()
