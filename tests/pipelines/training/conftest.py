import pytest


@pytest.fixture(scope="session")
def nine_steps(tmp_path_factory):
    """A run of one device, in float32 and without dropout: its directory and its model."""
    from tests.pipelines.training.test_train_loop import run

    directory = tmp_path_factory.mktemp("nine")
    return directory, run(directory, 9)
