import csv
import gzip
import json
import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest

import albert_tf
from albert_tf.jobs.decision import Decision
from albert_tf.storage.errors import UserError
from pipelines import predict as predict_lib
from pipelines.predict import PredictionSettings, Predictor
from pipelines.tasks.running import fine_tuned
from tests.builders import DEV, make_rows, read_tsv, write_json_lines
from tests.jobs import run


def predict(model, input_file, output_file, **arguments):
    settings = PredictionSettings(str(model), **arguments)
    return predict_lib.predict(settings, [str(input_file)], str(output_file))


def rows_of(path):
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def write_csv(path, number, seed=9):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("name", "first", "second", "label"), *make_rows(number, seed)])
    return path


def test_a_run_predicts_what_it_predicted_of_dev(tuned, table, tmp_path):
    summary = predict(tuned / "seed_2", table / "dev.tsv", tmp_path / "out.csv")
    expected = read_tsv(tuned / "seed_2/predictions/dev_predictions.tsv")
    found = read(tmp_path / "out.csv")
    assert len(found) == DEV
    for ours, theirs in zip(found, expected):
        assert ours.keys() - theirs.keys() == {"unknown_share"}
        for name in theirs:
            if name in ("id", "label", "prediction"):
                assert ours[name] == theirs[name]
            else:
                assert float(ours[name]) == pytest.approx(float(theirs[name]), abs=2e-6)
    reported = json.loads((tuned / "results.json").read_text())["dev"]["seeds"]["2"]
    assert 0.2 < reported["accuracy"] < 0.9
    assert summary["metrics"] == pytest.approx(reported)
    assert json.loads((tmp_path / "out.csv.run.json").read_text()) == summary
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.csv.run.json"]


@pytest.mark.usefixtures("eager")
def test_unsure_rows_are_counted_apart(tuned, table, tmp_path):
    seed = tuned / "seed_2"
    rows = read_tsv(seed / "predictions/dev_predictions.tsv")
    best = sorted(max(float(v) for k, v in row.items() if "probability_" in k) for row in rows)
    decision = Decision(min_probability=best[DEV // 2])
    found = predict(seed, table / "dev.tsv", tmp_path / "out.csv", decision=decision)
    predictions = [row["prediction"] for row in read(tmp_path / "out.csv")]
    assert found["metrics"]["answered"] == pytest.approx(0.5, abs=0.05)
    assert predictions.count("unsure") == DEV - round(DEV * found["metrics"]["answered"])
    sure = [row for row, new in zip(rows, predictions) if new != "unsure"]
    accuracy = statistics.fmean(row["label"] == row["prediction"] for row in sure)
    assert found["metrics"]["accuracy"] == pytest.approx(accuracy)
    low, high = found["intervals"]["accuracy"]
    assert low < accuracy < high and found["intervals"].keys() == {"accuracy", "macro_f1"}


def test_the_best_seed_of_a_run_is_taken(tmp_path):
    for best in (1, 2):
        (tmp_path / f"seed_{best}").mkdir()
        seeds = {seed: {"accuracy": float(seed == best)} for seed in (1, 2)}
        results = {"best_metric": "accuracy", "dev": {"seeds": seeds}}
        (tmp_path / "results.json").write_text(json.dumps(results))
        assert fine_tuned.find_model(str(tmp_path)) == f"{tmp_path}/seed_{best}"


@pytest.mark.usefixtures("eager")
def test_rows_with_and_without_answers_are_refused(tuned, tmp_path):
    row = {"name": "a", "first": "b", "second": "c"}
    labelled = {**row, "label": "river"}
    last = write_json_lines(tmp_path / "last.jsonl", [row, row, labelled])
    known = write_json_lines(tmp_path / "with.jsonl", [labelled])
    unknown = write_json_lines(tmp_path / "without.jsonl", [row])
    settings, output = PredictionSettings(str(tuned / "seed_1")), str(tmp_path / "out.csv")
    for paths, message in (
        ([last], r"last\.jsonl:3: a field 'label', which the first"),
        ([known, unknown], r"with\.jsonl has answers, .*without\.jsonl has none"),
    ):
        with pytest.raises(UserError, match=message):
            predict_lib.predict(settings, paths, output)
    summary = predict_lib.predict(settings, [known, known], output)
    assert summary["rows"] == 2 and "accuracy" in summary["metrics"]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("name", "output"), [("in.json", "out.csv"), ("in.csv.gz", "out.tsv")])
def test_any_table_without_answers(tuned, tmp_path, name, output):
    odd = "\r\0" if "json" in name else ""  # a table holds no NUL
    records = [
        {"name": f"n{odd}{i}", "first": f'{a}, "so" \n{odd}', "second": b}
        for i, (_, a, b, _) in enumerate(make_rows(9, 3))
    ]
    path, out = tmp_path / name, tmp_path / output
    if "json" in name:
        path.write_text(json.dumps(records))
    else:
        with gzip.open(path, "wt", newline="") as file:
            csv.writer(file).writerows([records[0], *(record.values() for record in records)])
    summary = predict(tuned / "seed_1", path, out)
    assert summary["metrics"] == {} and summary["rows"] == 9
    rows = read(out)
    assert [row["id"] for row in rows] == [r["name"].replace("\0", "\ufffd") for r in records]
    assert "label" not in rows[0]


@pytest.mark.usefixtures("eager")
def test_answers_may_be_ignored_and_unknown_text_is_told(tuned, tmp_path):
    path = tmp_path / "in.csv"
    path.write_text('name,first,second,label\n1,我无法,我,\n2,,,what\n3,a river,"some\nriver",\n')
    summary = predict(tuned / "seed_1", path, tmp_path / "out.csv", columns={"label": ""})
    assert summary["rows"] == 3 and summary["metrics"] == {}
    assert [float(row["unknown_share"]) for row in read(tmp_path / "out.csv")] == [1, 1, 0]


@pytest.mark.usefixtures("eager")
def test_a_job_that_is_stopped_loses_and_doubles_no_row(tuned, tmp_path, monkeypatch):
    path = write_csv(tmp_path / "in.csv", 45)
    predict(tuned / "seed_1", path, tmp_path / "whole.csv")
    run, calls = predict_lib.fine_tuned.FineTunedRun, []
    monkeypatch.setattr(run, "rows_per_part", 10)
    answer = run.answer

    def stops(self, examples, prepared):
        calls.append(len(examples))
        if len(calls) % 3 == 0:
            raise KeyboardInterrupt
        return answer(self, examples, prepared)

    monkeypatch.setattr(run, "answer", stops)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            predict(tuned / "seed_1", path, tmp_path / "out.csv")
        assert not (tmp_path / "out.csv").exists()
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=r"run \(code_version"):
        patch.setattr(albert_tf, "__version__", "0.0.1")  # its columns may be others
        predict(tuned / "seed_1", path, tmp_path / "out.csv")
    write_csv(path, 45, seed=10)
    with pytest.raises(ValueError, match=r"holds another run \(input_files"):
        predict(tuned / "seed_1", path, tmp_path / "out.csv")
    write_csv(path, 45)
    predict(tuned / "seed_1", path, tmp_path / "out.csv")
    assert len(calls) == 5 + 2, "no part is answered twice"
    whole, found = read(tmp_path / "whole.csv"), read(tmp_path / "out.csv")
    assert [row["id"] for row in found] == [f"id{i}" for i in range(45)]
    assert [row["prediction"] for row in found] == [row["prediction"] for row in whole]
    predict(tuned / "seed_1", path, tmp_path / "out.csv")
    assert len(calls) == 7, "a finished job does nothing"
    for seed, top_k in (("seed_2", 5), ("seed_1", 3)):
        what = "top_k 5 there, 3 here" if top_k == 3 else "weights '.*' there"
        with pytest.raises(ValueError, match=rf"exists, and not from this model.*{what}"):
            predict(tuned / seed, path, tmp_path / "out.csv", top_k=top_k)


