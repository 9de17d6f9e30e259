"""Files are labelled as fine-tuning labels them, whatever stops the job, with runs and exports."""

import csv
import gzip
import json
import shutil

import pytest

import albert_tf
from albert_tf.storage.errors import UserError
from export.export_saved_model import export
from pipelines import predict as predict_lib
from pipelines.tasks.running import prediction_file
from pipelines.training.settings import LoopSettings
from tests.builders import DEV, make_rows, read_tsv, run_task, write_json_lines
from tests.jobs import run
from tests.pipelines.test_finetune_kinds import KINDS


@pytest.fixture(scope="module")
def exported(tmp_path_factory, tuned):
    output = tmp_path_factory.mktemp("predict") / "exported"
    export(checkpoint=str(tuned / "seed_1"), output=str(output))
    return output


def predict(model, input_file, output_file, **arguments):
    return predict_lib.predict(
        model=str(model), input_files=[str(input_file)], output_file=str(output_file), **arguments
    )


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
    texts = ("id", "label", "prediction")
    for ours, theirs in zip(found, expected):
        assert ours.keys() - theirs.keys() == {"unknown_share"}
        assert [ours[name] for name in texts] == [theirs[name] for name in texts]
        for name in theirs.keys() - {*texts}:
            assert float(ours[name]) == pytest.approx(float(theirs[name]), abs=2e-6)
    assert len(found) == DEV
    reported = json.loads((tuned / "results.json").read_text())["dev"]["seeds"]["2"]
    assert 0.2 < reported["accuracy"] < 0.9
    assert summary["metrics"] == pytest.approx(reported)
    assert json.loads((tmp_path / "out.csv.run.json").read_text()) == summary
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.csv.run.json"]


@pytest.mark.slow
def test_an_export_predicts_what_its_run_predicts(tuned, exported, tmp_path):
    path = write_csv(tmp_path / "in.csv", 70)
    ours = predict(tuned / "seed_1", path, tmp_path / "run.jsonl")
    theirs = predict(exported, path, tmp_path / "export.jsonl")
    assert ours["metrics"] == theirs["metrics"] and ours["rows"] == 70
    files = (tmp_path / "run.jsonl", tmp_path / "export.jsonl")
    rows = [[json.loads(line) for line in file.open()] for file in files]
    for one, other in zip(*rows):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.usefixtures("eager")
def test_the_best_seed_of_a_run_is_taken(tuned, tmp_path, capsys):
    path = write_csv(tmp_path / "in.csv", 5)
    results = json.loads((tuned / "results.json").read_text())
    shutil.copytree(tuned, tmp_path / "run")
    for best in ("1", "2"):
        for seed in ("1", "2"):
            results["dev"]["seeds"][seed]["accuracy"] = float(seed == best)
        (tmp_path / "run/results.json").write_text(json.dumps(results))
        predict(tmp_path / "run", path, tmp_path / f"{best}.csv")
        assert f"seed_{best}\n" in capsys.readouterr().out


def write_rows(path, *labels):
    row = {"name": "a", "first": "b", "second": "c"}
    rows = [row if label is None else {**row, "label": label} for label in labels]
    return write_json_lines(path, rows)


@pytest.mark.usefixtures("eager")
def test_rows_with_and_without_answers_are_refused(tuned, tmp_path):
    label = json.loads((tuned / "seed_1/task.json").read_text())["labels"][0]
    last = write_rows(tmp_path / "last.jsonl", None, None, label)
    first = write_rows(tmp_path / "first.jsonl", label, None)
    known = write_rows(tmp_path / "with.jsonl", label)
    unknown = write_rows(tmp_path / "without.jsonl", None)

    def predict_files(*paths):
        output = str(tmp_path / "out.csv")
        return predict_lib.predict(
            model=str(tuned / "seed_1"), input_files=list(paths), output_file=output
        )

    both = r"with\.jsonl has answers, .*without\.jsonl has none"
    for paths, message in (
        ([last], r"last\.jsonl:3: a field 'label', which the first"),
        ([first], r"first\.jsonl:2: no field 'label'"),
        ([known, unknown], both),
        ([unknown, known], both),
    ):
        with pytest.raises(UserError, match=message):
            predict_files(*paths)
    summary = predict_files(known, known)
    assert summary["rows"] == 2 and "accuracy" in summary["metrics"]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ["in.tsv", "in.jsonl", "in.json", "in.csv.gz"])
