import json

import numpy as np
import pyarrow
import pytest
import tensorflow as tf
from pyarrow import parquet
from sklearn.metrics import f1_score

from pipelines.tasks.classification import Answering, Example
from pipelines.tasks.multilabel import MultiLabelTask


def task_of(path, **options):
    return MultiLabelTask("multilabel", {"train": str(path), "dev": str(path)}, **options)


def test_cells_and_lists(tmp_path):
    expected = [("x", "y"), (), ("z",), ("y",)]
    lists = [json.dumps({"text": "a", "label": list(labels)}) for labels in expected]
    for name, content, options in (
        ("t.csv", 'text,label\na,"x, y"\nb,\nc,z\nd,"y,y"\n', {}),
        ("t.jsonl", "\n".join(lists), {}),
        ("s.csv", "text,label\na,x;y\nb,\nc,z\nd,y\n", {"label_separator": ";"}),
    ):
        (tmp_path / name).write_text(content)
        task = task_of(tmp_path / name, **options)
        assert task.labels == ("x", "y", "z")
        assert [example.label for example in task.read("train")] == expected
    [line] = task.summarise(task.read("train"))
    assert line == "3 labels: 'x' 1, 'y' 2, 'z' 1; 1.00 a row, 1 rows without"
    (tmp_path / "b.csv").write_text('text,label\na,"[x],(y)"\nb,(y)\n')
    assert task_of(tmp_path / "b.csv").labels == ("(y)", "[x]")


def test_numbers_as_labels(tmp_path):
    values = [[2, 10], 7, [], True]
    lines = [json.dumps({"text": "a", "label": value}) for value in values]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    task = task_of(tmp_path / "t.jsonl")
    assert task.labels == ("10", "2", "7", "True")
    assert [e.label for e in task.read("train")] == [("10", "2"), ("7",), (), ("True",)]
    lists = pyarrow.array([[2, 10], [7], []], pyarrow.list_(pyarrow.int64()))
    parquet.write_table(pyarrow.table({"text": ["a"] * 3, "label": lists}), tmp_path / "t.parquet")
    found = [e.label for e in task_of(tmp_path / "t.parquet").read("train")]
    assert found == [("10", "2"), ("7",), ()]


# Cells of a CSV, between bars.
LISTS = """
['x' 'y'] | "['x', 'y']" | "[""x"", ""y""]" | "('x',)" | "{1,2}" | array(['x']) | [1 0 1] | set()
"[x, y]" | "[['x'],['y']]" | "(1, 2)" | [] | ()
"""
LISTS = [cell.strip() for cell in LISTS.strip().replace("\n", "|").split("|")]
NO_LISTS = ["[BUG],[UI]", "(1) Billing (net)", "(2023) revenue (net)", "[a]", "{a} or {b}", "(1)"]


def test_faults(tmp_path):
    for rows, problem in (
        ('a,"x,,y"\n', r":2: 'label' is \"\", expected a label"),
        *((f"a,x\nb,{cell}\n", r":3: 'label' is .*, a list as .*\.jsonl") for cell in LISTS),
        ("a,\nb,\n", "expected two labels or more"),
    ):
        (tmp_path / "t.csv").write_text("text,label\n" + rows)
        with pytest.raises(ValueError, match=problem):
            task_of(tmp_path / "t.csv").read("train")
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f'a,"{x}"\n' for x in NO_LISTS))
    assert task_of(tmp_path / "t.csv").labels == tuple(sorted(",".join(NO_LISTS).split(",")))


def test_labels_that_contain_the_separator(tmp_path):
    """In predictions they would be read as other labels."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a", "label": ["x", "y,z"]}\n{"text": "b", "label": ["x"]}\n')
    with pytest.raises(ValueError, match=r":1: the label 'y,z' in 'label' contains ',', which"):
        task_of(path).read("train")
    assert task_of(path, label_separator=";").labels == ("x", "y,z")


def test_figures_losses_and_columns(tmp_path):
    (tmp_path / "t.csv").write_text('text,label\na,"x,y"\nb,\nc,z\nd,y\n')
    task = task_of(tmp_path / "t.csv", labels=["x", "y", "z"])
    examples = task.read("train")
    logits = np.array([[2, -1, 0.1], [-3, -1, -2], [1, 0, 4], [-1, 2, -1]], np.float32)
    outputs = [{"logits": row} for row in logits]
    truth, found = task.label_array(examples), logits >= 0
    expected = {f"{of}_f1": f1_score(truth, found, average=of) for of in ("micro", "macro")}
    answers = task.answers(examples, examples, outputs)
    assert task.score(answers.rows()) == pytest.approx(expected)
    assert answers.columns["label"] == ["x,y", "", "z", "y"]
    assert answers.columns["prediction"] == ["x,z", "", "x,y,z", "y"]
    details = task.details(examples, answers)["labels"]
    assert (details["x"]["rows"], details["x"]["precision"], details["y"]["f1"]) == (1, 0.5, 0.5)
    assert not any("threshold" in row for row in details.values()), "of four rows"
    assert task.details(examples, answers)["intervals"] == task.intervals(answers.rows())
    task.answering = Answering(label_thresholds={"x": 0.75, "y": 0.2})
    found = task.answers(examples, examples, outputs).columns["prediction"]
    assert found == ["x,y,z", "y", "y,z", "y"]
    probability = 1 / (1 + np.exp(-2))
    assert answers.columns["probability_x"][0] == pytest.approx(probability, abs=1e-6)
    losses = task.losses({"logits": tf.zeros([4, 3])}, {"labels": tf.constant(truth)})
    np.testing.assert_allclose(losses, np.log(2) * np.ones(4), rtol=1e-6)


def test_written_probabilities_agree_with_the_predicted_labels():
    task = MultiLabelTask("own", {}, labels=["a", "b"])
    logits = np.random.default_rng(3).normal(size=[500, 2]).astype(np.float32)
    examples = [Example(str(i), "", None, None) for i in range(len(logits))]
    outputs = [{"logits": row} for row in logits]
    written = task.answers(examples, [None] * 500, outputs).columns["probability_a"]
    for threshold in (*written[:50], 0.29, 0.57):  # 0.29 * 100 is below 29
        task.answering = Answering(label_thresholds={"a": threshold})
        found = task.answers(examples, [None] * 500, outputs).columns
        for probability, prediction in zip(found["probability_a"], found["prediction"]):
            assert (probability >= threshold) == ("a" in prediction)
