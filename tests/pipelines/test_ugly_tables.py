"""Files as users have them: each is read as it is meant. See test_refused_tables, too."""

from __future__ import annotations

import csv
import gzip
import io
import json

import pytest

from pipelines.tasks.classification import ClassificationTask, Columns
from pipelines.tasks.reading.tables import column_names, write_table
from tests.pipelines.ugly_files import (
    AS_TWO,
    BIG,
    COMPRESS,
    LINES,
    OBJECTS,
    TSV,
    TWO,
    assert_is_one_line,
    task_of,
    text_and_label,
)


def first(cell, text, name="t.csv"):
    """A table whose first row has this cell, and what is read of it."""
    s = "," if name == "t.csv" else "\t"
    rows = f"text{s}label\n{cell}{s}pos\nbad{s}neg\n"
    return name, rows, [(text, "pos"), ("bad", "neg")]


def array(text):
    """A JSON array whose first object has this text, and what is read of it."""
    records = [{"text": text, "label": "pos"}, *OBJECTS]
    return "t.json", json.dumps(records), [(text, "pos"), *AS_TWO]


LONG = BIG * 8
# id: name of the file, content, what is read of it.
READ = {
    "txt": ("t.txt", TSV, AS_TWO),
    "json lines": ("t.json", LINES, AS_TWO),
    "json array over lines": ("t.json", json.dumps(OBJECTS, indent=2), AS_TWO),
    "json array after blank lines": ("t.json", "\n \n" + json.dumps(OBJECTS) + "\n\n", AS_TWO),
    "json array with a mark": ("t.json", "\ufeff" + json.dumps(OBJECTS), AS_TWO),
    "json array, crlf": ("t.json", json.dumps(OBJECTS, indent=1).replace("\n", "\r\n"), AS_TWO),
    "byte order mark": ("t.csv", "\ufeff" + TWO, AS_TWO),
    "byte order mark and quotes": ("t.csv", '\ufeff"text","label"\nfine,pos\nbad,neg\n', AS_TWO),
    "byte order mark in tsv": ("t.tsv", "\ufeff" + TSV, AS_TWO),
    "byte order mark in jsonl": ("t.jsonl", "\ufeff" + LINES, AS_TWO),
    "crlf": ("t.csv", TWO.replace("\n", "\r\n"), AS_TWO),
    "crlf in tsv": ("t.tsv", TSV.replace("\n", "\r\n"), AS_TWO),
    "crlf in jsonl": ("t.jsonl", LINES.replace("\n", "\r\n"), AS_TWO),
    "cr alone": ("t.csv", TWO.replace("\n", "\r"), AS_TWO),
    "mixed line ends": ("t.csv", "text,label\r\nfine,pos\nbad,neg\r", AS_TWO),
    "no last line end": ("t.csv", TWO.rstrip(), AS_TWO),
    "blank lines": ("t.csv", "text,label\n\nfine,pos\n\n\nbad,neg\n\n", AS_TWO),
    "blank lines in jsonl": ("t.jsonl", LINES.replace("\n", "\n \n"), AS_TWO),
    "all cells quoted": ("t.csv", '"text","label"\n"fine","pos"\n"bad","neg"\n', AS_TWO),
    "all cells of tsv quoted": ("t.tsv", '"text"\t"label"\n"fine"\t"pos"\n"bad"\t"neg"\n', AS_TWO),
    "comma in quotes": first('"fine, really"', "fine, really"),
    "tab in quotes": first('"fine\treally"', "fine\treally", "t.tsv"),
    "doubled quotes": first('"he said ""hi"""', 'he said "hi"'),
    "doubled quotes in tsv": first('"he said ""hi"""', 'he said "hi"', "t.tsv"),
    "nothing but a quote": first('""""', '"', "t.tsv"),
    "a quote within a cell": first('6" pipe', '6" pipe', "t.tsv"),
    "quotes within a cell": first('say "hi" now', 'say "hi" now'),
    "line end in quotes": first('"one\ntwo"', "one\ntwo"),
    "crlf in quotes": first('"one\r\ntwo"', "one\ntwo"),
    "blank lines in quotes": first('"one\n\n\ntwo"', "one\n\n\ntwo", "t.tsv"),
    "a number with a comma and a line end in quotes": (
        "t.csv",
        'text,label\n"pay 1,000\nnow",pos\n"it is 1,5 km\naway",neg\n',
        [("pay 1,000\nnow", "pos"), ("it is 1,5 km\naway", "neg")],
    ),
    "a comma and a line end in quotes": first('"Hello, you\nbye"', "Hello, you\nbye"),
    "single quotes": first("'fine'", "'fine'"),
    "backslashes": first("a\\b\\n", "a\\b\\n"),
    "empty text": first("", ""),
    "empty text in quotes": first('""', ""),
    "blank text": first("  ", "  "),
    "spaces around a label": ("t.csv", "text,label\nfine, pos \nbad,neg\n", AS_TWO),
    "tab after a label": ("t.csv", "text,label\nfine,pos\t\nbad,neg\n", AS_TWO),
    "other columns": ("t.csv", "id,text,x,label\n1,fine,,pos\n2,bad,,neg\n", AS_TWO),
    "a column without a name": ("t.csv", ",text,label\n0,fine,pos\n1,bad,neg\n", AS_TWO),
    "empty columns at the end": ("t.csv", "text,label,,\nfine,pos,,\nbad,neg,,\n", AS_TWO),
    "columns of one name": ("t.csv", "x,x,text,label\n1,2,fine,pos\n1,2,bad,neg\n", AS_TWO),
    "line separators of Unicode": first("a\u2028b\x85c\x0bd\x0ce", "a\u2028b\x85c\x0bd\x0ce"),
    "emoji and bidi marks": first("\U0001f469\u200d\u202eabc", "\U0001f469\u200d\u202eabc"),
    "a mark in the middle": first("\ufefffine", "\ufefffine"),
    "a huge cell": first(f'"{BIG}"', BIG),
    "a huge cell without quotes": first(LONG, LONG, "t.tsv"),
    "a huge value in jsonl": (
        "t.jsonl",
        json.dumps({"text": LONG, "label": "pos"}) + "\n" + LINES,
        [(LONG, "pos"), *AS_TWO],
    ),
    "a huge value in an array": array(BIG * 30),
    "escapes in json": (
        "t.jsonl",
        '{"text": "a\\u0000b\\u20ac", "label": "pos"}\n' + LINES,
        [("a\0b€", "pos"), *AS_TWO],
    ),
    "half a character in json": (
        "t.jsonl",
        '{"text": "a\\ud800", "label": "pos"}\n' + LINES,
        [("a\ufffd", "pos"), *AS_TWO],
    ),
    "brackets and braces in strings": array('}],[{"'),
    "numbers as labels in json": (
        "t.jsonl",
        '{"text": "a", "label": 0}\n{"text": "b", "label": 7}\n',
        [("a", "0"), ("b", "7")],
    ),
    "truth values as labels": (
        "t.jsonl",
        '{"text": "a", "label": true}\n{"text": "b", "label": false}\n',
        [("a", "True"), ("b", "False")],
    ),
    "None as a label": ("t.csv", "text,label\na,None\nb,NA\n", [("a", "None"), ("b", "NA")]),
    "labels with commas": ("t.csv", 'text,label\na,"x, y"\nb,z\n', [("a", "x, y"), ("b", "z")]),
    "labels of other scripts": (
        "t.csv",
        "text,label\na,긍정\nb,부\n",
        [("a", "긍정"), ("b", "부")],
    ),
    "semicolons": ("t.csv", TWO.replace(",", ";"), AS_TWO),
    "semicolons, a mark, crlf": ("t.csv", "\ufefftext;label\r\nfine;pos\r\nbad;neg\r\n", AS_TWO),
    "semicolons and commas in cells": (
        "t.csv",
        'text;label\nfine, 1,5;pos\n"a; b\nc";neg\n',
        [("fine, 1,5", "pos"), ("a; b\nc", "neg")],
    ),
    "semicolons, a comma in a name": ("t.csv", '"a, b";text;label\n1;fine;pos\n2;bad;neg', AS_TWO),
    "commas, a semicolon in quotes": ("t.csv", '"a; b",text,label\n1,fine,pos\n2,bad,neg', AS_TWO),
    "commas, a semicolon in a name": ("t.csv", "a; b,text,label\n1,fine,pos\n2,bad,neg\n", AS_TWO),
    "commas, semicolons in cells": first("a;b", "a;b"),
    "a line of separators": ("t.csv", "\ufeffsep=;\r\ntext;label\r\nfine;pos\r\nbad;neg", AS_TWO),
    "a line of separators, commas in the header": (
        "t.csv",
        "sep=;\ntext;label;a,b\nfine;pos;1\nbad;neg;2\n",
        AS_TWO,
    ),
    "a line of separators that are tabs": ("t.csv", '"sep=\t"\n' + TSV, AS_TWO),
    "a line of separators that are commas": (
        "t.csv",
        "sep=,\ntext,label,a;b\nfine,pos,1\nbad,neg,2\n",
        AS_TWO,
    ),
    "one row of each label": ("t.csv", "label,text\npos,fine\nneg,bad", AS_TWO),
}
for ending, compress in {"": bytes, **COMPRESS}.items():
    for kind, content in (
        ("csv", TWO),
        ("tsv", TSV),
        ("jsonl", LINES),
        ("json", json.dumps(OBJECTS)),
    ):
        READ[f"{kind}{ending}"] = (f"t.{kind}{ending}", compress(content.encode()), AS_TWO)
