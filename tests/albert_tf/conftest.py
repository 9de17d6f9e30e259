import pytest
import tensorflow as tf


@pytest.fixture
def eager():
    """Runs what is traced otherwise: tracing and compiling take longer than small batches."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
