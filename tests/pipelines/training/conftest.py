import pytest


@pytest.fixture(scope="session")
def three_steps(tmp_path_factory):
    """A run of one device, not traced, in float32 and without dropout: directory and model."""
    import tensorflow as tf

    from tests.pipelines.training.test_train_loop import run

    directory = tmp_path_factory.mktemp("three")
    tf.config.run_functions_eagerly(True)
    model = run(directory, 3, every=2)
    tf.config.run_functions_eagerly(False)
    return directory, model
