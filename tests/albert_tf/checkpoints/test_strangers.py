"""Weights and vocabularies of strangers: hostile files run nothing."""

import shutil

import numpy as np
import pytest

from albert_tf.checkpoints import google
from albert_tf.text.tokenization import AlbertTokenizer
from tests.albert_tf.checkpoints.test_name_map import make_model, write


@pytest.fixture(scope="module")
def trained():
    return make_model()


def test_several_checkpoints(tmp_path, trained):
    write("google", tmp_path, trained)
    for file in tmp_path.glob("model.ckpt-best.*"):
        shutil.copy(file, file.with_name(file.name.replace("best", "2")))
    with pytest.raises(ValueError, match="holds 2 checkpoints: name one of them by prefix"):
        google.find(str(tmp_path))
    prefix = str(tmp_path / "model.ckpt-2")
    assert google.find(prefix) == (prefix, str(tmp_path))


def proto_field(number, data):
    """A field of bytes in protobuf's wire format, of at most 2 MB."""
    length = bytes([len(data) & 127 | 128, len(data) >> 7 & 127 | 128, len(data) >> 14])
    return bytes([number << 3 | 2]) + length + data


# Added to a vocabulary's file: a piece (field 1), or what the normalizer (3) does (its field 2).
HOSTILE_VOCABULARIES = {
    "a long piece": proto_field(1, proto_field(1, b"x" * 300_000)),
    "no UTF-8": proto_field(1, proto_field(1, b"\xff\xfe")),
    "NUL": proto_field(1, proto_field(1, b"\0")),
    "a piece twice": 2 * proto_field(1, proto_field(1, b"twice")),
    "a trie that leads out of its array": proto_field(
        3, proto_field(2, np.array([1024, 0x7FFFFE00, *[0] * 255], np.uint32).tobytes() + b"abc\0")
    ),
    "a trie that is longer than its file": proto_field(3, proto_field(2, b"\xff" * 99)),
}


@pytest.mark.parametrize("more", HOSTILE_VOCABULARIES.values(), ids=HOSTILE_VOCABULARIES)
def test_a_hostile_vocabulary(more, tiny_vocabulary, tmp_path):
    """SentencePiece must refuse them: the older one of tensorflow-text would crash or worse."""
    good = tiny_vocabulary.read_bytes()
    (tmp_path / "good.model").write_bytes(good + proto_field(1, proto_field(1, b"more")))
    tokenizer = AlbertTokenizer(str(tmp_path / "good.model"), do_lower_case=True)
    assert tokenizer.id_to_piece(tokenizer.vocab_size - 1) == "more"
    (tmp_path / "spiece.model").write_bytes(good + more)
    with pytest.raises(ValueError, match=r"spiece.model' is not a SentencePiece model"):
        AlbertTokenizer(str(tmp_path / "spiece.model"))
