"""Distribution strategies: one device, all GPUs of a machine, several machines, or a TPU."""

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
    flags.DEFINE_string("tpu", "", "TPU name or address for --strategy=tpu; 'local' on a TPU VM.")


def create_strategy(name: str, tpu: str = "") -> tf.distribute.Strategy:
    """Creates the distribution strategy that --strategy and --tpu select.

    "mirrored" uses all GPUs of this machine, or all logical CPUs if there is no GPU. "multi_worker"
    uses all GPUs, or one CPU if there is no GPU, of every machine in TF_CONFIG.

    Raises:
      UserError: if TF_CONFIG is missing or invalid, or no TPU can be reached.
    """
    if name == "multi_worker":
        # This must precede any other operation, or TensorFlow refuses to connect the machines.
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
    """Returns True if the devices are TPUs. On TPUs, XLA compiles the whole model."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns True if this host writes the files of the run. Exactly one host does."""
    return strategy.extended.should_checkpoint


def has_several_hosts(strategy: tf.distribute.Strategy) -> bool:
    """Returns True if the run uses more than one host."""
    replicas = strategy.num_replicas_in_sync
    # The default strategy has one replica and no worker_devices.
    return replicas > 1 and replicas > len(strategy.extended.worker_devices)


@contextlib.contextmanager
def naming_lost_workers() -> Iterator[None]:
    """Replaces TensorFlow's error about a lost worker with a UserError."""
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
    """Raises a UserError unless all hosts are at the same step and have the same settings."""
    if not has_several_hosts(strategy):
        return
    # Sum step and hash separately: combined in one number, they would overflow int64.
    numbers = [step, zlib.crc32(json.dumps(settings).encode()) >> 1]

    @tf.function(autograph=False)
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