for name in ("T.CSV", "t.Csv.gz", "T.TSV", "T.JSONL", "T.Json"):
    kind = name.lower().split(".")[1]
    content = {"csv": TWO, "tsv": TSV, "jsonl": LINES, "json": json.dumps(OBJECTS)}[kind].encode()
    READ[name] = (name, gzip.compress(content) if name.endswith(".gz") else content, AS_TWO)
READ["two gzip members"] = (
    "t.csv.gz",
    gzip.compress(TWO[:15].encode()) + gzip.compress(TWO[15:].encode()),
    AS_TWO,
)


@pytest.mark.parametrize("case", READ)
def test_read_as_it_is_meant(tmp_path, case):
    name, content, expected = READ[case]
    assert text_and_label(task_of(tmp_path, name, content).read("train")) == expected


def test_labels_that_are_listed_may_differ_in_case(tmp_path):
    task = task_of(tmp_path, "t.csv", "text,label\na,us\nb,US\nc,nan\n", labels=["us", "US", "nan"])
    assert [label for _, label in text_and_label(task.read("train"))] == ["us", "US", "nan"]


def test_thousands_of_labels(tmp_path):
    rows = "".join(f"text {i},class {i}\n" for i in range(5000))
    task = task_of(tmp_path, "t.csv", "text,label\n" + rows)
    assert len(task.labels) == 5000 and len(task.read("train")) == 5000


