"""The plan says what is in the data, and what of them the model does not see."""

from __future__ import annotations

import dataclasses
import gzip
import json

import numpy as np
import pytest

from albert_tf.tokenization import AlbertTokenizer
from pipelines.tasks.classification import ClassificationTask, Columns, Example
from pipelines.tasks.dev_split import comparable, split_off_dev
from pipelines.tasks.multiple_choice import MultipleChoiceColumns, TableMultipleChoiceTask
from pipelines.tasks.split_report import describe_labels, describe_split, warn_of_overlap
from pipelines.tasks.squad import SquadTask
from tests.conftest import WORDS

KOREAN = "긍정적인 문장입니다"


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return AlbertTokenizer(str(tiny_vocabulary))


def report(directory, tokenizer, rows, max_seq_length=16, **arguments):
    path = directory / "t.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    columns = arguments.pop("columns", Columns("text", "label"))
    task = ClassificationTask("own", {"train": str(path)}, columns, **arguments)
    examples = task.read("train")
    sequences, _ = task.encode(examples, tokenizer, max_seq_length, True)
    notes = task.summarise(examples)
    return describe_split("train", len(examples), sequences, tokenizer, max_seq_length, notes)


def test_rows_labels_and_pieces(tokenizer, tmp_path):
    rows = [(WORDS[0], "pos")] * 30 + [(" ".join(WORDS[:5]), "neg")] * 10
    first, second = report(tmp_path, tokenizer, rows, 64)
    lengths = [len(tokenizer.encode(text)) + 2 for text, _ in rows]
    assert first == (
        f"train    40 rows; {np.mean(lengths):.1f} pieces on average, 95 % up to "
        f"{np.percentile(lengths, 95):.0f}, longest {max(lengths)}; 0.0 % truncated to 64; "
        "0.0 % of the pieces <unk>"
    )
    assert second.strip() == "2 labels: 'neg' 10, 'pos' 30"


@pytest.mark.parametrize("long_rows, warns", [(10, False), (11, True)])
def test_truncated_rows_are_warned_of_beyond_a_tenth(tokenizer, tmp_path, long_rows, warns):
    long = " ".join(WORDS * 3)
    rows = [("", "pos")] * (100 - long_rows) + [(long, "neg")] * long_rows
    lines = report(tmp_path, tokenizer, rows)
    assert f"{long_rows:.1f} % truncated to 16" in lines[0]
    assert f"longest {len(tokenizer.encode(long)) + 2};" in lines[0], "as it was, not as it is"
    assert any("11 % of train is truncated" in line for line in lines) == warns


def test_unknown_pieces_are_warned_of_beyond_a_twentieth(tokenizer, tmp_path):
    known = " ".join(WORDS[:4])
    rows = [(known, "pos")] * 50 + [(f"{known} {known}", "neg")] * 50
    assert not any("<unk>:" in line for line in report(tmp_path, tokenizer, rows, 64))
    rows = [(KOREAN, "pos")] * 50 + [(known, "neg")] * 50
    lines = report(tmp_path, tokenizer, rows, 64)
    assert any("the vocabulary cannot spell this text" in line for line in lines)


def test_oddities_of_rows(tokenizer, tmp_path):
    columns = Columns("text", "label", id="text")
    lines = report(tmp_path, tokenizer, [("", "a"), ("", "b"), ("x", "b")], columns=columns)
    assert "warning: train: 2 rows without text" in lines
    assert "warning: train: 1 rows repeat an id, such as '', 2 times" in lines
    assert (
        "numbers from -2 to 4, mean 1"
        in report(tmp_path, tokenizer, [("a", -2), ("b", 4), ("c", 1)], is_regression=True)[1]
    )


def test_examples_of_the_training_set_are_warned_of():
    train = [f"text {i}" for i in range(50)]
    assert warn_of_overlap("dev", [*train[:2], *map(str, range(18))], train) == []
    [warning] = warn_of_overlap("dev", [*train[:3], *map(str, range(17)), "0"], train)
    assert warn_of_overlap("dev", ["", ""], ["", "a"]) == [], "questions without a text"
    assert warning.startswith("warning: 15 % of dev is in the training set, too: its figures")


