"""A version is published whole and verified, or not at all; never over another."""

import functools
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints.opening import open_model
from albert_tf.jobs.decision import Decision
from albert_tf.storage import versions
from export import export_saved_model
from export.ask import ask
from export.ask import load as load_to_ask
from export.export_saved_model import export
from export.loading import load_module, open_checkpoint
from export.modules.serving_module import ServingModule
from pipelines.predict import load
from pipelines.training.run import read_initial_model
from tests.builders import near, raises_one_line
from tests.export.conftest import CONFIG, MAX_SEQ_LENGTH
from tests.export.task_models import LABELS, TASKS
from tests.export.task_models import ask as answers_to


class Stub(tf.Module):
    """Stands for the model in tests of what happens around it: it is traced and saved at once."""

    signatures, sizes, max_seq_length, served = {}, {}, MAX_SEQ_LENGTH, Mock()

    def functions(self):
        answer = tf.function(lambda text: {"text": text})
        return {"serving_default": answer.get_concrete_function(tf.TensorSpec([None], tf.string))}


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(export_saved_model, "load_module", lambda _: Stub())
    monkeypatch.setattr(export_saved_model, "Preprocessor", Mock())


@pytest.fixture
def unverified(monkeypatch):
    monkeypatch.setattr(export_saved_model, "verify", lambda *_: 0.0)


@pytest.fixture
def few_functions(monkeypatch):
    """Traces and saves what is asked alone, and loads a SavedModel once."""
    names = {"serving_default", "labels", "unknown_share"}
    monkeypatch.setattr(
        ServingModule,
        "functions",
        lambda module: {n: module.function(n) for n in names & module.signatures.keys()},
    )
    monkeypatch.setattr(export_saved_model, "Preprocessor", Mock())
    monkeypatch.setattr(tf.saved_model, "load", functools.cache(tf.saved_model.load))


def contents(directory):
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def provenance(version):
    return json.loads((version / "assets.extra/export.json").read_text())


def test_the_export_holds_what_a_reader_needs(exported, model_dir):
    assert contents(exported.parent) == ["1"]
    assets = exported / "assets"
    assert contents(assets) == ["albert_config.json", "spiece.model"]
    for name in contents(assets):
        assert (assets / name).read_bytes() == (model_dir / name).read_bytes()
    described = provenance(exported)
    assert described["checkpoint"] == "ckpt-1"
    assert described["max_seq_length"] == MAX_SEQ_LENGTH


def test_a_classifier_that_may_be_unsure(make_module, tmp_path, unverified, few_functions):
    module = make_module(TASKS["classifier"])
    directory = module.served.model_dir
    decided = {"min_probability": 0.9999}
    made = export(checkpoint=directory, output=str(tmp_path), decision=Decision(**decided))
    task = {**json.loads(Path(directory, "task.json").read_text()), **decided}
    assert json.loads((tmp_path / "1/assets/task.json").read_text()) == task
    described = provenance(tmp_path / "1")
    assert (described["kind"], described["task"]) == ("classifier", task)
    call = load_to_ask(made)
    pairs = {"text": ["a fox runs", "b"], "text_pair": ["some dog", "c"]}
    rows = [{"first": first, "second": second} for first, second in zip(*pairs.values())]
    found, of_run = call("serving_default", pairs), load(directory, **decided).predict(rows)
    assert found["label"] == [row["prediction"] for row in of_run] == ["unsure"] * 2
    for of_row, row in zip(found["probabilities"], of_run):
        assert near(of_row, 1e-5) == [row[f"probability_{label}"] for label in LABELS]
    lines = ask(call, {"pair": ["a fox runs ||| some dog"]})
    assert lines[1:4] == ["text: a fox runs", "text_pair: some dog", "  label: unsure"]
    with raises_one_line("1' is an export: give the model directory that it was made from"):
        load(str(tmp_path))
    with pytest.raises(ValueError, match="--signature=serving_default"):
        ask(call, {"text": ["[MASK]"]})
    broken = shutil.copytree(made, tmp_path / "broken")
    variables = broken / "variables/variables.data-00000-of-00001"
    variables.write_bytes(variables.read_bytes()[:999])
    with raises_one_line(r"broken' is damaged: copy or export it again: "):
        load_to_ask(str(broken))
    variables.unlink()
    with raises_one_line(r"broken' is damaged: copy or export it again: "):
        load_to_ask(str(broken))


