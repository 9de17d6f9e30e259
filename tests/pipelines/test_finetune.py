"""Fine-tuning: it learns, goes on, repeats itself, and says what it cannot use."""

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
from tests.builders import (
    DEV,
    TEST,
    classification,
    finetune,
    finetune_flags,
    make_rows,
    read_tsv,
    run_task,
)
from tests.jobs import assert_same_bits, log, run, start, weights
from tests.replicas import mirrored


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory, table, pretrained):
    output_dir = tmp_path_factory.mktemp("runs") / "two"
    return output_dir, finetune(table, pretrained, output_dir, seeds=(1, 2))


def test_learns_and_says_so(two_seeds, table, pretrained):
    output_dir, results = two_seeds
    assert json.loads((output_dir / "results.json").read_text()) == results
    accuracies = [results["dev"]["seeds"][seed]["accuracy"] for seed in ("1", "2")]
    assert min(accuracies) > 0.85, "a single word decides"
    assert results["dev"]["median"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert results["dev"]["lowest"]["accuracy"] == min(accuracies)
    one, two = (weights(output_dir / f"seed_{seed}") for seed in (1, 2))
    assert any(not np.array_equal(one[name], two[name]) for name in one)
    for seed, accuracy in zip((1, 2), accuracies):
        directory = output_dir / f"seed_{seed}"
        rows = read_tsv(directory / "predictions/dev_predictions.tsv")
        assert [row["id"] for row in rows] == [f"id{i}" for i in range(DEV)]
        hits = [row["label"] == row["prediction"] for row in rows]
        assert np.mean(hits) == pytest.approx(accuracy)
        # The best weights are those of the best score.
        scores = {e["step"]: e["dev_accuracy"] for e in log(directory) if "dev_accuracy" in e}
        assert list(scores) == [20, 40, 60] and max(scores.values()) == accuracy
        _, path = model_directory.find_checkpoint(str(directory / "best"))
        assert scores[int(path.rsplit("-", 1)[1])] == accuracy
    # Padding counts as no tokens.
    tokenizer = AlbertTokenizer.load(str(pretrained))
    task = classification(table)
    sequences, _ = task.encode(task.read("train"), tokenizer, 48, True)
    [entry, *_] = [e for e in log(output_dir / "seed_1") if "tokens_per_second" in e]
    mean = entry["tokens_per_second"] / entry["examples_per_second"]
    assert mean == pytest.approx(np.diff(sequences.row_splits).mean())
    # An export knows the task.
    columns = {"text": "first", "text_pair": "second", "label": "label", "id": "name"}
    kind = {"task": "classification", "kind": "classifier", "has_pairs": True}
    description = {**kind, "labels": ["other", "river"], "max_seq_length": 48, "quoting": "csv"}
    stored = json.loads((output_dir / "seed_2/task.json").read_text())
    assert stored == {**description, "columns": columns}


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
    thin = shutil.copytree(output_dir, output_dir.parent / "thin")
    shutil.rmtree(thin / "seed_1/checkpoints")
    stored = json.loads((thin / "seed_1/results.json").read_text())
    stored["predicted"]["decoding"] = {"older": 1}
    (thin / "seed_1/results.json").write_text(json.dumps(stored))
    again = finetune(table, pretrained, thin, (1,))
    assert again["dev"]["seeds"]["1"] == results["dev"]["seeds"]["1"]


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


def test_another_decoding_killed_amidst(two_seeds, table, pretrained, tmp_path, monkeypatch):
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
    return [entry["loss"] for entry in log(output_dir / "seed_1") if "loss" in entry]


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


@pytest.mark.slow
def test_killed_between_and_within_seeds(two_seeds, table, pretrained, tmp_path):
    """Whenever it is killed, the same command ends in the same weights and metrics."""
    output_dir, results = two_seeds
    columns = "--text_column=first --text_pair_column=second --id_column=name --max_seq_length=48"
    steps = "--num_train_steps=60 --num_warmup_steps=6 --learning_rate=5e-3"
    loop = "--steps_per_loop=10 --save_checkpoint_steps=20 --eval_steps=20"
    flags = [*finetune_flags(table, pretrained), f"--output_dir={tmp_path}", "--random_seeds=1,2"]
    flags += f"{columns} {steps} {loop} --hidden_dropout_prob=0.1".split()
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
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["dev"]["seeds"] == results["dev"]["seeds"]
    for seed in ("seed_1", "seed_2"):
        assert_same_bits(tmp_path / seed, output_dir / seed)
