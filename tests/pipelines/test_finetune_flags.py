"""What fine-tuning starts from, and what does not fit: one line, and nothing left behind."""

import functools
import json
import shlex
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import optimization
from albert_tf.checkpoints import model_directory
from pipelines import finetune as finetune_lib
from pipelines.tasks.running.seed_run import FinetuneSettings
from tests.builders import classification, finetune, run_task
from tests.jobs import assert_same_bits, run, weights


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--task=rte", "give --data_dir"),
        ("", "flag --task=None: Flag --task must have a value other than None."),
        ("--task=rte --num_epochs=2 --num_train_steps=9", "are two ways to say the same"),
        ("{own} --init_checkpoint={model} --num_epochs=0", "--num_epochs=0: expected a number"),
        ("{own} --class_weights=a=0", "'a=0' is no label=weight; expected balanced"),
        ("{own} --class_weights=a=x", "'a=x' is no label=weight; expected balanced"),
        ("{own} --class_weights='a=2,b=1, a=3'", "'a' is there twice"),
        ("--task=rte --data_dir=/nowhere", "--data_dir: there is no directory '/nowhere'"),
        ("--task=classification", "give --train_file"),
        ("--task=classification --train_file=/none.tsv", "no file matches '/none.tsv'"),
        ("{own}", "give --init_checkpoint"),
        ("{own} --label_column=", "--label_column is empty: name the column"),
        ("{own} --text_column=label", "--text_column and --label_column both name the column"),
        ("--task=rte --data_dir=. --dev_file={train}", "is for sets of your own"),
        ("--task=squad_v2 --data_dir=.", "there is no './train-v2.0.json'"),
        ("{own} --init_checkpoint={model} --albert_config=albert_base", "is the checkpoint's own"),
        ("--task=race --data_dir=. --random_seeds=1,1", "expected different whole numbers"),
        ("--task=race --data_dir=. --random_seeds=-1", "expected different whole numbers"),
        ("--task=race --data_dir=. --labels=a,b", "--labels does not apply to --task=race"),
        ("{own} --doc_stride=64", "does not apply to --task=classification, only to squad_v1, squ"),
        ("--task=squad_v1 --data_dir=. --null_threshold=0", "only to squad_v2: remove"),
        ("--task=rte --data_dir=. --text_column=x", "--text_column does not apply to"),
        ("{own} --labels=a,a", "two different labels"),
        ("{own} --data_dir=.", "not --data_dir"),
        ("--task=race --data_dir=. --random_seeds=1,x", "expected different whole numbers"),
        ("{own} --init_checkpoint={model} --text_column=body", "train.tsv"),
    ],
)
def test_one_line_for_wrong_flags(flags, message, table, pretrained, tmp_path):
    train = table / "train.tsv"
    own = f"--task=classification --train_file={train}"
    flags = shlex.split(flags.format(own=own, train=train, model=pretrained))
    _, err = run("pipelines.finetune", *flags, f"--output_dir={tmp_path}/out", exit_code=2)
    lines = [line for line in err.strip().splitlines() if "absl::InitializeLog" not in line]
    assert len(lines) == 1 and message in lines[0], err
    assert not (tmp_path / "out").exists()


def test_a_frozen_encoder_stays_and_the_output_layer_learns(table, pretrained, tmp_path):
    changes = {"num_train_steps": 10, "num_warmup_steps": 0, "freeze_encoder": True}
    finetune(table, pretrained, tmp_path, **changes)
    _, checkpoint = model_directory.find_checkpoint(str(pretrained))
    theirs, ours = tf.train.load_checkpoint(checkpoint), weights(tmp_path / "seed_1")
    encoder = [name for name in ours if name.startswith("model/encoder/")]
    assert len(encoder) > 10 and any("pooler/kernel" in name for name in encoder)
    for name in encoder:
        np.testing.assert_array_equal(ours[name], theirs.get_tensor(name))
    biases = [name for name in ours if name.endswith("bias/.ATTRIBUTES/VARIABLE_VALUE")]
    [head] = set(biases) - set(encoder)
    assert np.abs(ours[head]).max() > 1e-3, "biases begin at 0"


@pytest.mark.parametrize(
    ("given", "examples", "expected"),
    [
        ({}, 100, (1000, 100)),
        ({"num_epochs": 3.0}, 100, (38, 100)),
        ({"num_epochs": 3.0, "warmup_fraction": 0.1}, 100, (38, 4)),
        ({"num_epochs": 0.01}, 100, (1, 100)),
        ({"warmup_fraction": 0.25}, 7, (1000, 250)),
    ],
)
def test_epochs_and_fractions_are_steps(given, examples, expected):
    settings = FinetuneSettings(8, 1000, 100, 1e-3, **given).with_steps(examples)
    assert (settings.num_train_steps, settings.num_warmup_steps) == expected
    assert settings.num_epochs is None and settings.warmup_fraction is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pretraining", "encoder"])
