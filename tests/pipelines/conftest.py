import functools
import gzip
import json

import pytest
import tensorflow as tf

from albert_tf.text.tokenization import AlbertTokenizer


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return AlbertTokenizer(str(tiny_vocabulary))


@pytest.fixture(scope="session")
def spiece_30k(shared):
    """The vocabulary of the published models."""
    return AlbertTokenizer(str(shared / "data/albert_spiece_30k/30k-clean.model"))


@pytest.fixture(scope="session")
def golden(shared):
    """Reads lines of features that the reference made."""

    @functools.lru_cache(maxsize=1)
    def read(name):
        path = shared / f"data/golden_features/{name}.jsonl.gz"
        return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]

    return read


@pytest.fixture
def eager():
    """Runs what is traced otherwise: tracing takes longer than a few rows or steps."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
