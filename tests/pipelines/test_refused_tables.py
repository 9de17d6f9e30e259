"""Files that cannot be meant as they are: each is refused in one line with its place."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from tests.pipelines.ugly_files import (
    COMPRESS,
    LINES,
    OBJECTS,
    TSV,
    TWO,
    assert_is_one_line,
    task_of,
    text_and_label,
)

QUOTED = r"expected cells quoted as spreadsheets .* pass --quoting=none"
ONE = "text,label\n"
SEMI = "sep=;\ntext;label\n"
# id: content of t.csv, what the one line says.
CSV = {
    "empty file": ("", r"t\.csv:1: empty; expected a line with the names"),
    "nothing but a mark": ("\ufeff", r"t\.csv:1: empty"),
    "nothing but blank lines": ("\n\n\n", r"t\.csv:1: empty"),
    "a blank first line": ("\n" + TWO, r"t\.csv:1: empty; expected a line with the names"),
    "nothing but a header": (ONE, r"t\.csv: no rows; expected"),
    "no header": ("fine,pos\nbad,neg\n", r":1: no column 'text'.*found 'fine', 'pos'"),
    "no label column": ("text,class\na,pos\n", r":1: no column 'label'"),
    "capital names": ("Text,Label\na,pos\n", r":1: no column 'text'.*'Text', 'Label'"),
    "names with spaces": ("text, label\na,pos\n", r":1: no column 'label'.*' label'"),
    "a column twice": ("text,label,text\na,pos,b\n", r":1: several columns 'text'"),
    "semicolons and a comma in the header": (
        "text;label;a,b\nfine;pos;x\n",
        r":1: no column 'text'.*found 'text;label;a', 'b'; .*begin the file with the line sep=;",
    ),
    "a cell too many, semicolons": (SEMI + "a;pos\nb;c;neg\n", r":4: 3 columns, expected 2"),
    "a quote that swallows rows between semicolons": (
        SEMI + 'x;pos\n"fine;pos\nbad;neg\nlast";neg\n',
        r":4: a quotation mark here is closed in line 6 only",
    ),
    "tabs in csv": (TSV, r"columns seem to stand between tabs"),
    "a cell too few": (ONE + "a,pos\nb\n", r":3: 1 columns, expected 2: 'text', 'label'"),
    "a cell too many": (ONE + "a,pos\nb,c,neg\n", r":3: 3 columns, expected 2"),
    "too many after quoted lines": (ONE + '"a\nb",pos\nb,c,neg\n', r":4: 3 columns, expected 2"),
    "a quote never closed": (ONE + '"fine,pos\nbad,neg\n', rf":2: .*never closed.*{QUOTED}"),
    "text after a quoted cell": (ONE + '"fine" indeed,pos\n', rf":2: .*{QUOTED}"),
    "unquoted csv whose quotes swallow rows": (
        ONE + '"12 inch a,pos\nb,neg\nc 9",pos\nd,neg\n',
        rf":2: a quotation mark here is closed in line 4 only.*{QUOTED}",
    ),
    "backslash before a quote": (ONE + '"say \\"hi\\" now",pos\n', rf":2: .*{QUOTED}"),
    "utf-16": (TWO.encode("utf-16"), r"this is UTF-16 text; convert the file"),
    "utf-16 without a mark": (TWO.encode("utf-16-le"), r"this is UTF-16 text"),
    "utf-32": (TWO.encode("utf-32"), r"t\.csv"),
    "latin-1": (ONE.encode() + "caf\xe9,pos\n".encode("latin-1"), r":2: byte 0xE9 is not"),
    "latin-1 in the header": (b"text,label,\xe9\na,b,c\n", r":1: byte 0xE9 is not UTF-8"),
    "utf-8 cut off": ((ONE + "café").encode()[:-1], r":2: byte 0xC3 is not UTF-8"),
    "a NUL": (ONE + "a\0b,pos\n", r":2: .*a NUL character"),
    "a NUL in the header": ("te\0xt,label\na,pos\n", r":1: .*a NUL character"),
    "a NUL in quotes": (ONE + '"a\n\0b",pos\n', r":3: .*a NUL character"),
    "a spreadsheet": (
        b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0",
        r"t\.csv: this is a ZIP archive or an Excel workbook \(\.xlsx\); .*CSV UTF-8",
    ),
    "an old spreadsheet": (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        r"t\.csv: this is an Excel workbook \(\.xls\).*CSV UTF-8",
    ),
    "parquet named csv": (b"PAR1\x15\x04", r"t\.csv: this is a Parquet file; .*to_csv"),
    "gzip without its name": (gzip.compress(TWO.encode()), r"this is a gzip file; give it"),
    "an empty label": (ONE + "a,pos\nb,\n", r":3: 'label' is \"\", expected a label"),
    "a blank label": (ONE + "a,pos\nb,  \n", r":3: 'label' is .*expected a label"),
    "one class": (ONE + "a,pos\nb,pos\n", r"every 'label' is 'pos'; expected two labels"),
    "a space that does not break": (ONE + "a,v g\nb,v\xa0g\nc,n\n", r"labels 'v g' and"),
    "where both labels stand": (
        ONE + "a,x\nb,pos\n\nc,Pos\n",
        r"t\.csv:5, .*t\.csv:3: labels 'Pos' and 'pos' differ only",
    ),
    "files put together": (
        ONE + "a,pos\nb,neg\n" + ONE + "c,pos\n",
        r":4: the header of line 1 again.*one after the other",
    ),
    "files with other headers put together": (
        ONE + "a,pos\nb,neg\nText,Label \nc,pos\n",
        r":4: the header of line 1 again",
    ),
    "a text as label": (
        ONE + f"pos,{'x' * 501}\n",
        r":2: 'label' has 501 characters, expected",
    ),
    "files with marks put together": (
        '\ufeff"text","label"\na,pos\nb,neg\n\ufeff"text","label"\nc,pos\n',
        r":4: the header of line 1 again",
    ),
    "files put together after a first line of separators": (
        SEMI + "a;pos\ntext;label\nc;neg\n",
        r":4: the header of line 2 again",
    ),
}
# Labels that differ in a way that no user means.
ALIKE = [("1", "1.0"), ("01", "1"), ("+1", "1"), ("1", "1e0"), ("-0", "0"), ("1", "１"),
         ("Pos", "pos"), ("very good", "verygood"), ("v  g", "v g"),
         ("GROSS", "groß"), ('"1,5"', "1.5")]  # fmt: skip
for one, other in ALIKE:
    message = "labels '{}' and '{}' differ only".format(*(x.strip('"') for x in (one, other)))
    CSV[f"{one} and {other}"] = (f"{ONE}a,{one}\nb,{other}\nc,x\n", re.escape(message))
for missing in ("nan", "NaN", "#N/A", "<NA>"):
    message = f"'{missing}' spells that there is no label"
    CSV[missing] = (ONE + f"a,pos\nb,{missing}\nc,neg\n", message)
for mark in "\u200b\ufeff\xad\x07":
    CSV[f"a label with U+{ord(mark):04X}"] = (
        f"{ONE}a,pos\nb,{mark}pos\nc,neg\n",
        rf"labels .*{re.escape(ascii(mark)[1:-1])}pos' .*differ only in .*invisible",
    )
# id: name of the file, content, what the one line says.
REFUSED = {
    **{case: ("t.csv", *rest) for case, rest in CSV.items()},
    "empty jsonl": ("t.jsonl", "", r"t\.jsonl: no rows"),
    "empty json": ("t.json", "", r"t\.json: no rows"),
    "empty array": ("t.json", "[]", r"t\.json: no rows"),
    "empty gzip": ("t.csv.gz", gzip.compress(b""), r"t\.csv\.gz:1: empty"),
    "semicolons in tsv": ("t.tsv", "text;label\na;pos\n", r"columns seem to stand between ';'"),
    "commas in tsv": ("t.tsv", TWO, r"columns seem to stand between commas"),
    "a tab too many": ("t.tsv", TSV + "x\ty\tz\n", r":4: 3 columns, expected 2"),
    "a quote never closed in tsv": ("t.tsv", 'text\tlabel\n"a\tpos\nb\tneg\n', rf":2: .*{QUOTED}"),
    "unquoted tsv that begins with a quote": (
        "t.tsv",
        'text\tlabel\n"fine" he said\tpos\nbad\tneg\n',
        rf":2: .*{QUOTED}",
    ),
    "unquoted tsv whose quotes swallow rows": (
        "t.tsv",
        'text\tlabel\nx\tpos\n"fine\tpos\nbad\tneg\nlast"\tneg\n',
        rf":3: a quotation mark here is closed in line 5 only.*{QUOTED}",
    ),
    "unquoted tsv whose quote swallows one row": (
        "t.tsv",
        'text\tlabel\n"fine\tpos\nlast"\tneg\n',
        rf":2: a quotation mark here is closed in line 3 only.*{QUOTED}",
    ),
    "utf-16 of Excel": ("t.txt", TSV.encode("utf-16"), r"this is UTF-16 text"),
    "latin-1 in jsonl": ("t.jsonl", LINES.encode() + b'{"text": "\xe9"}', r":3: byte 0xE9"),
    "latin-1 in an array": ("t.json", b'[\n{"text": "\xe9"}]', r":2: byte 0xE9"),
    "a NUL in jsonl": ("t.jsonl", '{"text": "\0", "label": 1}\n', r":1: .*a NUL character"),
    "parquet in gzip": ("t.csv.gz", gzip.compress(b"PAR1\x15"), r"this is a Parquet file"),
    "a name of a spreadsheet": ("t.xlsx", b"PK\x03\x04", r"expected a name that ends in \.csv"),
    "no ending": ("train", TWO, r"expected a name that ends in \.csv .*\.tsv, \.txt .*\.jsonl"),
    "text named gzip": ("t.csv.gz", TWO, r"not a whole gzip file"),
    "gzip cut off": ("t.csv.gz", gzip.compress(TWO.encode())[:-9], r"not a whole gzip file"),
    "zstandard cut off": (
        "t.csv.zst",
        COMPRESS[".zst"](TWO.encode())[:-3],
        r"not a whole Zstandard file",
    ),
    "jsonl cut off": ("t.jsonl", LINES[:-5], r":2: not JSON"),
    "an array in jsonl": ("t.jsonl", json.dumps(OBJECTS), r":1: not a JSON object"),
    "an array cut off": ("t.json", json.dumps(OBJECTS, indent=1)[:-9], r":8: not JSON"),
    "an array not closed": ("t.json", json.dumps(OBJECTS)[:-1], r":1: not JSON"),
    "an array that ends in a comma": ("t.json", '[{"text": "a", "label": 1},', r":1: not JSON"),
    "an array without a comma": ("t.json", '[{"text": "a", "label": 1}\n{}]', r":2: not JSON"),
    "an array of numbers": ("t.json", "[1, 2]", r":1: element 1 is no object"),
    "text after an array": ("t.json", json.dumps(OBJECTS) + "\n[]", r":2: not JSON \(Extra data"),
    "bad json in an array": (
        "t.json",
        '[{"text": "a", "label": 1},\n{"text": a}]' + " " * 99,
        r":2: not JSON",
    ),
    "no number within json": ("t.jsonl", '{"text": "a", "label": nope}\n', r":1: not JSON"),
    "an object over lines": ("t.json", json.dumps(OBJECTS[0], indent=1), r":1: not JSON"),
    "an object of lists": ("t.json", '{"text": ["a"], "label": ["b"]}', r":1: 'text' is \[\"a\"\]"),
    "a field too few": ("t.jsonl", LINES + '{"text": "a"}\n', r":3: no field 'label'"),
    "a field too few in an array": (
        "t.json",
        '[{"text": "a", "label": "x"},\n {"text": "a"}]',
        r":2: no field 'label'; the object has 'text'",
    ),
    "deep nesting": ("t.jsonl", '{"text": ' + "[" * 99_999, r":1: not JSON"),
    "no text in json": ("t.jsonl", LINES + '{"text": null, "label": "pos"}', r":3: 'text' is null"),
    "a number as text": ("t.jsonl", LINES + '{"text": 5, "label": "pos"}', r":3: 'text' is 5"),
    "true and True": (
        "t.jsonl",
        '{"text": "a", "label": true}\n{"text": "b", "label": "true"}\n',
        r"labels 'True' and 'true' differ only",
    ),
    "1 and the text 1.0": (
        "t.jsonl",
        '{"text": "a", "label": 1}\n{"text": "b", "label": "1.0"}\n',
        r"labels '1' and '1\.0' differ only",
    ),
    "JSON true and 1": (
        "t.jsonl",
        '{"text": "a", "label": 1}\n{"text": "b", "label": true}\n{"text": "c", "label": 2}\n',
        r":1, .*:2: labels '1' and 'True' differ only in .*truth value",
    ),
    "a key twice": (
        "t.jsonl",
        LINES + '{"text": "a", "label": "x", "label": "y"}\n',
        r":3: not JSON \(the field 'label' twice in one object",
    ),
    "a key twice in an array": (
        "t.json",
        '[{"text": "a", "label": "x"},\n {"text": "a", "text": "b", "label": "y"}]',
        r"t\.json: not JSON \(the field 'text' twice in one object",
    ),
}
for label, shown in (("null", "null"), ('["x"]', r"\["), ("1.5", r"1\.5"), ("NaN", "NaN")):
    content = f'{{"text": "a", "label": {label}}}'
    REFUSED[f"a label that is {label}"] = ("t.jsonl", content, f":1: 'label' is {shown}")


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(tmp_path, case):
    name, content, problem = REFUSED[case]
    with pytest.raises(ValueError, match=problem) as error:
        task_of(tmp_path, name, content).read("train")
    assert_is_one_line(error)


NUMBERS = {
    "a number": ("2.5", 2.5),
    "a whole number": ("-3", -3.0),
    "an exponent": ("1e-3", 0.001),
    "spaces around": (" 4 ", 4.0),
    "a word": ("two", "expected a number$"),
    "nothing": ("", "expected a number; remove the row"),
    "nan": ("nan", "expected a number$"),
    "infinity": ("inf", "expected a number$"),
    "a comma in German": ('"1,5"', r"expected a number; .*decimal point"),
    "an underscore": ("1_000", "expected a number$"),
    "beyond float64": ("1e400", "expected a number$"),
    "beyond float32": (
        "1e39",
        r":2: 'label' is \"1e39\", expected a number up to 1e\+18: the loss",
    ),
    "beyond its square": ("-2e19", "the loss squares it in float32; give the numbers in another"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers(tmp_path, case):
    cell, expected = NUMBERS[case]
    task = task_of(tmp_path, "t.csv", f"text,label\na,{cell}\n", is_regression=True)
    if isinstance(expected, float):
        assert text_and_label(task.read("train")) == [("a", expected)]
        return
    with pytest.raises(ValueError, match=expected) as error:
        task.read("train")
    assert_is_one_line(error)


def test_an_unknown_label_is_compared_with_the_known(tmp_path):
    task = task_of(tmp_path, "t.csv", "text,label\na,pos\nb,Neg \n", labels=["pos", "neg"])
    with pytest.raises(ValueError, match=r":3: unknown label 'Neg' .*; it is almost 'neg'$"):
        task.read("train")
