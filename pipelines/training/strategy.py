"""Where a job runs: one device, all GPUs of a machine, or a TPU."""

from __future__ import annotations

import tensorflow as tf

STRATEGIES = ("one_device", "mirrored", "tpu")


def create_strategy(name: str, tpu: str = "") -> tf.distribute.Strategy:
    """Returns the distribution strategy that the flag names.

    Args:
      name: one of STRATEGIES. "mirrored" uses every GPU, or every logical CPU where there is none.
      tpu: name or gRPC address of the TPU, or "local" on a TPU VM; only for "tpu".

    Raises:
      ValueError: if a TPU is asked for and none answers.
    """
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
        raise ValueError(
            f"--strategy=tpu: no TPU answers at --tpu={tpu!r} ({reason}); give its name or grpc:// "
            "address, 'local' on a TPU VM, or choose --strategy=one_device"
        ) from error
    return tf.distribute.TPUStrategy(resolver)
