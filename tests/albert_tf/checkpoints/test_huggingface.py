"""What Hugging Face's directories hold beside plain weights, and how their damage is told."""

from __future__ import annotations

import re

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from albert_tf.checkpoints import huggingface, name_map
from albert_tf.storage.errors import UserError
from tests.albert_tf.checkpoints.test_name_map import (
    assert_same,
    change_config,
    make_model,
    weights_of,
    without,
    write,
)


@pytest.fixture
def out(tmp_path):
    """A directory in Hugging Face's format."""
    write("huggingface", tmp_path, make_model())
    return tmp_path


def change_huggingface(directory, change):
    path = directory / "model.safetensors"
    tensors = change(safetensors.numpy.load_file(path))
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def test_encoder_alone_of_huggingface(out):
    """An AlbertModel: no prefix, no heads; a buffer of older releases."""

    def change(tensors):
        encoder = {
            name[len("albert.") :]: array
            for name, array in tensors.items()
            if name.startswith("albert.")
        }
        return {**encoder, "embeddings.position_ids": np.arange(19)[np.newaxis]}

    change_huggingface(out, change)
    with pytest.raises(ValueError, match=r"model.safetensors lacks predictions.dense.weight"):
        huggingface.read(str(out))
    imported = huggingface.read(str(out), allow_missing="^(predictions|sop)")
    built, fresh = name_map.build(imported, "out")
    assert len(fresh) == 7
    pooler = weights_of(make_model())["encoder/pooler/kernel"]
    np.testing.assert_array_equal(built.encoder.pooler.kernel, pooler)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.astype("int64"), "holds int64, expected floating-point weights"),
        (lambda a: a > 0, "holds bool, expected floating-point weights"),
        (lambda a: a / np.float32(0), "has values that are NaN or infinite"),
        (lambda a: a.astype("float64") + 1e300, "has values that are NaN or infinite"),
    ],
    ids=["integers", "bools", "NaN", "beyond float32"],
)
def test_what_is_no_weight(change, message, out):
    name = "albert.pooler.weight"
    change_huggingface(out, lambda t: {**t, name: change(t[name])})
    with pytest.raises(UserError, match=rf"model\.safetensors: {name} {message}"):
        huggingface.read(str(out))


def test_a_masked_lm_of_huggingface_has_no_pooler(out):
    change_huggingface(out, without("albert.pooler.", "sop_classifier.classifier."))
    with pytest.raises(UserError, match=r"lacks .*; --allow_missing='(.*)' starts") as error:
        huggingface.read(str(out))
    [flag] = re.findall("'(.*)' starts", str(error.value))
    named = huggingface.read(str(out), allow_missing=flag)
    change_config(out, "config.json", architectures=["AlbertForMaskedLM"])
    imported = huggingface.read(str(out))
    assert imported.weights.keys() == named.weights.keys()
    _, fresh = name_map.build(imported, "out")
    expected = {"encoder/pooler", "sentence_order/classifier"}
    assert {name.rpartition("/")[0] for name in fresh} == expected
    # What such a model does have must be there.
    change_huggingface(out, without("predictions.bias"))
    with pytest.raises(UserError, match=r"lacks predictions\.bias;"):
        huggingface.read(str(out))


def test_tied_copies_of_huggingface(out):
    words, bias = "albert.embeddings.word_embeddings.weight", "predictions.bias"

    def with_copies(tensors):
        copies = {"decoder.weight": tensors[words], "decoder.bias": tensors[bias]}
        return {**tensors, **{f"predictions.{name}": array for name, array in copies.items()}}

    change_huggingface(out, with_copies)
    huggingface.read(str(out))
    change_huggingface(out, without(bias))
    huggingface.read(str(out))
    change_huggingface(out, lambda tensors: {**tensors, words: tensors[words] + 1})
    with pytest.raises(ValueError, match=r"predictions.decoder.weight differs from albert.emb"):
        huggingface.read(str(out))


def test_half_precision_of_huggingface(out):
    def change(tensors):
        dtypes = {True: tf.bfloat16.as_numpy_dtype, False: np.float16}
        return {name: array.astype(dtypes["albert" in name]) for name, array in tensors.items()}

    change_huggingface(out, change)
    weights = huggingface.read(str(out)).weights
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}


def test_a_projection_that_is_none_of_ours(tmp_path):
    write("huggingface", tmp_path, make_model(embedding_size=12))
    name = "albert.encoder.embedding_hidden_mapping_in.weight"
    change_huggingface(tmp_path, lambda tensors: {**tensors, name: 2 * tensors[name]})
    with pytest.raises(ValueError, match=r"is not the identity, but embedding_size equals"):
        huggingface.read(str(tmp_path))


def test_notes_about_config_of_huggingface(out):
    change_config(out, "config.json", hidden_act="gelu", layer_norm_eps=1e-5)
    imported = huggingface.read(str(out))
    assert imported.config.hidden_act == "gelu"
    assert "tanh form" in imported.notes[0] and "1e-05" in imported.notes[1]


@pytest.mark.parametrize("length", [90, 90_000])
def test_damaged_file_of_huggingface(length, out):
    (out / "model.safetensors").write_bytes(b"0123456789" * (length // 10))
    with pytest.raises(ValueError, match=r"model.safetensors' is damaged or no file of its kind"):
        huggingface.read(str(out))


def test_pytorch_file(out):
    tensors = safetensors.numpy.load_file(out / "model.safetensors")
    (out / "model.safetensors").unlink()
    path = out / "pytorch_model.bin"
    path.write_bytes(b"no zip" * 9999)
    try:
        import torch
    except ImportError:
        with pytest.raises(ValueError, match=r"pytorch_model.bin: reading it needs PyTorch"):
            huggingface.read(str(out))
        return
    with pytest.raises(ValueError, match=r"pytorch_model.bin' is damaged"):
        huggingface.read(str(out))
    torch.save({name: torch.tensor(array) for name, array in tensors.items()}, path)
    assert_same(huggingface.read(str(out)).weights, make_model())