def test_it_begins_with_an_exported_model(table, pretrained, tmp_path, kind):
    run(
        "export.export_saved_model",
        f"--checkpoint={pretrained}",
        f"--output={tmp_path}/exported",
        f"--kind={kind}",
        "--max_seq_length=48",
    )
    changes = {"num_train_steps": 10}
    ours = finetune(table, tmp_path / "exported/1", tmp_path / "a", **changes)
    theirs = finetune(table, pretrained, tmp_path / "b", **changes)
    assert ours == theirs
    assert_same_bits(tmp_path / "a/seed_1", tmp_path / "b/seed_1")
    shutil.rmtree(tmp_path / "exported/1/assets")
    with pytest.raises(ValueError, match=r"without assets/albert_config\.json"):
        finetune(table, tmp_path / "exported/1", tmp_path / "c", **changes)


@pytest.mark.parametrize(("given", "expected", "warns"), [(None, 24, False), (32, 32, True)])
def test_the_default_length_is_that_of_the_checkpoint(
    table, pretrained, tmp_path, monkeypatch, capsys, given, expected, warns
):
    shorter = tmp_path / "shorter"
    shutil.copytree(pretrained, shorter)
    (shorter / "run.json").write_text('{"max_seq_length": 24}')
    monkeypatch.setattr(finetune_lib, "run_seed", lambda *_: {"metrics": {}})
    finetune(table, shorter, tmp_path / "out", max_seq_length=given)
    assert json.loads((tmp_path / "out/run.json").read_text())["max_seq_length"] == expected
    assert ("was trained with at most 24 pieces" in capsys.readouterr().out) == warns


@pytest.mark.parametrize("given", [True, False])
def test_bias_correction_is_part_of_a_run(table, pretrained, tmp_path, monkeypatch, given):
    class MadeError(Exception):
        pass

    def adamw(_, weight_decay, bias_correction):
        raise MadeError(bias_correction)

    monkeypatch.setattr(optimization, "adamw", adamw)
    with pytest.raises(MadeError, match=str(given)):
        finetune(table, pretrained, tmp_path, adamw_bias_correction=given)
    with pytest.raises(ValueError, match=f"adamw_bias_correction {given} there, {not given} here"):
        finetune(table, pretrained, tmp_path, adamw_bias_correction=not given)
    # A run of a version that knew neither form.
    stored = json.loads((tmp_path / "run.json").read_text())
    del stored["adamw_bias_correction"]
    (tmp_path / "run.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=f"adamw_bias_correction None there, {given} here"):
        finetune(table, pretrained, tmp_path, adamw_bias_correction=given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_batch_size": 10, "gradient_accumulation_steps": 3}, "does not divide"),
        ({"max_seq_length": 65}, r"--max_seq_length=65 is beyond .* \(64 rows\): use at most 64"),
        ({"num_warmup_steps": 61}, "beyond --num_train_steps=60"),
        ({"splits": ("train",)}, "no dev set"),
        ({"splits": ("dev",)}, "labels of classification are not known|no training examples"),
    ],
)
def test_what_does_not_fit(table, pretrained, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        finetune(table, pretrained, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="both --albert_config and --spm_model_file"):
        finetune(table, None, tmp_path / "out")
    with pytest.raises(ValueError, match=r"convert it first, by pipelines\.convert_checkpoint"):
        finetune(table, "hf://albert/albert-base-v2", tmp_path / "out")


def test_another_division_is_another_run(table, pretrained, tmp_path, monkeypatch, capsys):
    divided = functools.partial(finetune_lib.finetune, dev_fraction=0.1)
    monkeypatch.setattr(finetune_lib, "finetune", divided)
    monkeypatch.setattr(finetune_lib, "run_seed", lambda *_: {"metrics": {}})
    for _ in range(2):
        run_task(classification(table, ["train"]), pretrained, tmp_path / "run")
    assert "warning: dev has fewer than ten rows of 'other' " in capsys.readouterr().out
    monkeypatch.setattr(finetune_lib, "DIVISION", 3)
    with pytest.raises(ValueError, match=r"holds another run .*dev_division 2 there, 3 here"):
        run_task(classification(table, ["train"]), pretrained, tmp_path / "run")