FAULTS = {
    "no model": ({"model": "nowhere"}, "nowhere' is no model: expected a model directory"),
    "its own input": ({"output_file": "in.csv"}, "--output_file: .*in.csv' is an input file"),
    "a directory": ({"output_file": "place.csv"}, "--output_file: .*place.csv' is a directory"),
    "seeds without dev": ({"model": "no_dev"}, "^'.*no_dev' has 2 seeds .*: name a seed, such as"),
    "unfinished": ({"model": "unfinished"}, "results.json: its fine-tuning is not finished"),
    "format": ({"output_file": "out.parquet"}, r"ends in \.csv, \.tsv or \.jsonl$"),
    "a column of others": ({"columns": {"options": "x"}}, "--options_column does not apply to"),
    "a broken row at the end": ({"row": "x,a,b,river\n" * 50 + "y,a"}, r"in\.csv:52: 2 columns"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_told_before_the_work(tuned, tmp_path, case):
    changes, problem = FAULTS[case]
    for name in ("unfinished/seed_1", "place.csv", "no_dev/seed_1", "no_dev/seed_2"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "no_dev/results.json").write_text("{}")
    header, row = (changes.pop(name, None) for name in ("header", "row"))
    lines = [header or "name,first,second,label", row or "x,a,b,river", ""]
    (tmp_path / "in.csv").write_text("\n".join(lines))
    arguments = {"model": tuned / "seed_1", "output_file": "out.csv", **changes}
    for name in ("model", "output_file"):
        arguments[name] = tmp_path / arguments[name]
    with pytest.raises(ValueError, match=problem):
        predict(input_file=tmp_path / "in.csv", **arguments)
    assert not list(tmp_path.glob("out*"))


def test_an_empty_flag_is_not_the_default(tuned, tmp_path):
    path, output = write_csv(tmp_path / "in.csv", 3), tmp_path / "out.csv"
    flags = [f"--model={tuned}/seed_1", f"--input_file={path}", f"--output_file={output}"]
    _, err = run("pipelines.predict", *flags, "--text_column=", exit_code=2)
    problem = "error: --text_column=: the model reads this column; give its name\n"
    assert err == problem and not output.exists()


@pytest.mark.usefixtures("eager")
def test_what_pandas_makes_of_an_empty_cell_is_an_empty_text(tuned):
    missing = type("NAType", (), {})()  # as pandas.NA, without pandas
    values = ("", math.nan, np.float64("nan"), np.float32("nan"), None, missing)
    rows = [{"first": "a", "second": second} for second in values]
    found = predict_lib.load(tuned / "seed_1").predict(rows)
    assert [{**row, "id": "0"} for row in found] == [found[0]] * 6
    odd = {(1, 2): "no key of JSON"}
    with pytest.raises(UserError, match=r"^rows\[1\]: 'second' is dict, expected text"):
        predict_lib.load(tuned / "seed_1").predict([rows[0], {"first": "a", "second": odd}])


def test_a_pair_is_no_text():
    columns = {"text": "subject", "text_pair": "body", "label": "queue", "id": None}
    task = SimpleNamespace(columns=columns, examples=list)
    found = SimpleNamespace(task=task)
    with pytest.raises(
        UserError, match=r"^rows\[0\] is no dict; expected the fields subject, body$"
    ):
        Predictor(found, None).predict([("a", "b")])
