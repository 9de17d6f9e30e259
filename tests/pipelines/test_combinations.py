"""Several learning rates and epochs by one command: each combination is a run of its own."""

import json
import shutil

import pytest

from pipelines.tasks.running.fine_tuned import find_model
from tests.builders import table_flags
from tests.jobs import run

RATES = ("learning_rate_0.02", "learning_rate_1e-05")  # the second is better
TWO = ["--learning_rate=0.02,1e-5", "--random_seeds=2"]


@pytest.fixture(scope="module")
def two_rates(tmp_path_factory, table, pretrained):
    output_dir = tmp_path_factory.mktemp("runs") / "rates"
    out, _ = run("pipelines.finetune", *table_flags(table, pretrained, output_dir, *TWO))
    return output_dir, out


def test_a_table_with_the_best_on_dev(two_rates):
    output_dir, out = two_rates
    assert f"2 runs, 1 seed each: {', '.join(RATES)}\n" in out
    results = json.loads((output_dir / "combinations.json").read_text())
    summaries = results["combinations"]
    assert tuple(summaries) == RATES and results["best_metric"] == "accuracy"
    medians = {}
    for name, summary in summaries.items():
        assert json.loads((output_dir / name / "results.json").read_text()) == summary
        assert set(summary["dev"]["seeds"]) == {"2"}
        medians[name] = summary["dev"]["median"]["accuracy"]
        settings = json.loads((output_dir / name / "run.json").read_text())
        assert f"learning_rate_{settings['learning_rate']:g}" == name
    assert results["best"] == max(medians, key=medians.get) == RATES[1]
    assert find_model(str(output_dir)) == f"{output_dir}/{RATES[1]}/seed_2"
    assert f"best     {output_dir}/{results['best']} by accuracy" in out


def test_other_settings_are_refused(two_rates, table, pretrained, tmp_path):
    output_dir = shutil.copytree(two_rates[0], tmp_path / "rates")
    for rates, other in (
        ("0.02,1e-5", "--global_batch_size=6"),
        ("0.03,1e-4", "--num_train_steps=9"),
        ("0.02", "--random_seeds=1"),
    ):
        flags = table_flags(table, pretrained, output_dir, f"--learning_rate={rates}", other)
        err = run("pipelines.finetune", *flags, exit_code=2)[1]
        assert "another run" in err or "other settings" in err, err
    longer, rows = tmp_path / "longer.tsv", (table / "train.tsv").read_text()
    longer.write_text(rows + rows.splitlines(keepends=True)[-1])
    more = ["--learning_rate=0.03,1e-4", f"--train_file={longer}"]
    flags = table_flags(table, pretrained, output_dir, *more)
    assert "holds another run (train " in run("pipelines.finetune", *flags, exit_code=2)[1]


def test_a_killed_command_does_what_is_missing(two_rates, table, pretrained, tmp_path):
    output_dir = shutil.copytree(two_rates[0], tmp_path / "rates")
    expected = (output_dir / "combinations.json").read_text()
    (output_dir / "combinations.json").unlink()
    shutil.rmtree(output_dir / RATES[1] / "seed_2")
    out, _ = run("pipelines.finetune", *table_flags(table, pretrained, output_dir, *TWO))
    [written] = [line for line in out.splitlines() if line.startswith("curves ")]
    assert written.endswith(f"rates/{RATES[1]}/seed_2/curves.png")
    assert (output_dir / "combinations.json").read_text() == expected


def test_what_cannot_be_compared_leaves_no_directory(table, pretrained, tmp_path):
    warm_up = "--num_warmup_steps=20"
    for splits, *more, steps in (
        (["train", "dev"], "--num_epochs=2,3", 15),
        (["train"], "--num_epochs=2", "--folds=3", 10),
    ):
        flags = table_flags(table, pretrained, tmp_path / "out", splits=splits)
        flags = [f for f in flags if "num_" not in f]
        err = run("pipelines.finetune", *flags, *more, warm_up, exit_code=2)[1]
        assert f"--num_warmup_steps=20 is beyond the run's {steps} steps" in err
    flags = table_flags(table, pretrained, tmp_path / "out", *TWO, splits=("train",))
    for more in ([], ["--eval_steps=0"]):
        err = run("pipelines.finetune", *flags, *more, exit_code=2)[1]
        assert "several values are compared on dev: give --dev_file" in err
    assert not (tmp_path / "out").exists()
