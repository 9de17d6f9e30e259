import dataclasses
import functools
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import model_directory
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines import finetune as finetune_lib
from pipelines.tasks.classification import ClassificationTask
from pipelines.tasks.reading import dev_split, split_report
from pipelines.tasks.running import seed_run
from pipelines.tasks.running.defaults import choose
from pipelines.tasks.running.results import summarise
from pipelines.tasks.running.seed_run import FinetuneSettings
from pipelines.training.settings import LoopSettings
from tests import builders
from tests.albert_tf.checkpoints.test_name_map import convert
from tests.builders import (
    DEV,
    TEST,
    classification,
    make_rows,
    raises_one_line,
    run_task,
    table_flags,
    tiny_config,
    write_pretrained,
)
from tests.jobs import assert_same_bits, log, run, run_code, start, wait_for, weights
from tests.pipelines.test_predict import read

# One layer, where the checkpoint has two: they share all weights.
finetune = functools.partial(builders.finetune, num_hidden_layers=1)


EACH_STEP = LoopSettings(steps_per_loop=1, save_checkpoint_steps=1, eval_steps=1)
# Few steps are cheaper without a graph.
finetune_briefly = functools.partial(
    finetune, loop=EACH_STEP, num_train_steps=3, num_warmup_steps=1
)


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory, table, pretrained):
    """A trained seed, and its copy with another number."""
    output_dir = tmp_path_factory.mktemp("runs") / "two"
    tf.config.run_functions_eagerly(True)
    try:
        finetune_briefly(table, pretrained, output_dir)
        shutil.copytree(output_dir / "seed_1", output_dir / "seed_2")
        return output_dir, finetune_briefly(table, pretrained, output_dir, seeds=(1, 2))
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.slow
def test_learns(table, pretrained, tmp_path):
    results = finetune(table, pretrained, tmp_path / "out")
    assert results["dev"]["median"]["accuracy"] > 0.85, "a single word decides"


def test_says_what_it_did(two_seeds, table, pretrained):
    output_dir, results = two_seeds
    assert json.loads((output_dir / "results.json").read_text()) == results
    accuracy, directory = results["dev"]["median"]["accuracy"], output_dir / "seed_1"
    rows = read(directory / "predictions/dev_predictions.tsv")
    assert [row["id"] for row in rows] == [f"id{i}" for i in range(DEV)]
    hits = [row["label"] == row["prediction"] for row in rows]
    assert np.mean(hits) == pytest.approx(accuracy)
    # The best weights are those of the best score.
    scores = {e["step"]: e["dev_accuracy"] for e in log(directory) if "dev_accuracy" in e}
    assert list(scores) == [1, 2, 3] and max(scores.values()) == accuracy
    _, path = model_directory.find_checkpoint(str(directory / "best"))
    assert scores[int(path.rsplit("-", 1)[1])] == accuracy
    # Padding counts as no tokens.
    tokenizer, task = AlbertTokenizer.load(str(pretrained)), classification(table)
    sequences, _ = task.encode(task.read("train"), tokenizer, 48, True)
    entry = next(e for e in log(directory) if "tokens_per_second" in e)
    mean = entry["tokens_per_second"] / entry["examples_per_second"]
    assert mean == pytest.approx(np.diff(sequences.row_splits).mean())
    # An export knows the task.
    kind = {"task": "classification", "kind": "classifier", "has_pairs": True}
    description = {**kind, "labels": ["other", "river"], "max_seq_length": 48, "quoting": "csv"}
    columns = {"text": "first", "text_pair": "second", "label": "label", "id": "name"}
    stored = json.loads((directory / "task.json").read_text())
    assert stored == {**description, "columns": columns}


@pytest.fixture(scope="module")
def frozen(tmp_path_factory, table, pretrained):
    """A run of a frozen, deeper encoder that gets worse from its first evaluation on.

    Returns its directory, and the probabilities of dev at both evaluations and at the end.
    """
    task, run_dir = classification(table), tmp_path_factory.mktemp("runs") / "frozen"
    score, falling, scored = task.score, iter([0.9, 0.5]), []

    def falling_score(rows):
        rows = list(rows)
        scored.append([row["probability_of_label"] for row in rows])
        return {**score(rows), "accuracy": next(falling, 0.3)}

    changes = {"num_hidden_layers": 3, "freeze_encoder": True}
    changes |= {"num_train_steps": 2, "num_warmup_steps": 0}
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task, "score", falling_score)
            run_task(task, pretrained, run_dir, loop=EACH_STEP, **changes)
    finally:
        tf.config.run_functions_eagerly(False)
    return run_dir, scored


