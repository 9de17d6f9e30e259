"""A version is published whole and verified, or not at all; never over another."""

from __future__ import annotations

import json
import shutil
from importlib import metadata

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from export import export_saved_model, versions
from export.export_saved_model import export
from tests.export.conftest import CONFIG, MAX_SEQ_LENGTH


class Stub(tf.Module):
    """Stands for the model in tests of what happens around it: it is traced and saved at once."""

    signatures, sizes, max_seq_length = {}, {}, MAX_SEQ_LENGTH

    def functions(self):
        answer = tf.function(lambda text: {"text": text})
        return {"serving_default": answer.get_concrete_function(tf.TensorSpec([None], tf.string))}

    def save_preprocessor(self, directory):
        pass


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(export_saved_model, "load_module", lambda _: Stub())


@pytest.fixture
def unverified(monkeypatch):
    monkeypatch.setattr(export_saved_model, "verify", lambda *_: 0.0)


def contents(directory):
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_the_export_holds_what_a_reader_needs(exported, model_dir):
    assert exported.name == "1"
    assert contents(exported.parent) == ["1"]
    assert contents(exported / "assets") == ["albert_config.json", "spiece.model"]
    for name in contents(exported / "assets"):
        assert (exported / "assets" / name).read_bytes() == (model_dir / name).read_bytes()
    provenance = json.loads((exported / "assets.extra" / "export.json").read_text())
    assert provenance["checkpoint"] == "ckpt-1"
    assert provenance["max_seq_length"] == MAX_SEQ_LENGTH


def test_a_model_that_grows_has_the_layers_of_its_checkpoint(model_dir, tmp_path, monkeypatch):
    grows = shutil.copytree(model_dir, tmp_path / "grows")
    (grows / "run.json").write_text('{"depth_schedule": ["2", "3:9"]}')
    shallow = model_directory.load_for_pretraining(str(grows))[0]
    modules = []
    monkeypatch.setattr(export_saved_model, "_publish", lambda module, *_: modules.append(module))
    ids = tf.constant([[2, 9, 7, 3]])
    expected = shallow.encoder(ids)["pooled_output"]
    for kind in ("encoder", "pretraining"):
        export(checkpoint=str(grows), output=str(tmp_path / "exports"), kind=kind)
        asset = modules[-1].config_file.asset_path.numpy().decode()
        assert AlbertConfig.read(asset).num_hidden_layers == 2
        np.testing.assert_allclose(modules[-1].encoder(ids)["pooled_output"], expected, atol=1e-5)


@pytest.mark.parametrize(("given", "used"), [(None, 24), (24, 24), (25, 25)])
def test_the_default_length_is_that_of_training(
    model_dir, tmp_path, monkeypatch, capsys, given, used
):
    trained = shutil.copytree(model_dir, tmp_path / "trained")
    (trained / "run.json").write_text('{"max_seq_length": 24}')
    modules = []
    monkeypatch.setattr(export_saved_model, "_publish", lambda module, *_: modules.append(module))
    export(checkpoint=str(trained), output=str(tmp_path / "exports"), max_seq_length=given)
    assert [module.max_seq_length for module in modules] == [used]
    warnings = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert len(warnings) == (used > 24)
    assert all("at most 24 pieces" in line for line in warnings)


def test_an_export_is_not_made_again_nor_overwritten(exported, model_dir, capsys, monkeypatch):
    monkeypatch.setattr(export_saved_model, "_publish", lambda *_: pytest.fail("exported again"))
    arguments = {"output": str(exported.parent), "max_seq_length": MAX_SEQ_LENGTH}
    for version in (None, 1):
        assert export(checkpoint=str(model_dir), version=version, **arguments) == str(exported)
        assert "exported before" in capsys.readouterr().out
    with pytest.raises(ValueError, match="another export"):
        export(checkpoint=str(model_dir), output=str(exported.parent), version=1)


def test_another_export_gets_the_next_version(exported, model_dir, tmp_path, stub, unverified):
    output = tmp_path / "exports"
    shutil.copytree(exported, output / "4")
    (output / "notes").mkdir()
    made = export(checkpoint=str(model_dir), output=str(output), max_seq_length=MAX_SEQ_LENGTH - 1)
    assert made == str(output / "5")
    assert contents(output) == ["4", "5", "notes"]
    assert versions.newest_saved_model(str(output)) == made
    assert versions.newest_saved_model(str(output / "4")) == str(output / "4")
    with pytest.raises(ValueError, match="no SavedModel"):
        versions.newest_saved_model(str(output / "notes"))
    assert versions.existing(str(tmp_path / "absent")) == []


