import json
import random
import re
import shutil

import numpy as np
import pytest

from tests.builders import TRAIN, finetune_flags, read_tsv, table_flags, write_pretrained
from tests.conftest import WORDS
from tests.jobs import QUICKLY, log, run
from tests.pipelines.test_finetune_kinds import KINDS, written_predictions
from tests.pipelines.test_predict import read


def run_folds(table, pretrained, output_dir, *more, folds=2, exit_code=0):
    more = [*more, f"--folds={folds}", "--random_seeds=2", "--num_train_steps=3"]
    flags = table_flags(table, pretrained, output_dir, *more, splits=["train"])
    flags = [flag for flag in flags if "--eval_steps" not in flag]
    return run("pipelines.finetune", *flags, exit_code=exit_code, before=QUICKLY)[exit_code // 2]


@pytest.fixture(scope="module")
def two_folds(tmp_path_factory, table, pretrained):
    output_dir = tmp_path_factory.mktemp("runs") / "folds"
    return output_dir, run_folds(table, pretrained, output_dir)


def test_each_row_is_predicted_by_the_run_without_it(two_folds, table):
    output_dir, out = two_folds
    given, rows = read_tsv(table / "train.tsv"), read(output_dir / "out_of_fold.csv")
    assert [(row["id"], row["label"]) for row in rows] == [(r["name"], r["label"]) for r in given]
    names = ["id", "label", "prediction", "probability_other", "probability_river", "fold"]
    assert list(rows[0]) == names
    for fold in "12":
        ours = [row for row in rows if row["fold"] == fold]
        theirs = read_tsv(output_dir / f"fold_{fold}/seed_2/predictions/dev_predictions.tsv")
        assert len(ours) == len(theirs) == TRAIN / 2
        for our, their in zip(ours, theirs):
            assert our["id"] == their["id"] and our["prediction"] == their["prediction"]
            assert float(our[names[3]]) == pytest.approx(float(their[names[3]]), abs=1e-5)
    results = json.loads((output_dir / "results.json").read_text())
    accuracy = np.mean([row["label"] == row["prediction"] for row in rows])
    assert results["metrics"]["accuracy"] == pytest.approx(accuracy) and results["seed"] == 2
    of_folds = [results["folds"][fold]["accuracy"] for fold in "12"]
    assert np.mean(of_folds) == pytest.approx(accuracy), "folds of one size"
    assert len(re.findall("chosen .* --eval_steps=0", out)) == 2
    assert f"out of fold: {TRAIN} rows, 2 folds, seed 2\n" in out
    assert re.search(rf"{accuracy:.4f} .* 95 % interval .* folds {min(of_folds):.4f} to ", out)
    assert not (output_dir / "fold_1/seed_2/best").exists(), "the fold chooses no weights"
    of_all = out.partition("out of fold: ")[2]
    value = results["baselines"]["words alone"]["metrics"]["accuracy"]
    assert f"; words alone {value:.4f} (" in of_all and value > 0.9
    assert re.search(rf"river +{sum(row['label'] == 'river' for row in rows)} ", of_all)
    errors = read(output_dir / "predictions/out_of_fold_errors.csv")
    assert {row["id"] for row in errors} == {row["id"] for row in rows}


@pytest.mark.slow
def test_a_killed_command_does_the_missing_folds_only(two_folds, table, pretrained, tmp_path):
    output_dir = shutil.copytree(two_folds[0], tmp_path / "folds")
    expected = (output_dir / "out_of_fold.csv").read_text()
    for missing in ("results.json", "out_of_fold.csv"):
        (output_dir / missing).unlink()
    shutil.rmtree(output_dir / "fold_2")
    out = run_folds(table, pretrained, output_dir, "--nobaseline")
    assert "words alone" not in out
    written = re.findall(r"^predictions .*folds/(.*)/predictions/", out, re.MULTILINE)
    assert {*written} == {"fold_2/seed_2"}
    assert (output_dir / "out_of_fold.csv").read_text() == expected
    err = run_folds(table, pretrained, output_dir, folds=3, exit_code=2)
    assert "holds another run (folds 2 there, 3 here)" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "task", "metric"),
    [
        ("numbers", "regression", "pearson"),
        ("sets", "multilabel", "micro_f1"),
        ("choices", "multiple_choice", "accuracy"),
        ("tokens", "token_classification", "f1"),
    ],
)
def test_every_task_of_own_files(kind, task, metric, pretrained, tmp_path):
    """Tags have several windows for a text."""
    own = [f"--train_file={KINDS[kind](tmp_path).files['train'][0]}", "--random_seeds=1"]
    own += [f"--init_checkpoint={pretrained}", f"--output_dir={tmp_path}/out"]
    flags = [f"--task={task}", *own, "--num_train_steps=30"]
    flags += "--num_warmup_steps=3 --learning_rate=5e-3 --global_batch_size=4 --folds=2".split()
    flags += ["--max_seq_length=32"] + ["--doc_stride=8"] * (kind == "tokens")
    run("pipelines.finetune", *flags)
    results = json.loads((tmp_path / "out/results.json").read_text())
    rows = read(tmp_path / "out/out_of_fold.csv")
    assert [row["id"] for row in rows] == [str(i) for i in range(26)]
    assert metric in results["metrics"].keys() == results["folds"]["2"].keys()
    for fold in "12":
        ours = [row["prediction"] for row in rows if row["fold"] == fold]
        ours = [json.loads(value) for value in ours] if kind in ("numbers", "tokens") else ours
        assert ours == written_predictions(kind, tmp_path / f"out/fold_{fold}")


@pytest.mark.slow
def test_labels_of_chance_give_chance(tiny_vocabulary, tmp_path):
    """The model learns its training rows by heart; about the rows of its fold it knows nothing."""
    rng = random.Random(1)
    labels = ["a", "b"] * 150
    rng.shuffle(labels)
    rows = [f"{label}\t{' '.join(rng.choices(WORDS, k=12))}" for label in labels]
    (tmp_path / "train.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    initial = tmp_path / "initial"
    write_pretrained(initial, tiny_vocabulary, classifier_dropout_prob=0.0)
    flags = [*finetune_flags(tmp_path, initial, ["train"])[:-1], f"--output_dir={tmp_path}/out"]
    flags += "--num_train_steps=600 --save_checkpoint_steps=600 --learning_rate=3e-4".split()
    flags += "--hidden_dropout_prob=0 --folds=5".split()
    run("pipelines.finetune", *flags)
    assert log(tmp_path / "out/fold_1/seed_12345")[-1]["loss"] < 0.5
    results = json.loads((tmp_path / "out/results.json").read_text())
    # Four standard deviations of chance; training on all rows gives 0.89.
    assert 0.385 < results["metrics"]["accuracy"] < 0.615