def test_any_table_without_answers(tuned, tmp_path, name):
    odd = "\r\0" if "json" in name else ""  # a table holds no NUL
    records = [
        {"name": f"n{odd}{i}", "first": f'{a}, "so" \n{odd}', "second": b}
        for i, (_, a, b, _) in enumerate(make_rows(9, 3))
    ]
    path = tmp_path / name
    if "json" in name:
        lines = "\n".join(map(json.dumps, records))
        path.write_text(lines if name == "in.jsonl" else json.dumps(records))
    else:
        opener = gzip.open if name.endswith(".gz") else open
        with opener(path, "wt", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if ".tsv" in name else ",")
            writer.writerows([records[0], *(record.values() for record in records)])
    out = tmp_path / ("out.csv" if name == "in.json" else "out.tsv")
    summary = predict(tuned / "seed_1", path, out)
    assert summary["metrics"] == {} and summary["rows"] == 9
    rows = read(out)
    assert [row["id"] for row in rows] == [r["name"].replace("\0", "\ufffd") for r in records]
    assert "label" not in rows[0]


@pytest.mark.usefixtures("eager")
def test_answers_may_be_ignored_and_unknown_text_is_told(tuned, tmp_path, capsys):
    path = tmp_path / "in.csv"
    path.write_text('name,first,second,label\n1,我无法,我,\n2,,,what\n3,a river,"some\nriver",\n')
    summary = predict(tuned / "seed_1", path, tmp_path / "out.csv", columns={"label": ""})
    assert summary["rows"] == 3 and summary["metrics"] == {}
    assert "rows     3; 1 cells with line ends\n" in capsys.readouterr().out
    assert [float(row["unknown_share"]) for row in read(tmp_path / "out.csv")] == [1, 1, 0]


@pytest.mark.usefixtures("eager")
def test_a_job_that_is_stopped_loses_and_doubles_no_row(tuned, tmp_path, monkeypatch):
    path = write_csv(tmp_path / "in.csv", 95)
    predict(tuned / "seed_1", path, tmp_path / "whole.csv")
    monkeypatch.setattr(prediction_file, "ROWS_PER_PART", 10)
    run = predict_lib.fine_tuned.FineTunedRun
    answer, calls = run.answer, []

    def stops(self, examples, prepared):
        calls.append(len(examples))
        if len(calls) % 4 == 0:
            raise KeyboardInterrupt
        return answer(self, examples, prepared)

    monkeypatch.setattr(run, "answer", stops)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            predict(tuned / "seed_1", path, tmp_path / "out.csv")
        assert not (tmp_path / "out.csv").exists()
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=r"run \(code_version"):
        patch.setattr(albert_tf, "__version__", "0.0.1")  # its columns may be others
        predict(tuned / "seed_1", path, tmp_path / "out.csv")
    write_csv(path, 95, seed=10)
    with pytest.raises(ValueError, match=r"holds another run \(input_files"):
        predict(tuned / "seed_1", path, tmp_path / "out.csv")
    write_csv(path, 95)
    predict(tuned / "seed_1", path, tmp_path / "out.csv")
    assert len(calls) == 10 + 3, "no part is answered twice"
    whole, found = read(tmp_path / "whole.csv"), read(tmp_path / "out.csv")
    assert [row["id"] for row in found] == [f"id{i}" for i in range(95)]
    assert [row["prediction"] for row in found] == [row["prediction"] for row in whole]
    predict(tuned / "seed_1", path, tmp_path / "out.csv")
    assert len(calls) == 13, "a finished job does nothing"
    with pytest.raises(ValueError, match="exists, and not from this model, these files"):
        predict(tuned / "seed_2", path, tmp_path / "out.csv")