def test_the_best_weights_predict(frozen):
    run_dir, (at_1, at_2, predicted) = frozen
    assert model_directory.find_checkpoint(str(run_dir / "seed_1/best"))[1].endswith("ckpt-1")
    assert predicted == at_1 != at_2


def test_a_frozen_encoder(frozen, pretrained):
    _, checkpoint = model_directory.find_checkpoint(str(pretrained))
    theirs, ours = tf.train.load_checkpoint(checkpoint), weights(frozen[0] / "seed_1")
    encoder = [name for name in ours if name.startswith("model/encoder/")]
    assert len(encoder) > 10 and any("pooler/kernel" in name for name in encoder)
    for name in encoder:
        np.testing.assert_array_equal(ours[name], theirs.get_tensor(name))
    [head] = {name for name in ours if "bias/.ATTRIBUTES/VARIABLE" in name} - set(encoder)
    assert np.abs(ours[head]).max() > 1e-3, "biases begin at 0"


def test_another_depth(frozen, tmp_path):
    """The checkpoint has two layers, which share all weights."""
    assert json.loads((frozen[0] / "run.json").read_text())["config.num_hidden_layers"] == 3
    converted = convert(frozen[0] / "seed_1", tmp_path / "converted", "huggingface")
    assert json.loads((converted / "config.json").read_text())["num_hidden_layers"] == 3


@pytest.mark.usefixtures("eager")
def test_a_finished_run_only_predicts(two_seeds, table, pretrained, tmp_path):
    """Even when its checkpoints are gone: the best weights are what counts."""
    output_dir, results = two_seeds
    run_dir = shutil.copytree(output_dir, tmp_path / "run")
    shutil.rmtree(run_dir / "seed_1/checkpoints")
    stored = json.loads((run_dir / "seed_1/results.json").read_text())
    stored["predicted"]["decoding"] = {"older": 1}
    (run_dir / "seed_1/results.json").write_text(json.dumps(stored))
    checkpoints = sorted((run_dir / "seed_2/checkpoints").iterdir())
    written = [path.stat().st_mtime_ns for path in checkpoints]
    splits = ("train", "dev", "test")
    first = finetune_briefly(table, pretrained, run_dir, (1, 2), splits)
    assert first["dev"] == results["dev"]
    assert [path.stat().st_mtime_ns for path in checkpoints] == written
    assert not (run_dir / "seed_1/checkpoints").exists()
    predictions = run_dir / "seed_2/predictions"
    rows = read(predictions / "test_predictions.tsv")
    assert len(rows) == TEST
    hits = [row["prediction"] == label for row, (*_, label) in zip(rows, make_rows(TEST, 2))]
    assert first["test"]["seeds"]["2"]["accuracy"] == pytest.approx(np.mean(hits))
    # Another test file takes the place of the first.
    other = shutil.copytree(table, tmp_path / "table")
    shutil.copy(table / "dev.tsv", other / "test.tsv")
    alone = finetune_briefly(other, pretrained, run_dir, (2,), splits)
    assert alone["dev"] == first["dev"] and alone["test"]["seeds"].keys() == {"2"}
    second = finetune_briefly(other, pretrained, run_dir, (1, 2), splits)
    assert second["dev"] == first["dev"] == second["test"]
    ours, theirs = (read(predictions / f"{s}_predictions.tsv") for s in ("test", "dev"))
    assert len(ours) == DEV != TEST
    assert ours == theirs


def test_the_summary_of_seeds():
    figures = {seed: {"dev": {"f1": value}} for seed, value in ((1, 0.5), (2, 0.9), (3, 0.6))}
    of_dev = summarise("own", "f1", {**figures, 4: {}})["dev"]
    values = [of_dev[name]["f1"] for name in ("median", "lowest", "highest")]
    assert values == [0.6, 0.5, 0.9] and of_dev["seeds"].keys() == {"1", "2", "3"}


