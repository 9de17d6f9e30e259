"""The program around the importers: every kind of input, whole outputs, clear refusals."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import model_directory, name_map
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.convert_checkpoint import convert
from tests import sentences
from tests.builders import tiny_config
from tests.jobs import run


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory, tiny_vocabulary):
    """A model directory with weights and a vocabulary for cased text."""
    tokenizer = AlbertTokenizer(str(tiny_vocabulary), do_lower_case=False)
    directory = str(tmp_path_factory.mktemp("model") / "model")
    model = AlbertForPreTraining(tiny_config(vocab_size=tokenizer.vocab_size, num_hidden_layers=3))
    model.create_variables()
    model_directory.save_for_pretraining(model, directory)
    tokenizer.save(directory)
    return directory


def assert_same_model(path, model_dir):
    actual, actual_dir = model_directory.load_for_pretraining(path)
    expected, _ = model_directory.load_for_pretraining(model_dir)
    assert actual.config == expected.config
    variables = name_map.model_variables(actual)
    for name, variable in name_map.model_variables(expected).items():
        np.testing.assert_array_equal(variables[name], variable)
    tokenizer = AlbertTokenizer.load(actual_dir)
    assert tokenizer.sha256 == AlbertTokenizer.load(model_dir).sha256
    assert not tokenizer.do_lower_case


@pytest.mark.parametrize("output_format", ["albert_tf", "huggingface", "google"])
def test_there_and_back(output_format, model_dir, tmp_path, capsys):
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    convert(input_path=model_dir, output_dir=there + "/", output_format=output_format)
    convert(input_path=there, output_dir=back)
    assert_same_model(back, model_dir)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "there"]
    assert f"wrote        {back} (albert_tf)" in capsys.readouterr().out


def test_one_checkpoint_and_a_prefix(model_dir, tmp_path):
    google, back = str(tmp_path / "google"), str(tmp_path / "back")
    checkpoint = model_directory.find_checkpoint(model_dir)[1]
    convert(input_path=checkpoint, output_dir=google, output_format="google")
    convert(input_path=google + "/model.ckpt-best", output_dir=back)
    assert_same_model(back, model_dir)


def test_the_best_weights(model_dir, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(model_dir, run)
    (run / "checkpoints").rename(run / "best")
    (run / "checkpoints").mkdir()
    for path in (run / "best", *(str(file)[:-6] for file in (run / "best").glob("*.index"))):
        output_dir = str(tmp_path / f"of_{os.path.basename(path)}")
        convert(input_path=str(path), output_dir=output_dir)
        assert_same_model(output_dir, model_dir)


def test_tokenizer_settings_of_huggingface(model_dir, tmp_path):
    convert(input_path=model_dir, output_dir=str(tmp_path / "hf"), output_format="huggingface")
    assert json.loads((tmp_path / "hf/tokenizer_config.json").read_text()) == {
        "tokenizer_class": "AlbertTokenizer",
        "do_lower_case": False,
        "remove_space": True,
        "keep_accents": False,
        "model_max_length": 67,
    }


def test_model_card_of_a_pretrained_model(model_dir, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(model_dir, run)
    (run / "run.json").write_text('{"learning_rate": 0.003, "seed": 5, "mixed_precision": null}')
    convert(input_path=str(run), output_dir=str(tmp_path / "hf"), output_format="huggingface")
    card = (tmp_path / "hf/README.md").read_text()
    assert "pipeline_tag: fill-mask" in card and "# ALBERT: pre-trained" in card
    assert "| learning_rate | 0.003 |\n| seed | 5 |\n" in card and "mixed" not in card


def test_vocabulary_from_elsewhere(model_dir, tmp_path, tiny_vocabulary):
    convert(input_path=model_dir, output_dir=str(tmp_path / "google"), output_format="google")
    (tmp_path / "google/spiece.model").unlink()
    google, back = str(tmp_path / "google"), str(tmp_path / "back")
    with pytest.raises(ValueError, match=r"holds 0 vocabularies .* --spm_model_file"):
        convert(input_path=google, output_dir=back)
    assert not (tmp_path / "back").exists()
    convert(
        input_path=google,
        output_dir=back,
        spm_model_file=str(tiny_vocabulary),
        do_lower_case=False,
    )
    assert_same_model(back, model_dir)


def test_wordpiece_model(model_dir, tmp_path, capsys):
    convert(input_path=model_dir, output_dir=str(tmp_path / "google"), output_format="google")
    (tmp_path / "google/spiece.model").unlink()
    (tmp_path / "google/tokenizer_config.json").unlink()
    pieces = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n北\n京\n"
    (tmp_path / "google/vocab_chinese.txt").write_text(pieces, encoding="utf-8")
    convert(input_path=str(tmp_path / "google"), output_dir=str(tmp_path / "ours"))
    assert "embedded pieces, 7 in the vocabulary" in capsys.readouterr().out
    assert (tmp_path / "ours/vocab.txt").read_text(encoding="utf-8") == pieces
    _, tokenizer = albert_tf.from_pretrained(str(tmp_path / "ours"))
    assert tokenizer.encode("北京") == [5, 6]
    ours, hf = str(tmp_path / "ours"), str(tmp_path / "hf")
    convert(input_path=ours, output_dir=hf, output_format="huggingface")
    settings = json.loads((tmp_path / "hf/tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "BertTokenizer"
    assert (tmp_path / "hf/vocab.txt").exists()


def test_vocabulary_of_another_model(model_dir, tmp_path):
    vocabulary = sentences.train_vocabulary(tmp_path)
    pieces = AlbertTokenizer(str(vocabulary)).vocab_size
    convert(input_path=model_dir, output_dir=str(tmp_path / "google"), output_format="google")
    with pytest.raises(ValueError, match=f"has {pieces} pieces, but the model embeds"):
        convert(
            input_path=str(tmp_path / "google"),
            output_dir=str(tmp_path / "back"),
            spm_model_file=str(vocabulary),
        )
    assert not (tmp_path / "back").exists()


def test_existing_output_is_left_alone(model_dir, tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match=r".*mine' exists already"):
        convert(input_path=model_dir, output_dir=str(tmp_path / "mine"))
    assert not list((tmp_path / "mine").iterdir())


def test_failure_leaves_nothing(model_dir, tmp_path, monkeypatch):
    def disk_full(self, directory):
        raise OSError("No space left on device")

    monkeypatch.setattr(AlbertTokenizer, "save", disk_full)
    with pytest.raises(OSError, match="No space"):
        convert(input_path=model_dir, output_dir=str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["nothing", "empty"])
def test_no_model(path, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=f"'.*{path}' is no model: expected"):
        convert(input_path=str(tmp_path / path), output_dir=str(tmp_path / "out"))


def test_program_ends_with_one_line(tmp_path):
    paths = [f"--input={tmp_path}", f"--output_dir={tmp_path}/out"]
    _, err = run("pipelines.convert_checkpoint", *paths, exit_code=2)
    assert err.splitlines()[-1].startswith(f"error: '{tmp_path}' is no model")


def test_missing_heads_by_flag(model_dir, tmp_path, capsys):
    convert(input_path=model_dir, output_dir=str(tmp_path / "google"), output_format="google")
    prefix = str(tmp_path / "google/model.ckpt-best")
    reader = tf.train.load_checkpoint(prefix)
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("bert/")]
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[reader.get_tensor(name) for name in names],
    )
    paths = {"input_path": str(tmp_path / "google"), "output_dir": str(tmp_path / "back")}
    with pytest.raises(ValueError, match=r"lacks cls/.*; --allow_missing='\^\(cls/predictions\|"):
        convert(**paths)
    convert(**paths, allow_missing="^cls/")
    assert "missing, freshly initialised: masked_lm/" in capsys.readouterr().out
    assert model_directory.load_for_pretraining(paths["output_dir"])
