"""Weights and vocabularies of strangers: hostile files cost nothing and run nothing."""

import dataclasses
import json
import shutil
import sys
import types
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import google, huggingface, model_directory, name_map, saved_model
from albert_tf.text.tokenization import AlbertTokenizer
from tests.albert_tf.checkpoints.test_name_map import change_config, make_model, read_tensors, write
from tests.albert_tf.test_parity import save_tensors
from tests.vocabularies import unrecorded


@pytest.fixture(scope="module")
def trained():
    return make_model()


def tensor(array):
    """What torch gives for weights."""
    found = Mock(numel=lambda: array.size)
    found.detach().float().numpy.return_value = array
    return found


def fake_torch(monkeypatch, version, tensors=None):
    def load(path, map_location, weights_only):
        assert tensors is not None, "read by a version that may run its code"
        assert weights_only
        return tensors

    module = types.SimpleNamespace(__version__=version, load=load)
    monkeypatch.setitem(sys.modules, "torch", module)


@pytest.fixture
def torch_dir(tmp_path, trained):
    write("huggingface", tmp_path / "out", trained)
    (tmp_path / "out/model.safetensors").rename(tmp_path / "out/pytorch_model.bin")
    return tmp_path / "out"


def test_torch_reads_from_a_version_on(torch_dir, trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match=r"pytorch_model.bin: reading it needs PyTorch"):
        huggingface.read(str(torch_dir))
    for version in ("2.2.0", "2.9.1+cu121"):
        fake_torch(monkeypatch, version)
        with pytest.raises(ValueError, match=r"can run code: pip install 'torch>=2.10', or save"):
            huggingface.read(str(torch_dir))
    arrays = name_map.from_ours(name_map.arrays(trained), trained.config, "torch")
    tensors = {name: tensor(array) for name, array in arrays.items()}
    fake_torch(monkeypatch, "3.0.0a0+git12", tensors)
    assert huggingface.read(str(torch_dir)).config == trained.config
    (torch_dir / "pytorch_model.bin").rename(torch_dir / "pytorch_model-1.bin")
    index = {"weight_map": dict.fromkeys(tensors, "pytorch_model-1.bin")}
    (torch_dir / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert huggingface.read(str(torch_dir)).config == trained.config
    (torch_dir / "pytorch_model.bin.index.json").rename(torch_dir / "tf_model.h5")
    with pytest.raises(ValueError, match=r"in tf_model.h5 alone, .*from_tf=True"):
        albert_tf.from_pretrained(torch_dir)


CALLS_BYTEARRAY = b"cbuiltins\nbytearray\nM\xff\xff\x85R." + bytes(10_000)


@pytest.mark.parametrize(
    ("content", "times", "compression", "message"),
    [
        (bytes(10_000_000), 1, zipfile.ZIP_DEFLATED, "it is compressed"),
        (bytes(10_000), 5, zipfile.ZIP_STORED, "it is compressed"),
        (CALLS_BYTEARRAY, 1, zipfile.ZIP_STORED, "it holds a bytearray"),
    ],
    ids=["compressed", "one file many times", "bytearray"],
)
def test_a_torch_file_that_takes_more_than_it_is_long(
    content, times, compression, message, torch_dir, monkeypatch
):
    fake_torch(monkeypatch, "2.10.0")
    with zipfile.ZipFile(torch_dir / "pytorch_model.bin", "w", compression) as archive:
        archive.writestr("data.pkl", content)
        archive.filelist *= times
    with pytest.raises(ValueError, match=message):
        huggingface.read(str(torch_dir), allow_missing=".")


def grow(config_file):
    """A config of 16 GB for weights of some KB."""
    sizes = {"vocab_size": 800_000, "embedding_size": 5_000}
    change_config(config_file.parent, config_file.name, **sizes)


@pytest.mark.parametrize("form", ["google", "huggingface", "ours"])
def test_a_config_larger_than_its_files(form, trained, tmp_path, monkeypatch):
    directory = tmp_path / "out"
    if form == "ours":
        model_directory.save_for_pretraining(trained, str(directory))
    else:
        write(form, directory, trained)
    grow(directory / ("config.json" if form == "huggingface" else "albert_config.json"))
    monkeypatch.setattr(albert_tf.AlbertForPreTraining, "create_variables", None)
    with pytest.raises(ValueError, match=r"bytes, but its config describes 4,00\d,\d{3},\d{3} wei"):
        albert_tf.from_pretrained(directory)


# One of 40 GB; or several, none of which alone is larger than the file.
@pytest.mark.parametrize(("number", "size"), [(1, 10_000_000_000), (9, 4_000)])
def test_an_index_that_declares_more_than_its_data(number, size, tmp_path, trained):
    write("google", tmp_path, trained)
    model_directory.save_for_pretraining(trained, str(tmp_path / "ours"))
    more = {f"more{i}": np.zeros(2, np.float32) for i in range(number)}
    for path, read, directory in (
        ("model.ckpt-best", google.read, tmp_path),
        ("ours/checkpoints/ckpt-1", albert_tf.from_pretrained, tmp_path / "ours"),
    ):
        tensors = read_tensors(str(tmp_path / path))
        slices = [""] * len(tensors) + [f"{size} 0,2"] * number  # TensorFlow declares `size`
        save_tensors(str(tmp_path / path), {**tensors, **more}, slices)
        with pytest.raises(ValueError, match="its index declares more than its data hold"):
            read(str(directory))


def test_several_checkpoints(tmp_path, trained):
    write("google", tmp_path, trained)
    for file in tmp_path.glob("model.ckpt-best.*"):
        shutil.copy(file, file.with_name(file.name.replace("best", "2")))
    with pytest.raises(ValueError, match="holds 2 checkpoints: name one of them by prefix"):
        google.read(str(tmp_path))
    assert google.read(str(tmp_path / "model.ckpt-2")).config == trained.config


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
    (path / "assets.extra/export.json").write_text(
        json.dumps({"do_lower_case": False, "keep_accents": True, "latex_quotes": False})
    )
    return path, model


def test_no_function_of_a_saved_model_is_run(hostile_export):
    path, model = hostile_export
    config, tokenizer = saved_model.read_config_and_tokenizer(str(path))
    assert config == model.config and tokenizer.settings == (False, True, False)
    again = albert_tf.AlbertForPreTraining(config)
    again.create_variables()
    saved_model.restore_encoder(again.encoder, str(path))
    np.testing.assert_equal(again.encoder.get_weights(), model.encoder.get_weights())
    assert not (path.parent / "of_its_choice").exists()


def test_damaged_exports(hostile_export, tmp_path):
    path, model = hostile_export
    path = shutil.copytree(path, tmp_path / "export")
    provenance = path / "assets.extra/export.json"
    for content in ("{}", '{"do_lower_case": 1}'):
        provenance.write_text(content)
        with pytest.raises(ValueError, match=r"export.json: do_lower_case is .*expected true or f"):
            saved_model.read_config_and_tokenizer(str(path))
    grow(path / "assets/albert_config.json")
    with pytest.raises(ValueError, match=r"its config's weights: .* describes 4,00\d,\d{3},"):
        saved_model.read_config_and_tokenizer(str(path))
    provenance.unlink()
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
