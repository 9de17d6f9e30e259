"""Several learning rates and epochs by one command: each combination is a run of its own."""

import json
import re
import shutil

import pytest

from pipelines.tasks.running.fine_tuned import find_model
from tests.builders import table_flags
from tests.jobs import QUICKLY, run

RATES = ("learning_rate_0.02", "learning_rate_1e-05")  # the second is better
TWO = "--learning_rate=0.02,1e-5 --random_seeds=2 --noadamw_bias_correction"


def finetune(*places, more, exit_code=0):
    """Returns what the program printed to stdout, or the error of exit code 2."""
    flags = [*table_flags(*places), "--num_train_steps=3", *more.split()]
    return run("pipelines.finetune", *flags, exit_code=exit_code, before=QUICKLY)[exit_code // 2]


@pytest.fixture(scope="module")
def two_rates(tmp_path_factory, table, pretrained):
    output_dir = tmp_path_factory.mktemp("runs") / "rates"
    return output_dir, finetune(table, pretrained, output_dir, more=TWO)


@pytest.mark.slow
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
    assert " to " not in out.partition("metric on dev")[2].partition("best ")[0], "of one seed"
    value = results["combinations"][RATES[0]]["dev"]["baselines"]["words alone"]["metrics"]
    of_model = f"warning: accuracy {medians[RATES[0]]:.4f} is not above"
    assert f"{of_model} {value['accuracy']:.4f} of words alone" in out
    assert out.count("baselines    accuracy on dev; words alone") == 1, "fitted once"


@pytest.mark.slow
def test_a_killed_command_does_what_is_missing_and_no_other_run(
    two_rates, table, pretrained, tmp_path
):
    output_dir = shutil.copytree(two_rates[0], tmp_path / "rates")
    rows = (table / "train.tsv").read_text()
    (tmp_path / "longer.tsv").write_text(rows + rows.splitlines(keepends=True)[-1])
    for rates, other in (
        ("0.02,1e-5", "--global_batch_size=6"),
        ("0.02", "--random_seeds=1"),
        ("0.03,1e-4", f"--train_file={tmp_path}/longer.tsv"),
    ):
        more = f"--learning_rate={rates} {other}"
        err = finetune(table, pretrained, output_dir, more=more, exit_code=2)
        assert "another run" in err or "another kind of run" in err, err
    expected = (output_dir / "combinations.json").read_text()
    (output_dir / "combinations.json").unlink()
    shutil.rmtree(output_dir / RATES[1] / "seed_2")
    out = finetune(table, pretrained, output_dir, more=TWO)
    written = re.findall(r"^predictions .*rates/(.*)/predictions/", out, re.MULTILINE)
    assert {*written} == {f"{RATES[1]}/seed_2"}
    assert (output_dir / "combinations.json").read_text() == expected