def test_quotation_marks_may_be_characters(tmp_path):
    content = 'text\tlabel\n"fine\tpos\n"bad" they say\tneg\n""quoted""\tpos\n'
    task = task_of(tmp_path, "t.tsv", content, quoting="none")
    expected = [('"fine', "pos"), ('"bad" they say', "neg"), ('""quoted""', "pos")]
    assert text_and_label(task.read("train")) == expected


@pytest.mark.parametrize("quoting", ["csv", "none"])
@pytest.mark.parametrize("names", ["text;label", "sep=;\ntext;label", "text,label"])
def test_names_of_columns_between_semicolons(tmp_path, names, quoting):
    (tmp_path / "t.csv").write_text(names + "\n")
    assert column_names(str(tmp_path / "t.csv"), quoting) == ["text", "label"]


@pytest.mark.parametrize(("separator", "name"), [(",", "t.csv"), ("\t", "t.tsv")])
def test_what_the_csv_module_writes_is_read(tmp_path, separator, name):
    """As pandas and spreadsheets do: every cell comes back as it was."""
    texts = [
        '"',
        '""',
        'a"b',
        '"a"',
        "a,b",
        "a\tb",
        "a\nb",
        "",
        " x ",
        "\\",
        "'",
        '\t\t",\n""',
        "é",
    ]
    labels = ["a,b", 'c"d', "e f"]
    rows = [(text, labels[i % 3]) for i, text in enumerate(texts)]
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC):
        for line_end in ("\n", "\r\n"):
            buffer = io.StringIO()
            writer = csv.writer(
                buffer, delimiter=separator, quoting=quoting, lineterminator=line_end
            )
            writer.writerows([("text", "label"), *rows])
            task = task_of(tmp_path, name, buffer.getvalue())
            assert text_and_label(task.read("train")) == rows


def test_predictions_are_read_again(tmp_path):
    path = tmp_path / "t.tsv"
    rows = [('"quoted"', "a"), ('"', "b"), ("x\ty", "c")]
    write_table(str(path), dict(zip(("text", "label"), zip(*rows))))
    found = text_and_label(task_of(tmp_path, "t.tsv", path.read_bytes()).read("train"))
    assert found == rows


TESTS = {
    "no labels": ("text\na\n", [("a", None)]),
    "no labels, other columns": ("id,text\n1,a\n", [("a", None)]),
    "labels": ("text,label\na,pos\n", [("a", "pos")]),
    "a label misspelt": ("text,lable\na,pos\n", "no column 'label', but 'lable': rename it"),
    "a label with a capital": ("text,Label\na,pos\n", "no column 'label', but 'Label'"),
    "a label with a space": ("text,label \na,pos\n", "no column 'label', but 'label '"),
    "labels in the plural": ("text,labels\na,pos\n", "no column 'label', but 'labels'"),
    "a label that is unknown": ("text,label\na,po\n", "unknown label 'po'"),
    "no label in a row": ("text,label\na,\n", ":2: 'label' is \"\", expected a label"),
    "no rows": ("text\n", "no rows"),
}


@pytest.mark.parametrize("case", TESTS)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_files_that_may_be_without_answers(tmp_path, case, kind):
    content, expected = TESTS[case]
    if kind == "jsonl":
        if "no rows" in case:
            content = ""
        else:
            records = csv.DictReader(io.StringIO(content))
            content = "".join(json.dumps(record) + "\n" for record in records)
            expected = expected.replace(":2:", ":1:") if isinstance(expected, str) else expected
    path = tmp_path / f"test.{kind}"
    path.write_text(content)
    columns = Columns(text="text", label="label")
    task = ClassificationTask("own", {"test": str(path)}, columns, labels=["pos", "neg"])
    if isinstance(expected, list):
        assert text_and_label(task.read("test")) == expected
        return
    with pytest.raises(ValueError, match=expected) as error:
        task.read("test")
    assert_is_one_line(error)