def test_many_labels_are_shown_in_part():
    counts = {f"c{i}": i for i in range(1, 101)}
    text = describe_labels(list(counts), counts)
    assert text.startswith("100 labels: 'c100' 100, 'c99' 99, ") and len(text) < 300
    assert text.endswith(" and 88 others with 3,916")
    assert "is that the column of the labels?" in describe_labels(
        [str(i) for i in range(50)], {str(i): 1 for i in range(50)}
    )
    assert describe_labels(["x" * 99, "y"], {}) == f"2 labels: '{'x' * 39}…' 0, 'y' 0"
    assert describe_labels(["a", "b"], {"a": 3}) == "2 labels: 'a' 3, 'b' 0"


def test_questions_and_choices_say_what_they_lose(tokenizer, tmp_path):
    long = " ".join(WORDS * 4)
    qas = [{"id": "a", "question": long, "answers": [], "is_impossible": True}]
    content = {"data": [{"paragraphs": [{"context": "the fox", "qas": qas}]}]}
    path = tmp_path / "q.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    task = SquadTask({"dev": str(path)}, may_be_impossible=True)
    examples = task.read("dev")
    sequences, windows = task.encode(examples, tokenizer, 16, False)
    assert len(sequences) == len(windows) > 1 and np.diff(sequences.row_splits).max() <= 16
    lines = describe_split("dev", 1, sequences, tokenizer, 16, task.summarise(examples))
    assert "100.0 % truncated" in lines[0] and "0 with answers, 1 impossible" in lines[1]
    blank = dataclasses.replace(examples[0], id="b", text=" ")
    assert task.summarise([*examples, blank])[1:] == ["warning: 1 rows without text"]
    path = tmp_path / "c.jsonl"
    row = {"text": long, "options": ["a", "b"], "label": 1}
    path.write_text(json.dumps(row) + "\n")
    columns = MultipleChoiceColumns("text", "options", "label")
    task = TableMultipleChoiceTask("multiple_choice", {"train": str(path)}, columns)
    examples = task.read("train")
    sequences, _ = task.encode(examples, tokenizer, 16, True)
    lines = describe_split("train", 1, sequences, tokenizer, 16, task.summarise(examples))
    assert "100.0 % truncated" in lines[0] and "2 labels: 'A' 0, 'B' 1" in lines[1]


def test_a_dev_set_by_hash(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"text {i % 500},{'ab'[i % 2]}" for i in range(1000)]
    path.write_text("text,label\n" + "\n".join(rows))
    task = ClassificationTask("own", {"train": str(path)}, Columns("text", "label"))
    examples = task.read("train")
    train, dev = split_off_dev(task, examples, 0.2)
    assert len(train) + len(dev) == 1000 and 140 < len(dev) < 260
    assert not {e.text for e in train} & {e.text for e in dev}, "copies stay together"
    again = split_off_dev(task, examples[::-1][:600], 0.2)[1]
    assert {e.text for e in again} <= {e.text for e in dev}, "no row depends on the others"
    with pytest.raises(ValueError, match=r"--dev_fraction=0\.2 of 1 rows leaves no row for"):
        split_off_dev(task, examples[:1], 0.2)


def test_texts_that_a_model_reads_as_one_stay_together():
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(list("abcdefé "), 20)) for _ in range(100)]
    forms = (
        str,
        str.upper,
        lambda t: t.replace("é", "e\u0301"),
        lambda t: f" {t}\t".replace(" ", "  "),
    )
    examples = [Example("0", form(text), None, "a") for text in texts for form in forms]
    task = ClassificationTask("own", {}, Columns("text", "label"), ["a", "b"])
    train, dev = split_off_dev(task, examples, 0.3)
    assert len(dev) % 4 == 0 and 15 < len(dev) / 4 < 45
    groups = [[comparable(task.group(e)) for e in side] for side in (train, dev)]
    assert not {*groups[0]} & {*groups[1]}
    pairs = [Example("0", *pair, "a") for pair in (("ab", None), ("a", "b"), ("A ", "b"))]
    assert len({comparable(task.group(pair)) for pair in pairs}) == 2
