"""Two replicas on this machine's CPU."""

import functools

import tensorflow as tf


@functools.cache
def mirrored() -> tf.distribute.MirroredStrategy:
    """Returns the strategy of two logical CPUs, one for all tests of a process.

    Every strategy numbers its collectives from 100 on: TensorFlow keeps a number's first shape.
    """
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert len(devices) == 2
    return tf.distribute.MirroredStrategy(devices)
