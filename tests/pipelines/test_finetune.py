"""Fine-tuning: it learns, goes on, repeats itself, and says what it cannot use."""

from __future__ import annotations

import json
import shutil
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import model_directory
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.tasks.classification import ClassificationTask
from tests.builders import DEV, TEST, classification, finetune, make_rows, read_tsv, run_task
from tests.jobs import run, start, weights
from tests.replicas import mirrored


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory, table, pretrained):
    output_dir = tmp_path_factory.mktemp("runs") / "two"
    return output_dir, finetune(table, pretrained, output_dir, seeds=(1, 2))


def test_learns_and_says_so(two_seeds):
    output_dir, results = two_seeds
    assert json.loads((output_dir / "results.json").read_text()) == results
    accuracies = [results["dev"]["seeds"][seed]["accuracy"] for seed in ("1", "2")]
    assert min(accuracies) > 0.85, "a single word decides"
    assert results["dev"]["median"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert results["dev"]["lowest"]["accuracy"] == min(accuracies)
    one, two = (weights(output_dir / f"seed_{seed}") for seed in (1, 2))
    assert any(not np.array_equal(one[name], two[name]) for name in one)
    for seed, accuracy in zip((1, 2), accuracies):
        rows = read_tsv(output_dir / f"seed_{seed}/predictions/dev_predictions.tsv")
        assert [row["id"] for row in rows] == [f"id{i}" for i in range(DEV)]
        hits = [row["label"] == row["prediction"] for row in rows]
        assert np.mean(hits) == pytest.approx(accuracy)


def test_padding_counts_as_no_tokens(two_seeds, table, pretrained):
    task, tokenizer = classification(table), AlbertTokenizer.load(str(pretrained))
    sequences, _ = task.encode(task.read("train"), tokenizer, 48, True)
    lines = (two_seeds[0] / "seed_1/metrics.jsonl").read_text().splitlines()
    [entry, *_] = [entry for entry in map(json.loads, lines) if "tokens_per_second" in entry]
    mean = entry["tokens_per_second"] / entry["examples_per_second"]
    assert mean == pytest.approx(np.diff(sequences.row_splits).mean())


def test_an_export_knows_the_task(two_seeds):
    output_dir, _ = two_seeds
    assert json.loads((output_dir / "seed_2/task.json").read_text()) == {
        "task": "classification",
        "kind": "classifier",
        "has_pairs": True,
        "labels": ["other", "river"],
        "max_seq_length": 48,
        "columns": {"text": "first", "text_pair": "second", "label": "label", "id": "name"},
        "quoting": "csv",
    }


def test_the_best_weights_are_those_of_the_best_score(two_seeds):
    output_dir, results = two_seeds
    for seed in ("1", "2"):
        lines = (output_dir / f"seed_{seed}/metrics.jsonl").read_text().splitlines()
        scores = {
            entry["step"]: entry["dev_accuracy"]
            for entry in map(json.loads, lines)
            if "dev_accuracy" in entry
        }
        assert list(scores) == [20, 40, 60]
        best = max(scores.values())
        assert results["dev"]["seeds"][seed]["accuracy"] == best
        _, path = model_directory.find_checkpoint(str(output_dir / f"seed_{seed}/best"))
        assert scores[int(path.rsplit("-", 1)[1])] == best


def test_the_best_weights_predict(table, pretrained, tiny_vocabulary, tmp_path, monkeypatch):
    """Of a run from random weights that gets worse from its first evaluation on."""
    task = classification(table)
    score, falling = task.score, iter([0.9, 0.5, 0.4])

    def falling_score(examples, features, outputs):
        metrics = score(examples, features, outputs)
        scored.append([output["logits"].tolist() for output in outputs])
        return {**metrics, "accuracy": next(falling, 0.3)}

    scored = []
    monkeypatch.setattr(task, "score", falling_score)
    config = str(pretrained / "albert_config.json")
    start = {"albert_config": config, "spm_model_file": str(tiny_vocabulary)}
    run_task(task, None, tmp_path, **start)
    assert model_directory.find_checkpoint(str(tmp_path / "seed_1/best"))[1].endswith("ckpt-20")
    at_20, _, at_60, predicted = scored
    assert predicted == at_20 != at_60


@pytest.mark.slow
def test_a_seed_decides_everything(two_seeds, table, pretrained, tmp_path):
    output_dir, results = two_seeds
    again = finetune(table, pretrained, tmp_path / "again", seeds=(2,))
    assert again["dev"]["seeds"]["2"] == results["dev"]["seeds"]["2"]
    ours, theirs = weights(tmp_path / "again/seed_2"), weights(output_dir / "seed_2")
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name])