@pytest.mark.usefixtures("eager")
def test_another_decoding_killed_amidst(two_seeds, table, pretrained, tmp_path, monkeypatch):
    """Whatever was written of them, the first command brings its own back."""
    shutil.copytree(two_seeds[0], tmp_path / "run")
    path = tmp_path / "run/seed_1/predictions/dev_predictions.tsv"
    before = [row["prediction"] for row in read(path)]

    def killed(*_):
        path.write_text("those of another decoding")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        describe = ClassificationTask.description
        other = {"decoding": {"other": 1}}
        patch.setattr(ClassificationTask, "write", killed)
        patch.setattr(ClassificationTask, "description", lambda t: describe(t)._replace(**other))
        finetune_briefly(table, pretrained, tmp_path / "run", (1,))
    finetune_briefly(table, pretrained, tmp_path / "run", (1,))
    assert [row["prediction"] for row in read(path)] == before


def test_another_run_in_the_directory(two_seeds, table, pretrained, tmp_path):
    output_dir, _ = two_seeds
    with pytest.raises(ValueError, match=r"holds another run.*learning_rate 0\.005 there"):
        finetune_briefly(table, pretrained, output_dir, (3,), learning_rate=1e-3)
    for split in ("train", "dev"):
        other = tmp_path / f"other_{split}"
        shutil.copytree(table, other)
        with (other / f"{split}.tsv").open("a") as file:
            file.write("x\ta\tb\triver\n")
        with pytest.raises(ValueError, match=rf"holds another run.*{split} '"):
            finetune_briefly(other, pretrained, output_dir)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(pretrained, elsewhere)
    again = finetune_briefly(table, elsewhere, output_dir, (2,))
    assert again["dev"] == two_seeds[1]["dev"], "moved weights are the same, and seed 1 stays"
    model, _ = albert_tf.from_pretrained(pretrained)
    model.encoder.pooler.bias.assign_add(tf.ones([32]))
    model_directory.save(model, str(elsewhere))
    with pytest.raises(ValueError, match=r"holds another run.*init_weights '"):
        finetune_briefly(table, elsewhere, output_dir)


# Reads and checks all, and trains nothing.
WITHOUT_TRAINING = """
from pipelines.tasks.running import seed_run
seed_run.run_seed = lambda *_: {"metrics": {}}
"""


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ("--task=classification --text_column=first --train_file={}/train.tsv", "dev_fraction"),
        ("--task=embedding --train_file={}/texts.csv --eval_steps=0", "hidden_dropout_prob"),
    ],
)
def test_what_is_not_given_is_chosen_and_printed(table, pretrained, tmp_path, more, name):
    shutil.copy(table / "train.tsv", tmp_path)
    (tmp_path / "texts.csv").write_text("text\n" + "The fox said\nA river\n" * 20)
    flags = [*more.format(tmp_path).split(), "--nobaseline", f"--output_dir={tmp_path}/out"]
    flags += [f"--init_checkpoint={pretrained}"]
    out, _ = run("pipelines.finetune", *flags, before=WITHOUT_TRAINING)
    assert ("dev      9 rows" in out) == (name == "dev_fraction")
    [chosen] = re.findall("chosen   (.*)", out)
    assert f"--{name}" in chosen
    # They are those of the run, which the same command resumes.
    out, _ = run("pipelines.finetune", *flags, *chosen.split(), before=WITHOUT_TRAINING)
    assert "chosen" not in out


@pytest.mark.parametrize(
    ("width", "rows", "rate", "epochs", "warmup_steps", "eval_steps"),
    [(768, 100, 3.7e-5, 20, 6, 7), (256, 2000, 3.4e-4, 10, 62, 63), (4096, 9000, 1e-5, 3, 84, 85)],
)
def test_the_rule(width, rows, rate, epochs, warmup_steps, eval_steps):
    values = {"learning_rate": rate, "num_epochs": epochs, "adamw_bias_correction": True}
    values |= {"num_warmup_steps": warmup_steps, "eval_steps": eval_steps}
    loop = LoopSettings(steps_per_loop=1, save_checkpoint_steps=1, eval_steps=None)
    settings = {"learning_rate": None, "num_train_steps": None, "num_warmup_steps": None}
    config = tiny_config(hidden_size=width)
    settings = FinetuneSettings(global_batch_size=32, **settings)
    assert choose(settings, loop, config, rows)[2] == values
    given = dataclasses.replace(settings, num_train_steps=5, learning_rate=1.0)
    assert choose(given, loop, config, rows)[2].keys() == values.keys() - {
        "learning_rate",
        "num_epochs",
    }
    frozen = dataclasses.replace(settings, freeze_encoder=True)
    assert choose(frozen, loop, config, rows)[2] == {**values, "learning_rate": 1e-3}


