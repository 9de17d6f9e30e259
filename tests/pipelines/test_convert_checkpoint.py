import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest

import albert_tf
from albert_tf.checkpoints import name_map
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.convert_checkpoint import convert
from tests import sentences
from tests.albert_tf.checkpoints.test_name_map import change_google, without
from tests.builders import write_pretrained
from tests.jobs import run
from tests.vocabularies import unrecorded


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory, tiny_vocabulary):
    """A model directory with weights and a vocabulary for cased text."""
    place = tmp_path_factory.mktemp("model")
    directory = place / "model"
    write_pretrained(directory, unrecorded(tiny_vocabulary, place), do_lower_case=False)
    return str(directory)


def assert_same_model(path, model_dir):
    actual, tokenizer = albert_tf.from_pretrained(path)
    expected, _ = albert_tf.from_pretrained(model_dir)
    assert actual.config == expected.config
    variables = name_map.model_variables(actual)
    for name, variable in name_map.model_variables(expected).items():
        np.testing.assert_array_equal(variables[name], variable)
    assert tokenizer.sha256 == AlbertTokenizer.load(model_dir).sha256
    assert not tokenizer.settings.do_lower_case


@pytest.mark.parametrize("output_format", ["albert_tf", "huggingface", "google"])
def test_there_and_back(output_format, model_dir, tmp_path):
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    convert(input_path=model_dir, output_dir=there + "/", output_format=output_format)
    convert(input_path=there, output_dir=back)
    assert_same_model(back, model_dir)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "there"]


def test_the_best_weights_and_one_checkpoint(model_dir, tmp_path):
    run = shutil.copytree(model_dir, tmp_path / "run")
    (run / "checkpoints").rename(run / "best")
    (run / "checkpoints").mkdir()
    checkpoint = next((run / "best").glob("*.index")).with_suffix("")
    convert(input_path=str(checkpoint), output_dir=f"{tmp_path}/google", output_format="google")
    of_google = tmp_path / "google/model.ckpt-best"
    for path in (run / "best", checkpoint, of_google):
        convert(input_path=str(path), output_dir=str(tmp_path / path.name))
        assert_same_model(str(tmp_path / path.name), model_dir)


def test_a_pretrained_model_for_huggingface_has_a_card_and_settings(model_dir, tmp_path):
    run = shutil.copytree(model_dir, tmp_path / "run")
    (run / "run.json").write_text('{"max_seq_length": 48, "seed": 5, "mixed_precision": null}')
    convert(input_path=str(run), output_dir=str(tmp_path / "hf"), output_format="huggingface")
    card = (tmp_path / "hf/README.md").read_text()
    assert "pipeline_tag: fill-mask" in card and "# ALBERT: pre-trained" in card
    assert "| max_seq_length | 48 |\n| seed | 5 |\n" in card and "mixed" not in card
    kept = {"do_lower_case": False, "remove_space": True, "keep_accents": False}
    kept |= {"latex_quotes": False, "cls_token": "[CLS]", "model_max_length": 48}
    convert(input_path=str(tmp_path / "hf"), output_dir=str(tmp_path / "ours"))
    for source in (run, tmp_path / "ours"):
        albert_tf.save_pretrained(*albert_tf.from_pretrained(source), f"{source}_saved")
    for name in ("hf", "run_saved", "ours_saved"):
        written = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        assert kept.items() <= written.items()


def test_vocabulary_from_elsewhere_or_of_another_model(model_dir, tmp_path, tiny_vocabulary):
    other = sentences.train_vocabulary(tmp_path)
    google, back = tmp_path / "google", str(tmp_path / "back")
    convert(input_path=model_dir, output_dir=str(google), output_format="google")
    pieces = AlbertTokenizer(str(other)).vocab_size
    with pytest.raises(ValueError, match=f"has {pieces} pieces, but the model embeds"):
        convert(input_path=str(google), output_dir=back, spm_model_file=str(other))
    (google / "spiece.model").unlink()
    with pytest.raises(ValueError, match=r"holds 0 vocabularies .* --spm_model_file"):
        convert(input_path=str(google), output_dir=back)
    assert not (tmp_path / "back").exists()
    vocabulary = {
        "spm_model_file": str(unrecorded(tiny_vocabulary, tmp_path)),
        "text_settings": {"do_lower_case": False},
    }
    convert(input_path=str(google), output_dir=back, **vocabulary)
    assert_same_model(back, model_dir)


def test_wordpiece_model(model_dir, tmp_path, capsys):
    google, ours, hf = (tmp_path / name for name in ("google", "ours", "hf"))
    convert(input_path=model_dir, output_dir=str(google), output_format="google")
    (google / "spiece.model").unlink()
    (google / "tokenizer_config.json").unlink()
    pieces = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n北\n京\n"
    (google / "vocab_chinese.txt").write_text(pieces, encoding="utf-8")
    convert(input_path=str(google), output_dir=str(ours))
    assert "rows beyond the vocabulary's 7 pieces are dropped" in capsys.readouterr().out
    assert (ours / "vocab.txt").read_text(encoding="utf-8") == pieces
    _, tokenizer = albert_tf.from_pretrained(str(ours))
    assert tokenizer.encode("北京") == [5, 6]
    convert(input_path=str(ours), output_dir=str(hf), output_format="huggingface")
    settings = json.loads((hf / "tokenizer_config.json").read_text())
    assert settings["strip_accents"] and (hf / "vocab.txt").exists()


def test_failure_leaves_nothing(model_dir, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(AlbertTokenizer, "save", Mock(side_effect=OSError("No space left on device")))
        convert(input_path=model_dir, output_dir=str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match=r".*mine' exists already"):
        convert(input_path=model_dir, output_dir=str(tmp_path / "mine"))
    assert not list((tmp_path / "mine").iterdir())
    paths = [f"--input={tmp_path}/mine", f"--output_dir={tmp_path}/out"]
    _, err = run("pipelines.convert_checkpoint", *paths, exit_code=2)
    assert err.splitlines()[-1].startswith(f"error: '{tmp_path}/mine' is no model")
    paths[0] = f"--input={model_dir}"
    for flag, message in (
        ("--allow_missing=(", "--allow_missing='(' is not a regular expression: missing )"),
        ("--null_threshold=0", "--has_pairs and --null_threshold are for fine-tuned models"),
        ("--has_pairs", "--has_pairs and --null_threshold are for fine-tuned models"),
    ):
        _, err = run("pipelines.convert_checkpoint", *paths, flag, exit_code=2)
        assert f"error: {message}" in err


def test_missing_heads_by_flag(model_dir, tmp_path, capsys):
    convert(input_path=model_dir, output_dir=str(tmp_path / "google"), output_format="google")
    change_google(tmp_path / "google", without("cls/"))
    paths = {"input_path": str(tmp_path / "google"), "output_dir": str(tmp_path / "back")}
    with pytest.raises(ValueError, match=r"lacks cls/.*; --allow_missing='\^\(cls/predictions\|"):
        convert(**paths)
    convert(**paths, allow_missing="^cls/")
    assert "missing, freshly initialised: masked_lm/" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="freshly initialised: masked_lm/"):
        model, _ = albert_tf.from_pretrained(paths["output_dir"])
    assert model.masked_lm.is_drawn_afresh  # so SentenceScorer refuses it
