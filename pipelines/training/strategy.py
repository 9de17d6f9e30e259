"""The devices of a job: one device, all GPUs of a machine, several machines, or a TPU."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator

import tensorflow as tf
from absl import flags

from albert_tf.storage.errors import UserError

STRATEGIES = ("one_device", "mirrored", "multi_worker", "tpu")


def define_strategy_flags() -> None:
    """Defines --strategy and --tpu."""
    flags.DEFINE_enum(
        "strategy", "one_device", STRATEGIES, "Distribution strategy: the devices to train on."
    )
    flags.DEFINE_string("tpu", "", "With --strategy=tpu: name or address; 'local' on a TPU VM.")


def create_strategy(name: str, tpu: str = "") -> tf.distribute.Strategy:
    """Returns the distribution strategy of --strategy and --tpu.

    "mirrored" uses all GPUs, or all logical CPUs if there is no GPU; "multi_worker" does so on
    every machine that TF_CONFIG names.

    Raises:
      UserError: if TF_CONFIG names no machines, or no TPU answers.
    """
    if name == "multi_worker":
        # Connect the machines before any other operation: later TensorFlow would refuse it.
        try:
            config = json.loads(os.environ.get("TF_CONFIG") or "{}")
            if not isinstance(config, dict) or "cluster" not in config:
                raise UserError("it does not name the machines")
            return tf.distribute.MultiWorkerMirroredStrategy()
        except (TypeError, ValueError) as error:
            raise UserError(
                "--strategy=multi_worker: the environment variable TF_CONFIG is wrong "
                f"({str(error).strip()}); expected "
                '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": '
                "0}}, with a different index on each machine"
            ) from error
    gpus = tf.config.list_logical_devices("GPU")
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")
    if name == "mirrored":
        devices = gpus or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, OSError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"--strategy=tpu: no TPU answers at --tpu={tpu!r} ({reason}); give its name or grpc:// "
            "address, 'local' on a TPU VM, or choose --strategy=one_device"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def is_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the devices are TPUs, on which XLA compiles everything."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this host writes the files that only one host may write."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type is None:
        return True
    return resolver.task_type == "chief" or (
        resolver.task_type == "worker"
        and resolver.task_id == 0
        and "chief" not in resolver.cluster_spec().jobs
    )


def has_several_hosts(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether a run has more hosts than this one."""
    replicas = strategy.num_replicas_in_sync
    # The default strategy has one replica and no worker_devices.
    return replicas > 1 and replicas > len(strategy.extended.worker_devices)


@contextlib.contextmanager
def naming_lost_workers() -> Iterator[None]:
    """Replaces TensorFlow's long error about a lost host by one line."""
    try:
        yield
    except tf.errors.OpError as error:
        if "Collective ops is aborted" not in str(error):
            raise
        raise UserError(
            "another worker of this run was lost; start all workers again: the run resumes from "
            "its last checkpoint"
        ) from error


def check_hosts_agree(strategy: tf.distribute.Strategy, step: int, settings: dict) -> None:
    """Refuses hosts that do not resume from the same step with the same settings."""
    if not has_several_hosts(strategy):
        return
    # Compare two sums: one number made of step and hash would overflow int64 at large steps.
    numbers = [step, zlib.crc32(json.dumps(settings).encode()) >> 1]

    @tf.function
    def add_up():
        def add_replicas():
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(numbers, tf.int64))

        return strategy.experimental_local_results(strategy.run(add_replicas))[0]

    expected = [number * strategy.num_replicas_in_sync for number in numbers]
    if add_up().numpy().tolist() != expected:
        raise UserError(
            f"the hosts of this run do not agree: this one is at step {step}; all must see the "
            "same --model_dir and have the same flags"
        )