@pytest.mark.slow
def test_killed_between_and_within_seeds(table, pretrained, tmp_path):
    """Whenever it is killed, the same command ends in the same weights and metrics."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    flags = table_flags(table, pretrained, killed, "--random_seeds=1,2", splits=["train"])
    flags = [flag for flag in flags if not re.match("--(num_|learning|eval)", flag)]
    flags += "--num_epochs=8 --save_checkpoint_steps=20 --hidden_dropout_prob=0.1".split()
    run("pipelines.finetune", *flags, f"--output_dir={whole}")
    for awaited in (
        "seed_1/checkpoints/ckpt-20.index",
        "seed_1/results.json",
        "seed_2/checkpoints/ckpt-40.index",
    ):
        process = start("pipelines.finetune", *flags)
        wait_for((killed / awaited).exists, [process])
        process.kill()
        process.communicate()
        assert (killed / awaited).exists() and not (killed / "results.json").exists()
    run("pipelines.finetune", *flags)
    assert (killed / "results.json").read_text() == (whole / "results.json").read_text()
    for seed in ("seed_1", "seed_2"):
        assert_same_bits(killed / seed, whole / seed)
    one, two = (weights(whole / f"seed_{seed}") for seed in (1, 2))
    assert any(not np.array_equal(one[name], two[name]) for name in one)


MESSAGES = """
import json, sys
from absl.testing import flagsaver
from albert_tf.jobs import program
from pipelines import finetune
finetune.define_flags()
for flags in json.loads(sys.argv[1]):
    with flagsaver.flagsaver():
        try:
            program._parse_flags(["finetune", *flags])
            finetune.main([])
        except SystemExit:
            pass
        except program.UserError as error:
            print(f"error: {error}", file=sys.stderr)
