"""What Hugging Face's directories hold beside plain weights, and how their damage is told."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from albert_tf.checkpoints import huggingface, name_map
from albert_tf.errors import UserError
from tests.albert_tf.checkpoints.test_name_map import make_model, weights_of, without, write


def change_huggingface(directory, change):
    path = directory / "model.safetensors"
    tensors = change(safetensors.numpy.load_file(path))
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def test_encoder_alone_of_huggingface(tmp_path):
    """An AlbertModel: no prefix, no heads; a buffer of older releases."""
    write("huggingface", tmp_path / "out", model := make_model())

    def change(tensors):
        encoder = {
            name[len("albert.") :]: array
            for name, array in tensors.items()
            if name.startswith("albert.")
        }
        return {**encoder, "embeddings.position_ids": np.arange(19)[np.newaxis]}

    change_huggingface(tmp_path / "out", change)
    with pytest.raises(ValueError, match=r"model.safetensors lacks predictions.dense.weight"):
        huggingface.read(str(tmp_path / "out"))
    imported = huggingface.read(str(tmp_path / "out"), allow_missing="^(predictions|sop)")
    built, fresh = name_map.build(imported, "out")
    assert len(fresh) == 7
    np.testing.assert_array_equal(built.encoder.pooler.kernel, model.encoder.pooler.kernel)


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
def test_what_is_no_weight(change, message, tmp_path):
    write("huggingface", tmp_path / "out", make_model())
    name = "albert.pooler.weight"
    change_huggingface(tmp_path / "out", lambda t: {**t, name: change(t[name])})
    with pytest.raises(UserError, match=rf"model\.safetensors: {name} {message}"):
        huggingface.read(str(tmp_path / "out"))


def test_a_masked_lm_of_huggingface_has_no_pooler(tmp_path):
    write("huggingface", tmp_path / "out", make_model())
    absent = ("albert.pooler.weight", "albert.pooler.bias")
    sentence_order = tuple(f"sop_classifier.classifier.{part}" for part in ("weight", "bias"))
    change_huggingface(tmp_path / "out", without(*absent, *sentence_order))
    path = tmp_path / "out/config.json"
    with pytest.raises(UserError, match=r"lacks .*; --allow_missing='(.*)' starts") as error:
        huggingface.read(str(tmp_path / "out"))
    [flag] = re.findall("'(.*)' starts", str(error.value))
    named = huggingface.read(str(tmp_path / "out"), allow_missing=flag)
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "architectures": ["AlbertForMaskedLM"]})
    )
    imported = huggingface.read(str(tmp_path / "out"))
    assert imported.weights.keys() == named.weights.keys()
    _, fresh = name_map.build(imported, "out")
    assert {name.rpartition("/")[0] for name in fresh} == {
        "encoder/pooler",
        "sentence_order/classifier",
    }
    # What such a model does have must be there.
    change_huggingface(tmp_path / "out", without("predictions.bias"))
    with pytest.raises(UserError, match=r"lacks predictions\.bias;"):
        huggingface.read(str(tmp_path / "out"))


def test_tied_copies_of_huggingface(tmp_path):
    write("huggingface", tmp_path / "out", make_model())
    words, bias = "albert.embeddings.word_embeddings.weight", "predictions.bias"

    def with_copies(tensors):
        copies = {"decoder.weight": tensors[words], "decoder.bias": tensors[bias]}
        return {**tensors, **{f"predictions.{name}": array for name, array in copies.items()}}

    change_huggingface(tmp_path / "out", with_copies)
    huggingface.read(str(tmp_path / "out"))
    change_huggingface(tmp_path / "out", without(bias))
    huggingface.read(str(tmp_path / "out"))
    change_huggingface(tmp_path / "out", lambda tensors: {**tensors, words: tensors[words] + 1})
    with pytest.raises(ValueError, match=r"predictions.decoder.weight differs from albert.emb"):
        huggingface.read(str(tmp_path / "out"))


def test_half_precision_of_huggingface(tmp_path):
    write("huggingface", tmp_path / "out", make_model())
    bfloat16 = tf.bfloat16.as_numpy_dtype
    change_huggingface(
        tmp_path / "out",
        lambda tensors: {
            name: array.astype(bfloat16 if "albert" in name else np.float16)
            for name, array in tensors.items()
        },
    )
    weights = huggingface.read(str(tmp_path / "out")).weights
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}


def test_a_projection_that_is_none_of_ours(tmp_path):
    write("huggingface", tmp_path / "out", make_model(embedding_size=12))
    name = "albert.encoder.embedding_hidden_mapping_in.weight"
    change_huggingface(tmp_path / "out", lambda tensors: {**tensors, name: 2 * tensors[name]})
    with pytest.raises(ValueError, match=r"is not the identity, but embedding_size equals"):
        huggingface.read(str(tmp_path / "out"))


def test_notes_about_config_of_huggingface(tmp_path):
    write("huggingface", tmp_path / "out", make_model())
    path = tmp_path / "out/config.json"
    values = {**json.loads(path.read_text()), "hidden_act": "gelu", "layer_norm_eps": 1e-5}
    path.write_text(json.dumps(values))
    imported = huggingface.read(str(tmp_path / "out"))
    assert imported.config.hidden_act == "gelu"
    assert "tanh form" in imported.notes[0] and "1e-05" in imported.notes[1]


@pytest.mark.parametrize("length", [90, 90_000])
def test_damaged_file_of_huggingface(length, tmp_path):
    write("huggingface", tmp_path / "out", make_model())
    (tmp_path / "out/model.safetensors").write_bytes(b"0123456789" * (length // 10))
    with pytest.raises(ValueError, match=r"model.safetensors' is damaged or no file of its kind"):
        huggingface.read(str(tmp_path / "out"))


def test_pytorch_file(tmp_path):
    write("huggingface", tmp_path / "out", model := make_model())
    safe = tmp_path / "out/model.safetensors"
    tensors = safetensors.numpy.load_file(safe)
    safe.unlink()
    path = tmp_path / "out/pytorch_model.bin"
    path.write_bytes(b"no zip" * 9999)
    try:
        import torch
    except ImportError:
        with pytest.raises(ValueError, match=r"pytorch_model.bin: reading it needs PyTorch"):
            huggingface.read(str(tmp_path / "out"))
        return
    with pytest.raises(ValueError, match=r"pytorch_model.bin' is damaged"):
        huggingface.read(str(tmp_path / "out"))
    torch.save({name: torch.tensor(array) for name, array in tensors.items()}, path)
    imported = huggingface.read(str(tmp_path / "out"))
    for name, array in weights_of(model).items():
        assert np.array_equal(imported.weights[name], array), name
