import gc

import pytest


@pytest.fixture(scope="session")
def three_steps(tmp_path_factory):
    """A run of one device, not traced, in float32 and without dropout: directory and model."""
    import tensorflow as tf

    from tests.pipelines.training.test_train_loop import run

    directory = tmp_path_factory.mktemp("three")
    tf.config.run_functions_eagerly(True)
    try:
        return directory, run(directory, 3, every=2)
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="module", autouse=True)
def no_old_iterators():
    """Ends the iterators of the tests that are done.

    TensorFlow 2.15 may miss that an iterator with AUTOTUNE ends. It then waits for the next time
    that it tunes, which is about as long as the iterator is old: half a minute, in later tests.
    """
    yield
    gc.collect()
