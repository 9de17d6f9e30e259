"""The main job on a tiny corpus, program by program, with a SIGKILL in the middle of training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import program
from pipelines.data.pretraining_dataset import ExampleOptions
from pipelines.pretrain import RunSettings, pretrain
from pipelines.training.strategy import create_strategy
from tests.conftest import make_text

PROJECT = Path(__file__).resolve().parents[1]
NUM_STEPS = 30


def start(module, *flags):
    return subprocess.Popen(
        [sys.executable, "-m", module, *flags],
        cwd=PROJECT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(module, *flags, exit_code=0):
    process = start(module, *flags)
    out, err = process.communicate(timeout=300)
    assert process.returncode == exit_code, f"{out}\n{err}"
    return out, err


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A corpus, its vocabulary and its records."""
    directory = tmp_path_factory.mktemp("work")
    (directory / "corpus.txt").write_text(make_text(150, seed=11), encoding="utf-8")
    run(
        "pipelines.train_vocab",
        f"--input_file={directory}/corpus.txt",
        f"--output_prefix={directory}/vocabulary",
        "--vocab_size=83",
    )
    run(
        "pipelines.create_pretraining_data",
        f"--input_file={directory}/corpus.txt",
        f"--spm_model_file={directory}/vocabulary.model",
        f"--output_dir={directory}/records",
        "--max_seq_length=40",
        "--heldout_fraction=0.2",
        "--shard_bytes=20000",
        "--num_workers=1",
    )
    config = {
        "vocab_size": 83,
        "embedding_size": 24,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 56,
        "max_position_embeddings": 48,
        "hidden_dropout_prob": 0.1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def pretrain_flags(work, model_dir):
    return [
        f"--record_dir={work}/records",
        f"--spm_model_file={work}/vocabulary.model",
        f"--albert_config={work}/config.json",
        f"--model_dir={model_dir}",
        "--max_seq_length=40",
        "--global_batch_size=18",
        f"--num_train_steps={NUM_STEPS}",
        "--num_warmup_steps=4",
        "--learning_rate=0.02",
        "--steps_per_loop=2",
        "--save_checkpoint_steps=4",
    ]


@pytest.fixture(scope="module")
def model_dir(work):
    """A run that nothing interrupted."""
    run("pipelines.pretrain", *pretrain_flags(work, work / "model"))
    return work / "model"


def weights(model_dir):
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir / "checkpoints")))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "_CHECKPOINTABLE" not in name and "save_counter" not in name
    }


def test_killed_and_started_again_ends_in_the_same_bits(work, model_dir):
    killed = work / "killed"
    for kill_at in (3, 9):  # log entries: in the middle of a checkpoint's interval
        process = start("pipelines.pretrain", *pretrain_flags(work, killed))
        metrics = killed / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if metrics.exists() and metrics.read_text().count("\n") >= kill_at:
                break
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the run ended before it was killed"
    run("pipelines.pretrain", *pretrain_flags(work, killed))
    ours, theirs = weights(model_dir), weights(killed)
    assert ours.keys() == theirs.keys() and len(ours) > 60
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)

    def curves(directory):
        entries = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in entry.items() if "per_second" not in k} for entry in entries]

    assert curves(killed) == curves(model_dir)
    assert [entry["step"] for entry in curves(killed)] == list(range(2, NUM_STEPS + 1, 2))