@pytest.mark.slow
def test_label_thresholds_of_an_export(make_module, tmp_path, few_functions):
    """Verified in a fresh process."""
    module = make_module(TASKS["multilabel"])
    directory = module.served.model_dir
    texts = {"text": ["a fox runs", "", "b"], "text_pair": ["some dog", "x", "c"]}
    likely = answers_to(module, **texts)["probabilities"]
    chosen = {LABELS[0]: float(np.mean(likely[:2, 0])), LABELS[2]: 0.0}
    decision = Decision(label_thresholds=chosen)
    made = export(checkpoint=directory, output=str(tmp_path), decision=decision)
    loaded = tf.saved_model.load(made)
    answer = loaded.signatures["serving_default"](**{n: tf.constant(t) for n, t in texts.items()})
    expected = likely >= [chosen[LABELS[0]], 0.5, 0.0]
    np.testing.assert_array_equal(answer["predicted"], expected)
    assert expected[:, 0].any() and not expected[:, 0].all()
    assert "-> probabilities, predicted" in export_saved_model.how_to_use(made)
    lines = ask(load_to_ask(made), {"pair": ["a fox runs ||| some dog"]})
    assert f"  predicted: {', '.join(map(str, expected[0].astype(int)))}" in lines
    rows = [{"first": a, "second": b} for a, b in zip(*texts.values())]
    found = load(directory, label_thresholds=chosen).predict(rows)
    named = [",".join(np.array(LABELS)[row]) for row in expected]
    assert [row["prediction"] for row in found] == named


def test_a_checkpoint_is_opened_as_what_it_is(model_dir, make_module, tmp_path):
    served = open_checkpoint(str(model_dir))
    assert (served.kind, served.task, served.max_seq_length) == ("pretraining", {}, 67)
    module = make_module(TASKS["classifier"])
    directory, length = module.served.model_dir, module.max_seq_length
    served = open_checkpoint(directory)
    assert served.kind == "classifier" and served.checkpoint.endswith("/best/ckpt-7")
    served = open_checkpoint(directory, "encoder")
    assert (served.kind, served.task, served.max_seq_length) == ("encoder", {}, length)
    for ours, theirs in zip(load_module(served).model.weights, module.model.encoder.weights):
        np.testing.assert_array_equal(ours, theirs, err_msg=theirs.name)
    odd = shutil.copytree(model_dir, tmp_path / "odd")
    (odd / "task.json").write_text('{"kind": "poet"}')
    for path, kind, message in (
        (model_dir, "classifier", r"model for pretraining .pipelines\.finetune makes"),
        (directory, "pretraining", "holds a model for classifier"),
        (directory, "regressor", "holds a model for classifier"),
        (odd, None, r"task\.json: kind is 'poet', expected one of"),
    ):
        with pytest.raises(ValueError, match=message):
            open_checkpoint(str(path), kind)


def test_the_length_is_that_those_of_training(model_dir, tmp_path, monkeypatch, capsys):
    trained = shutil.copytree(model_dir, tmp_path / "trained")
    run = {"max_seq_length": 24, "sentence_objective": "none"}
    (trained / "run.json").write_text(json.dumps(run))
    fresh = {"freshly_initialised": "masked_lm/output_bias, sentence_order/classifier/bias"}
    (trained / "origin.json").write_text(json.dumps(fresh))
    modules = []
    monkeypatch.setattr(export_saved_model, "_publish", lambda module, *_: modules.append(module))
    for kind, given, used in (("encoder", None, 24), (None, 25, 25)):
        arguments = {"kind": kind, "max_seq_length": given}
        export(checkpoint=str(trained), output=str(tmp_path / "exports"), **arguments)
        module, out = modules.pop(), capsys.readouterr().out
        assert module.max_seq_length == used
        assert ("warning" in out) == ("at most 24 pieces" in out) == (used > 24)
        assert "not trained by the last run (--sentence_objective=none): pooled_output" in out
        assert "not trained to compare texts: mean_pooled_output" in out
        assert ("in_order_probability, sop_log_probs\n" in out) == (kind is None)
        random = "no weights for them): in_order_probability, mlm_logits, pieces, prob"
        assert (random in out) == (kind is None)