def test_a_version_that_appears_meanwhile_is_left_alone(model_dir, tmp_path, stub, monkeypatch):
    def other_export(*_):
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "theirs").touch()
        return 0.0

    monkeypatch.setattr(export_saved_model, "verify", other_export)
    with pytest.raises(ValueError, match="appeared meanwhile"):
        export(checkpoint=str(model_dir), output=str(tmp_path))
    assert contents(tmp_path) == ["1"] and contents(tmp_path / "1") == ["theirs"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_fails_its_verification_is_not_published(
    model_dir, tmp_path, stub, monkeypatch, error
):
    def fail(saved_model, *_):
        assert tf.io.gfile.exists(f"{saved_model}/saved_model.pb")
        raise error

    monkeypatch.setattr(export_saved_model, "verify", fail)
    with pytest.raises(error):
        export(checkpoint=str(model_dir), output=str(tmp_path / "exports"))
    assert contents(tmp_path / "exports") == []


def test_wrong_requests_are_refused_before_anything_is_written(model_dir, tmp_path):
    output = tmp_path / "exports"
    (tmp_path / "file").touch()
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "run.json").write_text("{}")
    (tmp_path / "run" / "seed_7").mkdir(parents=True)
    other = shutil.copytree(model_dir, tmp_path / "other")
    config = json.loads((other / "albert_config.json").read_text())
    (other / "albert_config.json").write_text(json.dumps({**config, "vocab_size": 17}))
    longest = CONFIG.max_position_embeddings
    for changes, message in (
        ({"checkpoint": tmp_path / "absent"}, "no model directory or checkpoint"),
        ({"output": tmp_path / "file"}, r"--output=.*a file; expected a directory"),
        ({"output": tmp_path / "trained"}, r"--output=.*trained: holds a run"),
        (
            {"checkpoint": tmp_path / "run"},
            r"a model of each seed: name one, such as '.*run/seed_7",
        ),
        ({"max_seq_length": longest + 1}, f"use at most {longest}"),
        ({"checkpoint": other}, "the config has vocab_size 17"),
        ({"kind": "regressor"}, "holds a model for pretraining"),
    ):
        arguments = {"checkpoint": model_dir, "output": output, **changes}
        for name in ("checkpoint", "output"):
            arguments[name] = str(arguments[name])
        with pytest.raises(ValueError, match=message):
            export(**arguments)
    assert not output.exists()


@pytest.mark.parametrize("choices", [2, 4])
def test_what_it_says_to_ask_has_every_option(tmp_path, choices):
    provenance = {"kind": "multiple_choice", "task": {"num_choices": choices}}
    (tmp_path / "1/assets.extra").mkdir(parents=True)
    (tmp_path / "1/assets.extra/export.json").write_text(json.dumps(provenance))
    text = export_saved_model.how_to_use(str(tmp_path / "1"))
    assert text.count("--option=") == choices
    (request,) = [line for line in text.splitlines() if "curl" in line]
    (options,) = json.loads(request.partition(" -d ")[2].strip("'"))["inputs"]["options"]
    assert len(options) == choices


def test_what_it_says_to_ask_and_serve_is_this_version(tmp_path):
    for version in ("2", "10"):
        (tmp_path / version / "assets.extra").mkdir(parents=True)
        provenance = json.dumps({"kind": "encoder", "task": None})
        (tmp_path / version / "assets.extra/export.json").write_text(provenance)
    older, newer = (export_saved_model.how_to_use(str(tmp_path / v)) for v in ("2", "10"))
    assert f"--saved_model={tmp_path}/2 " in older and f"--saved_model={tmp_path}/10 " in newer
    assert "(let models.config there name version 2)" in older
    for line in (older, newer):  # the version's files and the client are of one release
        assert f"tensorflow/serving:{metadata.version('tensorflow-serving-api')} " in line
        assert "--model_config_file=/config/models.config" in line
        assert "/v1/models/albert/labels/stable:predict" in line