def test_a_finished_run_only_predicts(two_seeds, table, pretrained):
    output_dir, results = two_seeds
    checkpoints = sorted((output_dir / "seed_1/checkpoints").iterdir())
    written = [path.stat().st_mtime_ns for path in checkpoints]
    again = finetune(table, pretrained, output_dir, (1, 2), ("train", "dev", "test"))
    assert again["dev"]["seeds"] == results["dev"]["seeds"]
    assert [path.stat().st_mtime_ns for path in checkpoints] == written
    rows = read_tsv(output_dir / "seed_2/predictions/test_predictions.tsv")
    assert len(rows) == TEST
    hits = [row["prediction"] == label for row, (*_, label) in zip(rows, make_rows(TEST, 2))]
    assert again["test"]["seeds"]["2"]["accuracy"] == pytest.approx(np.mean(hits))
    # Not even when its checkpoints are gone: the best weights are what counts.
    shutil.copytree(output_dir, output_dir.parent / "thin")
    shutil.rmtree(output_dir.parent / "thin/seed_1/checkpoints")
    (output_dir.parent / "thin/seed_1/results.json").write_text(
        (output_dir / "seed_1/results.json")
        .read_text()
        .replace("decoding", "coding")
        .replace('"coding": {}', '"decoding": {"older": 1}')
    )
    thin = finetune(table, pretrained, output_dir.parent / "thin", (1,))
    assert thin["dev"]["seeds"]["1"] == results["dev"]["seeds"]["1"]


def test_another_test_file_takes_the_place_of_the_first(two_seeds, table, pretrained, tmp_path):
    shutil.copytree(two_seeds[0], tmp_path / "run")
    splits = ("train", "dev", "test")
    first = finetune(table, pretrained, tmp_path / "run", (1, 2), splits)
    other = shutil.copytree(table, tmp_path / "table")
    shutil.copy(table / "dev.tsv", other / "test.tsv")
    second = finetune(other, pretrained, tmp_path / "run", (1, 2), splits)
    assert second["dev"] == first["dev"] == second["test"]
    alone = finetune(table, pretrained, tmp_path / "run", (2,), splits)
    assert alone["dev"] == first["dev"] and alone["test"]["seeds"].keys() == {"2"}
    second = finetune(other, pretrained, tmp_path / "run", (1, 2), splits)
    predictions = tmp_path / "run/seed_2/predictions"
    ours, theirs = (read_tsv(predictions / f"{s}_predictions.tsv") for s in ("test", "dev"))
    assert ours == theirs and len(ours) == DEV != TEST
    for name in ("curves.png", "predictions/dev_confusion.png"):
        assert (two_seeds[0] / "seed_1" / name).read_bytes().startswith(b"\x89PNG")


def test_predictions_of_another_decoding_killed_amidst(
    two_seeds, table, pretrained, tmp_path, monkeypatch
):
    """Whatever was written of them, the first command brings its own back."""
    shutil.copytree(two_seeds[0], tmp_path / "run")
    finetune(table, pretrained, tmp_path / "run", (1,))
    path = tmp_path / "run/seed_1/predictions/dev_predictions.tsv"
    before = path.read_text()

    def killed(*_):
        path.write_text("those of another decoding")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ClassificationTask, "write_predictions", killed)
        patch.setattr(ClassificationTask, "decoding", lambda self: {"other": 1})
        finetune(table, pretrained, tmp_path / "run", (1,))
    finetune(table, pretrained, tmp_path / "run", (1,))
    assert path.read_text() == before


