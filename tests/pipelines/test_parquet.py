"""Parquet files are read where tables and corpora are."""

import json
import uuid
from collections import Counter

import pyarrow
import pytest
from pyarrow import parquet

from pipelines.data.corpus import TextFormat, read_documents
from pipelines.data.text_files import read_lines
from pipelines.tasks.classification import ClassificationTask
from tests.builders import raises_one_line
from tests.conftest import make_text

TEXTS = ["Fine.", 'a,\n"b"', "Ünïcode 北京", ""]


def write(path, columns, **options):
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


@pytest.mark.parametrize("labels", [["a", "b"] * 2, [1, 0] * 2, [True, False] * 2])
def test_a_table_reads_as_json_lines_do(tmp_path, labels):
    path = write(tmp_path / "t.parquet", {"text": TEXTS, "label": labels, "other": [[1.5]] * 4})
    lines = [json.dumps({"text": text, "label": x}) for text, x in zip(TEXTS, labels)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    parsed = [
        ClassificationTask("own", {"train": str(tmp_path / name)}).read("train")
        for name in ("t.parquet", "t.jsonl")
    ]
    assert parsed[0] == parsed[1] and [example.text for example in parsed[0]] == TEXTS
    assert parsed[0][2].line == f"{path}:3"


def test_ids_are_texts_or_numbers(tmp_path):
    def read(ids):
        columns = {"text": ["a", "b"], "label": ["x", "y"], "id": ids}
        path = write(tmp_path / "t.parquet", columns)
        return ClassificationTask("own", {"train": str(path)}, {"id": "id"}).read("train")

    names = [uuid.UUID(int=7), uuid.UUID(int=8)]
    stored = pyarrow.array([name.bytes for name in names], pyarrow.uuid())
    for ids, found in (([7, 8], [7, 8]), (stored, names)):
        assert [row.id for row in read(ids)] == [*map(str, found)]
    for value, shown in (
        (None, "null"),
        (float("nan"), "NaN"),
        ("", '""'),
        (b"a", "{"),
        ([1], r"\[1\]"),
    ):
        with raises_one_line(rf":1: 'id' is {shown}.*, expected text or a number as an id$"):
            read([value] * 2)


FAULTS = {
    "no such column": ({"body": ["a"]}, r"t\.parquet:1: no field 'text'; .* 'label', 'body'; see"),
    "null": ({"text": ["a", None]}, r"t\.parquet:2: 'text' is null, expected text$"),
    "bytes": ({"text": [b"a", b"b"]}, r":1: 'text' is {\"bytes\": \"b'a'\"}, expected text$"),
    "values that Python lacks": (
        {"text": pyarrow.array([[1]], pyarrow.list_(pyarrow.timestamp("ns")))},
        r":1: 'text' is {\"list<.*timestamp\[ns\]>\": \"Nanosecond .*, expected text$",
    ),
    "no rows": ({"text": []}, r"t\.parquet: no rows; expected"),
    "bytes that are no text": (
        {"text": pyarrow.array([b"a", b"\xff"]).cast(pyarrow.string(), safe=False)},
        r":2: 'text' is {\"string\": \"'utf-8' codec .*, expected text$",
    ),
}


@pytest.mark.parametrize(("label", "hint"), [(1.0, "; pandas writes 1 as 1.0 if "), (0.5, "$")])
def test_labels_that_pandas_made_floats(tmp_path, label, hint):
    path = write(tmp_path / "t.parquet", {"text": ["a", "b"], "label": [label] * 2})
    problem = rf"t\.parquet:1: 'label' is {label}, expected text or a whole number as a label{hint}"
    with raises_one_line(problem):
        ClassificationTask("own", {"train": str(path)}).read("train")


@pytest.mark.parametrize("case", FAULTS)
def test_faults_of_columns(tmp_path, case):
    columns, message = FAULTS[case]
    labels = ["x"] * len(next(iter(columns.values())))
    path = write(tmp_path / "t.parquet", {"label": labels, **columns})
    with raises_one_line(message):
        ClassificationTask("own", {"train": str(path)}, labels=["x", "y"]).read("train")


def test_damaged_files(tmp_path):
    columns = {"text": ["some text"] * 999, "label": ["x", "y", "z"] * 333}
    path = write(tmp_path / "t.parquet", columns)
    whole = path.read_bytes()
    cut, changed = whole[: len(whole) // 2], whole[:4] + b"x" * 99 + whole[103:]
    for content in (cut, b"", b"text,label\na,b\n", changed):
        path.write_bytes(content)
        with raises_one_line(r"t\.parquet: not a whole Parquet file \(.*fetch it again"):
            list(read_lines(str(path)))
    table = pyarrow.table([pyarrow.array(["a"])] * 2, names=["text", "text"])
    parquet.write_table(table, path)
    with raises_one_line(r"t\.parquet: several columns 'text'"):
        list(read_lines(str(path)))


@pytest.fixture
def corpus(tmp_path):
    """The same documents as JSON lines and as Parquet with row groups of 7."""
    texts = make_text(200).split("\n\n")
    rows = [json.dumps({"text": text, "n": i}) for i, text in enumerate(texts)]
    (tmp_path / "c.jsonl").write_text("\n".join(rows) + "\n")
    write(tmp_path / "c.parquet", {"text": texts, "n": range(len(texts))}, row_group_size=7)
    return tmp_path


def test_a_corpus(corpus):
    text_format = TextFormat("jsonl")
    of_json, of_parquet = (
        [sentence.text for sentence in read_documents(str(corpus / name), text_format)]
        for name in ("c.jsonl", "c.parquet")
    )
    assert of_json == of_parquet and len(of_json) > 1500
    for other in ("sentences", "prose"):
        with raises_one_line(r"c\.parquet: a Parquet file: pass --input_format=jsonl, .*'text'"):
            list(read_documents(str(corpus / "c.parquet"), TextFormat(other)))
    write(corpus / "bad.parquet", {"text": ["One.", None, "Two."]})
    with raises_one_line(r"bad\.parquet:2: something else than text as field 'text' .*=skip"):
        list(read_documents(str(corpus / "bad.parquet"), text_format))
    skipping, counts = TextFormat("jsonl", on_bad_line="skip"), Counter()
    found = read_documents(str(corpus / "bad.parquet"), skipping, counts=counts)
    assert [s.text for s in found] == ["One.", "Two."] and counts == {"skipped_lines": 1}