def test_training_learns_and_leaves_curves(model_dir):
    entries = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    assert entries[-1]["masked_lm_loss"] < entries[0]["masked_lm_loss"] - 0.1
    assert (model_dir / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((model_dir / "tensorboard").glob("events*"))


def test_a_second_call_has_nothing_to_do(work, model_dir):
    before = (model_dir / "metrics.jsonl").read_text()
    run("pipelines.pretrain", *pretrain_flags(work, model_dir))
    assert (model_dir / "metrics.jsonl").read_text() == before


def test_evaluation(work, model_dir):
    flags = [f"--checkpoint={model_dir}", f"--record_dir={work}/records"]
    out, _ = run("pipelines.evaluate", *flags)
    assert "masked LM" in out and "95 % interval" in out
    [kept] = (model_dir / "evaluations").glob("*-heldout-sop.json")
    result = json.loads(kept.read_text())
    assert result["examples"] > 20
    assert 0 < result["most_frequent_accuracy"] < 1
    low, high = result["sentence_order_interval"]
    assert low <= result["sentence_order_accuracy"] <= high
    again, _ = run("pipelines.evaluate", *flags)
    assert "evaluated before" in again and out.splitlines()[-3:] == again.splitlines()[-3:]


def test_a_deeper_model_begins_with_a_shallower_one(work, model_dir):
    config = json.loads((work / "config.json").read_text())
    (work / "deeper.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    flags = [
        *pretrain_flags(work, work / "deeper"),
        f"--albert_config={work}/deeper.json",
        f"--init_checkpoint={model_dir}",
        "--sentence_objective=nsp",
        "--num_train_steps=4",
    ]
    run("pipelines.pretrain", *flags)
    begins = json.loads((work / "deeper" / "metrics.jsonl").read_text().split("\n")[0])
    ended = json.loads((model_dir / "metrics.jsonl").read_text().split("\n")[-2])
    assert begins["masked_lm_loss"] < ended["masked_lm_loss"] + 0.1
    out, _ = run(
        "pipelines.evaluate",
        f"--checkpoint={work}/deeper",
        f"--record_dir={work}/records",
        "--sentence_objective=nsp",
    )
    assert "next sentence" in out


def test_export_answers_raw_text(work, model_dir):
    flags = [f"--checkpoint={model_dir}", f"--output={work}/export", "--max_seq_length=40"]
    run("export.export_saved_model", *flags)
    out, _ = run(
        "export.ask",
        f"--saved_model={work}/export",
        "--fill_mask=The quick [MASK] fox.",
        "--pair=The birds sing. ||| The river runs.",
    )
    assert "[MASK] 1:" in out and "in order with" in out


def test_bad_input_is_one_line_and_exit_code_2(work, model_dir):
    flags = [*pretrain_flags(work, model_dir), "--learning_rate=0.03"]
    out, err = run("pipelines.pretrain", *flags, exit_code=2)
    [line] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "learning_rate 0.02 there, 0.03 here" in line and "Traceback" not in err + out


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"record_dir": "{work}/nowhere"}, "no manifest.json in"),
        ({"spm_model_file": "{work}/nowhere.model"}, "no SentencePiece model at"),
        ({"spm_model_file": "{work}/corpus.txt"}, "is not a SentencePiece model"),
        ({"max_seq_length": 49}, "beyond the position table"),
        ({"max_seq_length": 32}, "do not fit into 32"),
        ({"albert_config": "albert_tiny"}, "neither a file nor one of albert_base"),
        ({"albert_config": "{work}/smaller.json"}, "vocab_size 82"),
        ({"model_dir": "{work}/records"}, "holds another run"),
        ({"model_dir": "{work}"}, "no run of this job"),
        ({"save_checkpoint_steps": 5}, "not a multiple"),
        ({"init_checkpoint": "{work}/nowhere"}, "no model directory or checkpoint at"),
        ({"num_warmup_steps": 31}, "not between 0 and num_train_steps"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input_to_pretrain(work, changes, message):
    config = json.loads((work / "config.json").read_text())
    (work / "smaller.json").write_text(json.dumps({**config, "vocab_size": 82}))
    values = {
        "record_dir": f"{work}/records",
        "spm_model_file": f"{work}/vocabulary.model",
        "albert_config": f"{work}/config.json",
        "model_dir": f"{work}/bad",
        "max_seq_length": 40,
        "num_warmup_steps": 4,
        "save_checkpoint_steps": 4,
        **{k: v.format(work=work) if isinstance(v, str) else v for k, v in changes.items()},
    }
    options = ExampleOptions(max_seq_length=values.pop("max_seq_length"))
    settings = RunSettings(
        global_batch_size=18,
        num_train_steps=NUM_STEPS,
        num_warmup_steps=values.pop("num_warmup_steps"),
        learning_rate=0.02,
        weight_decay=0.01,
        lamb_bias_correction=True,
        random_seed=1,
        steps_per_loop=2,
    )
    before = sorted(work.rglob("*"))
    with pytest.raises(ValueError, match=message) as error:
        pretrain(
            **values,
            options=options,
            settings=settings,
            strategy=tf.distribute.OneDeviceStrategy("/cpu:0"),
        )
    assert program.is_user_error(error.value)
    assert sorted(work.rglob("*")) == before


def test_no_tpu():
    with pytest.raises(ValueError, match="no TPU answers at --tpu='nowhere'"):
        create_strategy("tpu", "nowhere")


def test_records_of_another_vocabulary(work):
    run(
        "pipelines.train_vocab",
        f"--input_file={work}/corpus.txt",
        f"--output_prefix={work}/other",
        "--vocab_size=79",
    )
    flags = [*pretrain_flags(work, work / "bad"), f"--spm_model_file={work}/other.model"]
    _, err = run("pipelines.pretrain", *flags, exit_code=2)
    assert "made with another vocabulary" in err and not (work / "bad").exists()