def losses(output_dir):
    lines = (output_dir / "seed_1/metrics.jsonl").read_text().splitlines()
    return [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_replicas", "changes"),
    [
        (False, {"gradient_accumulation_steps": 3}),
        (True, {}),
        (True, {"gradient_accumulation_steps": 2}),
        (False, {"recompute": True}),
    ],
    ids=["micro-batches", "mirrored", "both", "recompute"],
)
def test_replicas_and_micro_batches_change_nothing(
    on_replicas, changes, table, pretrained, tmp_path, monkeypatch
):
    # The head's dropout has other draws in other replicas.
    monkeypatch.setattr("albert_tf.heads.dropout", lambda x, rate, seed: x)
    common = {"hidden_dropout_prob": 0.0, "num_train_steps": 20, "learning_rate": 1e-3}
    expected = finetune(table, pretrained, tmp_path / "one", **common)
    if on_replicas:
        changes = {**changes, "strategy": mirrored()}
    results = finetune(table, pretrained, tmp_path / "other", **common, **changes)
    assert len(losses(tmp_path / "one")) == 2
    np.testing.assert_allclose(losses(tmp_path / "other"), losses(tmp_path / "one"), rtol=1e-4)
    assert results == expected


def test_another_run_in_the_directory(two_seeds, table, pretrained, tmp_path):
    output_dir, _ = two_seeds
    with pytest.raises(ValueError, match=r"holds another run.*learning_rate 0\.005 there"):
        finetune(table, pretrained, output_dir, (3,), learning_rate=1e-3)
    for split in ("train", "dev"):
        other = tmp_path / f"other_{split}"
        shutil.copytree(table, other)
        with (other / f"{split}.tsv").open("a") as file:
            file.write("x\ta\tb\triver\n")
        with pytest.raises(ValueError, match=rf"holds another run.*{split} '"):
            finetune(other, pretrained, output_dir)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(pretrained, elsewhere)
    again = finetune(table, elsewhere, output_dir, (2,))
    assert again["dev"] == two_seeds[1]["dev"], "moved weights are the same, and seed 1 stays"
    model, _ = model_directory.load_for_pretraining(str(pretrained))
    model.encoder.pooler.bias.assign_add(tf.ones([32]))
    model_directory.save_for_pretraining(model, str(elsewhere))
    with pytest.raises(ValueError, match=r"holds another run.*init_weights '"):
        finetune(table, elsewhere, output_dir)


COMMAND = (
    "--task=classification",
    "--text_column=first",
    "--text_pair_column=second",
    "--id_column=name",
    "--max_seq_length=48",
    "--global_batch_size=12",
    "--num_train_steps=60",
    "--num_warmup_steps=6",
    "--learning_rate=5e-3",
    "--hidden_dropout_prob=0.1",
    "--steps_per_loop=10",
    "--save_checkpoint_steps=20",
    "--eval_steps=20",
)


@pytest.mark.slow
def test_killed_between_and_within_seeds(two_seeds, table, pretrained, tmp_path):
    """Whenever it is killed, the same command ends in the same weights and metrics."""
    output_dir, results = two_seeds
    flags = [
        *COMMAND,
        f"--train_file={table}/train.tsv",
        f"--dev_file={table}/dev.tsv",
        f"--init_checkpoint={pretrained}",
        f"--output_dir={tmp_path}",
        "--random_seeds=1,2",
    ]
    for awaited in (
        "seed_1/checkpoints/ckpt-20.index",
        "seed_1/results.json",
        "seed_2/checkpoints/ckpt-40.index",
    ):
        process = start("pipelines.finetune", *flags)
        until = time.monotonic() + 200
        while not (tmp_path / awaited).exists() and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert (tmp_path / awaited).exists() and not (tmp_path / "results.json").exists()
    run("pipelines.finetune", *flags)
    assert (
        json.loads((tmp_path / "results.json").read_text())["dev"]["seeds"]
        == results["dev"]["seeds"]
    )
    for seed in ("seed_1", "seed_2"):
        theirs = weights(output_dir / seed)
        for name, value in weights(tmp_path / seed).items():
            np.testing.assert_array_equal(value, theirs[name], err_msg=name)
