"""Weights and vocabularies of strangers: hostile files run nothing."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import google, saved_model
from albert_tf.text.tokenization import AlbertTokenizer
from tests.albert_tf.checkpoints.test_name_map import make_model, write
from tests.vocabularies import unrecorded


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


@pytest.fixture(scope="module")
def hostile_export(tmp_path_factory, trained, tiny_vocabulary):
    """The files of an export around a graph that writes a file of its choice when it is run."""
    directory = tmp_path_factory.mktemp("hostile")
    tokenizer = AlbertTokenizer(unrecorded(tiny_vocabulary, directory), False, True)
    config = dataclasses.replace(trained.config, vocab_size=tokenizer.vocab_size)
    model = albert_tf.AlbertForPreTraining(config)
    model.create_variables()

    class Hostile(tf.train.Checkpoint):
        @tf.function(input_signature=[])
        def tokenization_info(self):
            written = tf.io.write_file(str(directory / "of_its_choice"), "x")
            with tf.control_dependencies([written]):
                return {"do_lower_case": tf.constant(False)}

    module = Hostile()
    module.variables = list(model.encoder.variables)
    path = directory / "1"
    tf.saved_model.save(module, str(path), {"tokenization_info": module.tokenization_info})
    tokenizer.save(str(path / "assets"))
    config.write(str(path / "assets/albert_config.json"))
    (path / "assets.extra").mkdir()
    settings = {"do_lower_case": False, "keep_accents": True, "latex_quotes": False}
    provenance = json.dumps({**settings, "max_seq_length": 8})
    (path / "assets.extra/export.json").write_text(provenance)
    return path, model


def test_an_export_gives_its_encoder_and_no_function_of_it_is_run(hostile_export):
    path, model = hostile_export
    with pytest.warns(UserWarning, match="the heads are freshly initialised"):
        again, tokenizer = albert_tf.from_pretrained(path)
    assert again.config == model.config and tokenizer.settings == (False, True, False)
    np.testing.assert_equal(again.encoder.get_weights(), model.encoder.get_weights())
    assert not (path.parent / "of_its_choice").exists()
    with pytest.raises(ValueError, match="masked LM has random weights"):
        albert_tf.SentenceScorer(again, tokenizer)
    albert_tf.TextEmbedder(again, tokenizer)


def test_an_export_of_an_embedder_is_loaded_whole(hostile_export, tmp_path):
    path, model = hostile_export
    shutil.copytree(path, tmp_path / "1")
    task = {"task": "embedding", "kind": "embedder", "pooling": "cls", "max_seq_length": 16}
    (tmp_path / "1/assets/task.json").write_text(json.dumps(task))
    again, tokenizer = albert_tf.from_pretrained(tmp_path / "1")
    np.testing.assert_equal(again.encoder.get_weights(), model.encoder.get_weights())
    batch = tokenizer(["one", "a river " * 9], max_length=8)
    found = albert_tf.TextEmbedder(again, tokenizer)(["one", "a river " * 9])
    expected = model.encoder(batch)["sequence_output"][:, 0]
    np.testing.assert_allclose(found, tf.math.l2_normalize(expected, axis=1), atol=1e-5)


def test_damaged_exports(hostile_export, tmp_path):
    path, model = hostile_export
    path = shutil.copytree(path, tmp_path / "export")
    (path / "assets.extra/export.json").unlink()
    with pytest.raises(ValueError, match=r"SavedModel without assets.extra/export.json"):
        saved_model.read_config_and_tokenizer(str(path))
    for file in (path / "variables").iterdir():
        file.write_bytes(file.read_bytes()[:99])
    with pytest.raises(ValueError, match=r"does not hold its config.s weights"):
        saved_model.restore_encoder(model.encoder, str(path))


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
