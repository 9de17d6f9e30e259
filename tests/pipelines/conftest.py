"""What tests of several modules here need."""

import pytest

from albert_tf.text.tokenization import AlbertTokenizer


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return AlbertTokenizer(str(tiny_vocabulary))