FAULTS = {
    "no model": ({"model": "nowhere"}, "--model: no fine-tuned or pre-trained model at"),
    "unfinished": ({"model": "unfinished"}, "results.json: its fine-tuning is not finished"),
    "format": ({"output_file": "out.txt"}, r"expected a name that ends in \.csv, \.tsv or \.jsonl"),
    "a column that is not there": ({"columns": {"text": "body"}}, r"in\.csv:1: no column 'body'"),
    "a column of others": ({"columns": {"options": "x"}}, "--options_column does not apply to"),
    "an answer misspelt": ({"header": "name,first,second,Label"}, r"but 'Label': rename it"),
    "an unknown answer": ({"row": "x,a,b,sea"}, r"in\.csv:2: unknown label 'sea'"),
    "a broken row at the end": ({"row": "x,a,b,river\n" * 50 + "y,a"}, r"in\.csv:52: 2 columns"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_told_before_the_work(tuned, tmp_path, case):
    changes, problem = FAULTS[case]
    (tmp_path / "unfinished/seed_1").mkdir(parents=True)
    header, row = (changes.pop(name, None) for name in ("header", "row"))
    lines = [header or "name,first,second,label", row or "x,a,b,river", ""]
    (tmp_path / "in.csv").write_text("\n".join(lines))
    arguments = {"model": tuned / "seed_1", "output_file": "out.csv", **changes}
    for name in ("model", "output_file"):
        arguments[name] = tmp_path / arguments[name]
    with pytest.raises(ValueError, match=problem):
        predict(input_file=tmp_path / "in.csv", **arguments)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.slow
def test_the_command(tuned, tmp_path):
    path = write_csv(tmp_path / "in.csv", 6)
    flags = [f"--model={tuned}/seed_1", f"--input_file={path}", f"--output_file={tmp_path}/o.csv"]
    out, _ = run("pipelines.predict", *flags)
    assert "accuracy" in out and f"6 rows  {tmp_path}/o.csv" in out
    _, err = run("pipelines.predict", *flags, "--top_k=3", exit_code=2)
    assert "o.csv' exists, and not from" in err


def rows_in_memory(kind, task):
    examples = task.read("dev")
    if kind in ("spans", "beams"):
        return [{"question": q.text, "context": q.context} for q in examples]
    if kind == "tokens":
        return [{"text": list(example.words)} for example in examples]
    if kind == "choices":
        return [{"text": example.context, "options": example.options} for example in examples]
    return [example.text for example in examples]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_predicts_what_fine_tuning_predicts(kind, pretrained, tmp_path):
    task = KINDS[kind](tmp_path)
    loop = LoopSettings(steps_per_loop=10, save_checkpoint_steps=10, eval_steps=10)
    results = run_task(task, pretrained, tmp_path / "run", num_train_steps=10, loop=loop)
    dev = task.files["dev"][0]
    summary = predict(tmp_path / "run", dev, tmp_path / "out.jsonl")
    reported = results["dev"]["median"]
    assert summary["metrics"] == pytest.approx(
        {name: reported[name] for name in summary["metrics"]}
    )
    assert task.best_metric in summary["metrics"]
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").open()]
    in_memory = predict_lib.load(str(tmp_path / "run")).predict(rows_in_memory(kind, task))
    assert [row["prediction"] for row in in_memory] == [row["prediction"] for row in rows]
    predictions = tmp_path / "run/seed_1/predictions"
    if kind in ("spans", "beams"):
        expected = json.loads((predictions / "dev_predictions.json").read_text())
        assert {row["id"]: row["prediction"] for row in rows} == expected
        questions = task.read("dev")
        records = [{"question": q.text, "context": q.context} for q in questions]
        (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, records)))
        predict(tmp_path / "run", tmp_path / "table.jsonl", tmp_path / "table.csv")
        found = [row["prediction"] for row in read(tmp_path / "table.csv")]
        assert found == [row["prediction"] for row in rows]
    elif kind == "tokens":
        texts = (predictions / "dev_predictions.conll").read_text().strip().split("\n\n")
        expected = [[line.split("\t")[2] for line in text.splitlines()] for text in texts]
        assert [row["prediction"] for row in rows] == expected
    else:
        expected = [row["prediction"] for row in read_tsv(predictions / "dev_predictions.tsv")]
        found = [row["prediction"] for row in rows]
        if kind == "numbers":
            assert found == pytest.approx([float(number) for number in expected], abs=1e-5)
        else:
            assert found == expected
    export(checkpoint=str(tmp_path / "run/seed_1"), output=str(tmp_path / "exported"))
    of_export = predict(tmp_path / "exported", dev, tmp_path / "export.jsonl")
    assert of_export["metrics"] == pytest.approx(summary["metrics"], abs=1e-4)
    for one, other in zip(rows, map(json.loads, (tmp_path / "export.jsonl").open())):
        for name in one:
            number = isinstance(one[name], float) or name == "probabilities"
            assert other[name] == (pytest.approx(one[name], abs=1e-4) if number else one[name])
