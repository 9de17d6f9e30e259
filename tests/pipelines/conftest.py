import pytest
import tensorflow as tf

from albert_tf.text.tokenization import AlbertTokenizer


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return AlbertTokenizer(str(tiny_vocabulary))


@pytest.fixture
def eager():
    """Runs what is traced otherwise: tracing takes longer than a few rows or steps."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