"""


def test_one_line_for_wrong_flags(table, pretrained, tmp_path):
    train = table / "train.tsv"
    own = f"--task=classification --train_file={train} --text_column=first"
    start = f"{own} --init_checkpoint={pretrained}"
    cases = {
        "": "error: give --task; see --help",
        "--task=rte --num_epochs=2 --num_train_steps=9": "exclude each other",
        f"{start} --num_epochs=0": "flag --num_epochs=0",
        "--task=rte --data_dir=/nowhere": "--data_dir: there is no directory '/nowhere'",
        own: "give --init_checkpoint",
        f"{own} --label_column=": "--label_column is empty: name the column",
        f"--task=embedding --train_file={train} --label_column=": "give --init_checkpoint",
        f"{own} --text_column=label": "--text_column and --label_column both name the column",
        f"--task=rte --data_dir=. --dev_file={train}": "--dev_file does not apply to --task=rte",
        f"{start} --albert_config=albert_base": "is the checkpoint's own",
        "--task=race --data_dir=. --random_seeds=1,1": "expected different whole numbers",
        "--task=race --data_dir=. --labels=a,b": "--labels does not apply to --task=race",
        f"{own} --doc_stride=64": "does not apply to --task=classification, only to squad_v1, squ",
        "--task=squad_v1 --data_dir=. --null_threshold=0": "only to squad_v2: remove",
        f"{own} --data_dir=.": "--data_dir does not apply to --task=classification, only to race",
        f"{own} --folds=5 --dev_fraction=0.1": "--folds divides the training rows: remove --dev_f",
        f"{own} --folds=2 --learning_rate=1,2": "num_epochs: give one value each with --folds",
        f"{own} --learning_rate=1,1.0": "--num_epochs: learning_rate_1 is there twice",
        f"{start} --num_epochs=1,2 --eval_steps=0": "are compared on dev",
        f"{start} --num_epochs=1,2 --dev_fraction=0": "are compared on dev: give --dev_file",
        f"{start} --num_epochs=4,6 --num_warmup_steps=12": "12 is beyond the run's 11 steps",
        f"{start} --num_epochs=4 --folds=3 --num_warmup_steps=9": "9 is beyond the run's 8 steps",
        f"{start} --folds=95": "rows have 90 different texts: use fewer",
        "--task=cola --data_dir=. --folds=5": "--folds does not apply to --task=cola, only to cl",
        "--task=glue --data_dir=.": "flag --task=glue: value should be one of <cola|sst2|mrpc|",
        f"{own} --lr=1e-4": "error: there is no flag --lr: use --learning_rate; see --help",
    }
    flags = [[*case.split(), f"--output_dir={tmp_path}/out"] for case in cases]
    _, err = run_code(MESSAGES, json.dumps(flags))
    lines = [line for line in err.splitlines() if "absl::InitializeLog" not in line]
    assert len(lines) == len(cases), err
    for line, message in zip(lines, cases.values()):
        assert line.startswith("error: ") and message in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sharing", "groups", "wrong", "right"),
    [("none", 1, 5, "1, 2, 3, 4"), ("attention", 2, 2, "3, 4"), ("all", 2, 1, "2, 3, 4")],
)
def test_a_depth_beyond_the_weights(tiny_vocabulary, tmp_path, sharing, groups, wrong, right):
    changes = {"parameter_sharing": sharing, "num_hidden_groups": groups, "num_hidden_layers": 4}
    write_pretrained(tmp_path, tiny_vocabulary, **changes)
    initial = finetune_lib.initial_model(str(tmp_path), None, None, num_hidden_layers=3)
    assert initial.config.num_hidden_layers == 3
    with raises_one_line(rf"--num_hidden_layers={wrong}: .*: give one of {right}$"):
        finetune_lib.initial_model(str(tmp_path), None, None, num_hidden_layers=wrong)


@pytest.mark.parametrize(("given", "expected", "warns"), [(None, 24, False), (32, 32, True)])
def test_the_default_length_is_that_of_the_checkpoint(
    table, pretrained, tmp_path, monkeypatch, capsys, given, expected, warns
):
    shorter = tmp_path / "shorter"
    shutil.copytree(pretrained, shorter)
    (shorter / "run.json").write_text('{"max_seq_length": 24}')
    monkeypatch.setattr(seed_run, "run_seed", lambda *_: {"metrics": {}})
    finetune(table, shorter, tmp_path / "out", max_seq_length=given)
    assert json.loads((tmp_path / "out/run.json").read_text())["max_seq_length"] == expected
    assert ("was trained with at most 24 pieces" in capsys.readouterr().out) == warns


def test_what_does_not_fit(table, pretrained, tiny_vocabulary, tmp_path):
    for changes, message in (
        ({"global_batch_size": 10, "gradient_accumulation_steps": 3}, "does not divide"),
        ({"max_seq_length": 65}, r"--max_seq_length=65 is beyond .* \(64 rows\): use at most 64"),
        ({"num_warmup_steps": 61}, "61 is beyond the run's 60 steps"),
        ({"num_epochs": 0.5}, "6 is beyond the run's 4 steps: "),
        ({"splits": ("train",)}, "no dev set"),
        ({"splits": ("dev",)}, "labels of classification are not known"),
    ):
        with pytest.raises(ValueError, match=message):
            finetune(table, pretrained, tmp_path / "out", **changes)
        assert not (tmp_path / "out").exists()
    config = json.loads((pretrained / "albert_config.json").read_text())
    one_type = tmp_path / "one_type.json"
    one_type.write_text(json.dumps({**config, "type_vocab_size": 1}))
    start = {"albert_config": str(one_type), "spm_model_file": str(tiny_vocabulary)}
    with pytest.raises(ValueError, match="are pairs of texts, but the model has one segment type"):
        finetune(table, None, tmp_path / "out", **start)


def test_another_division_is_another_run(table, pretrained, tmp_path, monkeypatch, capsys):
    divide = functools.partial(dev_split.split_off_dev, fraction=0.1)
    monkeypatch.setattr(seed_run, "run_seed", lambda *_: {"metrics": {}})
    notes = ["dev: a note", "warning: no sample"]
    monkeypatch.setattr(split_report, "describe_division", lambda *_: notes)
    task, run_dir = classification(table, ["train"]), tmp_path / "run"
    for _ in range(2):
        run_task(task, pretrained, run_dir, divide=divide)
    out = capsys.readouterr().out
    assert "warning: dev has fewer than ten rows of 'other' " in out
    assert notes[1] in out.rpartition("results.json")[2], "beside the figures, too"
    assert (out.count(notes[0]), out.count(notes[1])) == (2, 4)
    monkeypatch.setattr(dev_split, "DIVISION", "x")
    with pytest.raises(ValueError, match=r"holds another run .*dev_division \d there, 'x' here"):
        run_task(task, pretrained, run_dir, divide=divide)