def test_an_export_is_not_made_a_second_time(exported, model_dir, capsys, monkeypatch):
    monkeypatch.setattr(export_saved_model, "_publish", lambda *_: pytest.fail("exported again"))
    arguments = {"checkpoint": str(model_dir), "max_seq_length": MAX_SEQ_LENGTH}
    for version in (None, 1):
        found = export(output=str(exported.parent), version=version, **arguments)
        assert found == str(exported)
        assert "exported before" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"another export \(max_seq_length \d+ there"):
        export(checkpoint=str(model_dir), output=str(exported.parent), version=1)


def test_another_export_gets_the_next_version(
    exported, model_dir, tmp_path, stub, unverified, capsys
):
    output = tmp_path / "exports"
    shutil.copytree(exported, output / "4")
    (output / "notes").mkdir()
    arguments = {"checkpoint": str(model_dir), "output": str(output)}
    export(**arguments, max_seq_length=MAX_SEQ_LENGTH - 1)
    assert "not trained by the last run" not in capsys.readouterr().out
    for _ in range(2):
        made = export(**arguments, max_seq_length=MAX_SEQ_LENGTH, precision="bfloat16")
    assert made == str(output / "6") and provenance(output / "6")["precision"] == "bfloat16"
    assert contents(output) == ["4", "5", "6", "notes"]
    with pytest.raises(ValueError, match="no SavedModel"):
        load_to_ask(str(output / "notes"))
    assert versions.existing(str(tmp_path / "absent")) == []


def test_who_reads_versions_and_their_directory(exported, loaded, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tf.saved_model, "load", lambda _: loaded)
    for version in (9, 10):
        shutil.copytree(exported, tmp_path / f"exports/{version}")
    for read in (albert_tf.from_pretrained, read_initial_model, load_to_ask):
        with pytest.raises(ValueError, match=r"of exports: name one, such as '.*/exports'$"):
            read(str(tmp_path))
    for path, expected in (("exports/", 10), ("exports/9", 9)):
        given, expected = f"{tmp_path}/{path}", str(tmp_path / f"exports/{expected}")
        load_to_ask(given)
        assert capsys.readouterr().out == f"{expected} answers\n"
        assert open_model(given).path == expected
        for read in (albert_tf.from_pretrained, read_initial_model):
            with pytest.raises(ValueError, match=f"'{expected}' is an export: give the model dir"):
                read(given)


def test_what_is_not_verified_or_appears_meanwhile(model_dir, tmp_path, stub, monkeypatch):
    def other_export(saved_model, *_):
        assert tf.io.gfile.exists(f"{saved_model}/saved_model.pb")
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "theirs").touch()
        return 0.0

    for verify, error, left in (
        (Mock(side_effect=RuntimeError), RuntimeError, []),
        (Mock(side_effect=KeyboardInterrupt), KeyboardInterrupt, []),
        (other_export, ValueError, ["1"]),
    ):
        monkeypatch.setattr(export_saved_model, "verify", verify)
        with pytest.raises(error, match="appeared meanwhile" if left else None):
            export(checkpoint=str(model_dir), output=str(tmp_path))
        assert contents(tmp_path) == left
    assert contents(tmp_path / "1") == ["theirs"]


def test_wrong_requests_are_refused_before_anything_is_written(model_dir, tmp_path):
    output = tmp_path / "exports"
    (tmp_path / "file").touch()
    (tmp_path / "run" / "seed_7").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    other = shutil.copytree(model_dir, tmp_path / "other")
    config = json.loads((other / "albert_config.json").read_text())
    (other / "albert_config.json").write_text(json.dumps({**config, "vocab_size": 17}))
    longest = CONFIG.max_position_embeddings
    for changes, message in (
        ({"checkpoint": tmp_path / "absent"}, "absent' is no model: expected a model directory"),
        ({"output": tmp_path / "file"}, r"--output=.*a file; expected a directory"),
        ({"output": tmp_path / "run"}, r"--output=.*run: holds a run"),
        ({"checkpoint": tmp_path / "run"}, r"a model of each seed: .*run/seed_7"),
        ({"max_seq_length": longest + 1}, f"use at most {longest}"),
        ({"checkpoint": other}, "the config has vocab_size 17"),
    ):
        places = {"checkpoint": model_dir, "output": output, **changes}
        length = places.pop("max_seq_length", None)
        with pytest.raises(ValueError, match=message):
            export(**{n: str(place) for n, place in places.items()}, max_seq_length=length)
    assert not output.exists()
