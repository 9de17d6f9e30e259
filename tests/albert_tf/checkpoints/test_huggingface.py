import re

import numpy as np
import pytest
import safetensors.numpy

import albert_tf
from albert_tf.checkpoints import huggingface, name_map
from albert_tf.storage.errors import UserError
from tests.albert_tf.checkpoints.test_name_map import (
    build,
    change_config,
    make_model,
    without,
    write,
)

BERT = {"parameter_sharing": "none", "embedding_size": 20, "hidden_act": "gelu_erf"}


@pytest.fixture
def out(tmp_path):
    """A directory in Hugging Face's format."""
    write("huggingface", tmp_path, make_model())
    return tmp_path


def change_huggingface(directory, change):
    path = directory / "model.safetensors"
    tensors = change(safetensors.numpy.load_file(path))
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("family", ["albert", "bert"])
def test_an_encoder_alone(family, tmp_path):
    """No prefix, no heads; a buffer of older releases; normalizations as TensorFlow names them."""
    model = make_model(**BERT if family == "bert" else {})
    write("huggingface", tmp_path, model)

    def renamed(name):
        name = name.removeprefix(f"{family}.").replace("LayerNorm.weight", "LayerNorm.gamma")
        return name.replace("LayerNorm.bias", "LayerNorm.beta")

    def change(tensors):
        encoder = {renamed(name): a for name, a in tensors.items() if family in name}
        return {**encoder, "embeddings.position_ids": np.arange(19)[np.newaxis]}

    change_huggingface(tmp_path, change)
    with pytest.raises(ValueError, match=r"model.safetensors lacks .*predictions.*--allow_missing"):
        huggingface.read(str(tmp_path))
    imported = huggingface.read(str(tmp_path), allow_missing=r"^(cls\.|predictions|sop)")
    built, fresh = build(imported)
    assert len(fresh) == 7
    found = name_map.arrays(built)
    for name, array in name_map.arrays(model).items():
        assert name in fresh or np.array_equal(found[name], array), name


POOLER, PROJECTION = "albert.pooler.weight", "albert.encoder.embedding_hidden_mapping_in.weight"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (POOLER, lambda a: a.astype("int64"), "holds int64, expected floating-point weights"),
        (POOLER, lambda a: a.astype("float64") + 1e300, "has values that are NaN or infinite"),
        (PROJECTION, lambda a: 2 * a, "is not the identity, but embedding_size equals"),
    ],
    ids=["integers", "beyond float32", "a projection that is none of ours"],
)
def test_what_is_no_weight(name, change, message, tmp_path):
    write("huggingface", tmp_path, make_model(embedding_size=20))
    change_huggingface(tmp_path, lambda t: {**t, name: change(t[name])})
    with pytest.raises(UserError, match=rf"model\.safetensors: {name} {message}"):
        huggingface.read(str(tmp_path))


def test_a_masked_lm_of_huggingface_has_no_pooler(out):
    change_huggingface(out, without("albert.pooler.", "sop_classifier.classifier."))
    with pytest.raises(UserError, match=r"lacks .*; --allow_missing='(.*)' starts") as error:
        huggingface.read(str(out))
    [flag] = re.findall("'(.*)' starts", str(error.value))
    named = huggingface.read(str(out), allow_missing=flag)
    change_config(out, "config.json", architectures=["AlbertForMaskedLM"])
    imported = huggingface.read(str(out))
    assert imported.weights.keys() == named.weights.keys()
    _, fresh = build(imported)
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


def test_damaged_file_of_huggingface(out):
    for content in (b"short", b"0123456789" * 9_000):
        (out / "model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=r"safetensors' is damaged or no file of its kind"):
            huggingface.read(str(out))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model-00001-of-00002.safetensors"])
def test_weights_in_other_files(name, out):
    (out / "model.safetensors").rename(out / name)
    (out / "checkpoints").mkdir()  # those of a trainer of transformers, not of ours
    for more in ("config.json", "task.json"):
        (out / more).touch()
        with pytest.raises(UserError, match=r"no model\.safetensors: load it .* and save it"):
            albert_tf.from_pretrained(out)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "x" * 1_000}, r"model_type 'x{99}\.\.\. \(1,002 characters\), expected"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is true"),
        ({}, "lacks weights of the encoder: bert.encoder.layer.2"),  # which never start afresh
    ],
)
def test_what_is_no_bert(changes, message, tmp_path):
    write("huggingface", tmp_path, make_model(**BERT))
    change_config(tmp_path, "config.json", **changes)
    change_huggingface(tmp_path, without("bert.encoder.layer.2."))
    change_huggingface(tmp_path, lambda tensors: {**tensors, "x": np.zeros(99999)})
    with pytest.raises(UserError, match=message):
        huggingface.read(str(tmp_path), allow_missing=".")
