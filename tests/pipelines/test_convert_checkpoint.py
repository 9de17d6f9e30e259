import functools
import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest

import albert_tf
from albert_tf.checkpoints import name_map
from albert_tf.text.tokenization import AlbertTokenizer
from tests import sentences
from tests.albert_tf.checkpoints.test_name_map import convert, to_google
from tests.builders import write_pretrained
from tests.jobs import run
from tests.vocabularies import unrecorded


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory, tiny_vocabulary):
    """A model directory with weights and a vocabulary for cased text."""
    place = tmp_path_factory.mktemp("model")
    directory = place / "model"
    write_pretrained(directory, unrecorded(tiny_vocabulary, place), do_lower_case=False)
    return directory


@functools.cache
def contents(path):
    """Returns the config, weights and vocabulary of a model for cased text."""
    model, tokenizer = albert_tf.from_pretrained(path)
    assert not tokenizer.settings.do_lower_case
    return model.config, name_map.arrays(model), tokenizer.sha256


def assert_same_model(path, model_dir):
    np.testing.assert_equal(contents.__wrapped__(path), contents(model_dir))


@pytest.mark.parametrize("output_format", ["albert_tf", "huggingface"])
def test_there_and_back(output_format, model_dir, tmp_path):
    there = convert(model_dir, f"{tmp_path}/there/", output_format)
    assert_same_model(convert(there, tmp_path / "back"), model_dir)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "there"]


def test_the_best_weights_and_one_checkpoint(model_dir, tmp_path):
    run = shutil.copytree(model_dir, tmp_path / "run")
    (run / "checkpoints").rename(run / "best")
    (run / "checkpoints").mkdir()
    checkpoint = next((run / "best").glob("*.index")).with_suffix("")
    google = to_google(checkpoint, tmp_path / "of_google")
    for path in (run / "best", checkpoint, google, google / "model.ckpt-best"):
        assert_same_model(convert(path, tmp_path / f"from_{path.name}"), model_dir)


def test_a_pretrained_model_for_huggingface_has_settings(model_dir, tmp_path):
    run = shutil.copytree(model_dir, tmp_path / "run")
    (run / "run.json").write_text('{"max_seq_length": 48}')
    convert(run, tmp_path / "hf", "huggingface")
    kept = {"do_lower_case": False, "remove_space": True, "keep_accents": False}
    kept |= {"latex_quotes": False, "cls_token": "[CLS]", "model_max_length": 48}
    ours = convert(tmp_path / "hf", tmp_path / "ours")
    for source in (run, ours):
        albert_tf.save_pretrained(*albert_tf.from_pretrained(source), f"{source}_saved")
    for name in ("hf", "run_saved", "ours_saved"):
        written = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        assert kept.items() <= written.items()


def test_vocabulary_from_elsewhere_or_of_another_model(model_dir, tmp_path, tiny_vocabulary):
    other = str(sentences.train_vocabulary(tmp_path))
    google, back = to_google(model_dir, tmp_path / "google"), tmp_path / "back"
    with pytest.raises(ValueError, match=r"has \d+ pieces, but the model embeds"):
        convert(google, back, vocabulary={"spm_model_file": other})
    (google / "spiece.model").unlink()
    with pytest.raises(ValueError, match=r"holds 0 vocabularies .* --spm_model_file"):
        convert(google, back)
    assert not back.exists()
    path = str(unrecorded(tiny_vocabulary, tmp_path))
    convert(google, back, vocabulary={"spm_model_file": path, "do_lower_case": False})
    assert_same_model(back, model_dir)


def test_wordpiece_model(model_dir, tmp_path, capsys):
    google = to_google(model_dir, tmp_path / "google")
    (google / "spiece.model").unlink()
    (google / "tokenizer_config.json").unlink()
    pieces = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n北\n京\n"
    (google / "vocab_chinese.txt").write_text(pieces, encoding="utf-8")
    ours = convert(google, tmp_path / "ours")
    assert "rows beyond the vocabulary's 7 pieces are dropped" in capsys.readouterr().out
    assert (ours / "vocab.txt").read_text(encoding="utf-8") == pieces
    _, tokenizer = albert_tf.from_pretrained(ours)
    assert tokenizer.encode("北京") == [5, 6]
    hf = convert(ours, tmp_path / "hf", "huggingface")
    settings = json.loads((hf / "tokenizer_config.json").read_text())
    assert settings["strip_accents"] and (hf / "vocab.txt").exists()


def test_failure_leaves_nothing(model_dir, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(AlbertTokenizer, "save", Mock(side_effect=OSError("No space left on device")))
        convert(model_dir, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match=r".*mine' exists already"):
        convert(model_dir, tmp_path / "mine")
    with pytest.raises(ValueError, match=f"'{tmp_path}/mine' is no model"):
        convert(tmp_path / "mine", tmp_path / "out")
    for flag, message in (
        ("--allow_missing=(", "--allow_missing='(' is not a regular expression: missing )"),
        ("--has_pairs", "--has_pairs is for fine-tuned models: omit it"),
    ):
        flags = f"--input={model_dir}", f"--output_dir={tmp_path}/out", flag
        _, err = run("pipelines.convert_checkpoint", *flags, exit_code=2)
        assert f"error: {message}" in err
