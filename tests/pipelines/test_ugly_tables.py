"""Files as users have them: each is read as it is meant, or refused in one line with its place."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma

import pytest
import zstandard

from albert_tf import program
from pipelines.tasks.classification import ClassificationTask, Columns
from pipelines.tasks.tables import write_table

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
TWO = "text,label\nfine,pos\nbad,neg\n"
AS_TWO = [("fine", "pos"), ("bad", "neg")]
TSV = "text\tlabel\nfine\tpos\nbad\tneg\n"
OBJECTS = [{"text": "fine", "label": "pos"}, {"text": "bad", "label": "neg"}]
LINES = "".join(json.dumps(record) + "\n" for record in OBJECTS)
BIG = "word " * 40_000


def task_of(directory, name, content, columns=None, **arguments):
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    columns = {"text": "text", "label": "label", **(columns or {})}
    columns = Columns(**columns)
    return ClassificationTask("classification", {"train": str(path)}, columns, **arguments)


def text_and_label(examples):
    return [(example.text, example.label) for example in examples]


# id: name of the file, content, what is read of it.
READ = {
    "csv": ("t.csv", TWO, AS_TWO),
    "tsv": ("t.tsv", TSV, AS_TWO),
    "txt": ("t.txt", TSV, AS_TWO),
    "jsonl": ("t.jsonl", LINES, AS_TWO),
    "json lines": ("t.json", LINES, AS_TWO),
    "json array": ("t.json", json.dumps(OBJECTS), AS_TWO),
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
    "comma in quotes": (
        "t.csv",
        'text,label\n"fine, really",pos\nbad,neg\n',
        [("fine, really", "pos"), ("bad", "neg")],
    ),
    "tab in quotes": (
        "t.tsv",
        'text\tlabel\n"fine\treally"\tpos\nbad\tneg\n',
        [("fine\treally", "pos"), ("bad", "neg")],
    ),
    "doubled quotes": (
        "t.csv",
        'text,label\n"he said ""hi""",pos\nbad,neg\n',
        [('he said "hi"', "pos"), ("bad", "neg")],
    ),
    "doubled quotes in tsv": (
        "t.tsv",
        'text\tlabel\n"he said ""hi"""\tpos\nbad\tneg\n',
        [('he said "hi"', "pos"), ("bad", "neg")],
    ),
    "nothing but a quote": (
        "t.tsv",
        'text\tlabel\n""""\tpos\nbad\tneg\n',
        [('"', "pos"), ("bad", "neg")],
    ),
    "a quote within a cell": (
        "t.tsv",
        'text\tlabel\n6" pipe\tpos\nbad\tneg\n',
        [('6" pipe', "pos"), ("bad", "neg")],
    ),
    "quotes within a cell": (
        "t.csv",
        'text,label\nsay "hi" now,pos\nbad,neg\n',
        [('say "hi" now', "pos"), ("bad", "neg")],
    ),
    "line end in quotes": (
        "t.csv",
        'text,label\n"one\ntwo",pos\nbad,neg\n',
        [("one\ntwo", "pos"), ("bad", "neg")],
    ),
    "crlf in quotes": (
        "t.csv",
        'text,label\r\n"one\r\ntwo",pos\r\nbad,neg\r\n',
        [("one\ntwo", "pos"), ("bad", "neg")],
    ),
    "blank lines in quotes": (
        "t.tsv",
        'text\tlabel\n"one\n\n\ntwo"\tpos\nbad\tneg\n',
        [("one\n\n\ntwo", "pos"), ("bad", "neg")],
    ),
    "a comma and a line end in quotes": (
        "t.csv",
        'text,label\n"Hello, you\nbye",pos\nbad,neg\n',
        [("Hello, you\nbye", "pos"), ("bad", "neg")],
    ),
    "single quotes": (
        "t.csv",
        "text,label\n'fine',pos\nbad,neg\n",
        [("'fine'", "pos"), ("bad", "neg")],
    ),
    "backslashes": (
        "t.csv",
        "text,label\na\\b\\n,pos\nbad,neg\n",
        [("a\\b\\n", "pos"), ("bad", "neg")],
    ),
    "empty text": ("t.csv", "text,label\n,pos\nbad,neg\n", [("", "pos"), ("bad", "neg")]),
    "empty text in quotes": (
        "t.csv",
        'text,label\n"",pos\nbad,neg\n',
        [("", "pos"), ("bad", "neg")],
    ),
    "blank text": ("t.csv", "text,label\n  ,pos\nbad,neg\n", [("  ", "pos"), ("bad", "neg")]),
    "spaces around a label": ("t.csv", "text,label\nfine, pos \nbad,neg\n", AS_TWO),
    "tab after a label": ("t.csv", "text,label\nfine,pos\t\nbad,neg\n", AS_TWO),
    "other columns": ("t.csv", "id,text,x,label\n1,fine,,pos\n2,bad,,neg\n", AS_TWO),
    "a column without a name": ("t.csv", ",text,label\n0,fine,pos\n1,bad,neg\n", AS_TWO),
    "empty columns at the end": ("t.csv", "text,label,,\nfine,pos,,\nbad,neg,,\n", AS_TWO),
    "columns of one name elsewhere": (
        "t.csv",
        "x,x,text,label\n1,2,fine,pos\n1,2,bad,neg\n",
        AS_TWO,
    ),
    "line separators of Unicode": (
        "t.csv",
        "text,label\na\u2028b\x85c\x0bd\x0ce,pos\nbad,neg\n",
        [("a\u2028b\x85c\x0bd\x0ce", "pos"), ("bad", "neg")],
    ),
    "emoji and bidi marks": (
        "t.csv",
        "text,label\n\U0001f469\u200d\U0001f4bb \u202eabc,pos\nbad,neg\n",
        [("\U0001f469\u200d\U0001f4bb \u202eabc", "pos"), ("bad", "neg")],
    ),
    "a mark in the middle": (
        "t.csv",
        "text,label\n\ufefffine,pos\nbad,neg\n",
        [("\ufefffine", "pos"), ("bad", "neg")],
    ),
    "a huge cell": (
        "t.csv",
        f'text,label\n"{BIG}",pos\nbad,neg\n',
        [(BIG, "pos"), ("bad", "neg")],
    ),
    "a huge cell without quotes": (
        "t.tsv",
        f"text\tlabel\n{BIG * 8}\tpos\nbad\tneg\n",
        [(BIG * 8, "pos"), ("bad", "neg")],
    ),
    "a huge value in jsonl": (
        "t.jsonl",
        json.dumps({"text": BIG * 8, "label": "pos"}) + "\n" + LINES,
        [(BIG * 8, "pos"), *AS_TWO],
    ),
    "a huge value in an array": (
        "t.json",
        json.dumps([{"text": BIG * 30, "label": "pos"}, *OBJECTS]),
        [(BIG * 30, "pos"), *AS_TWO],
    ),
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
    "brackets and braces in strings": (
        "t.json",
        json.dumps([{"text": '}],[{"', "label": "pos"}, *OBJECTS]),
        [('}],[{"', "pos"), *AS_TWO],
    ),
    "numbers as labels in json": (
        "t.jsonl",
        '{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n',
        [("a", "0"), ("b", "1")],
    ),
    "truth values as labels": (
        "t.jsonl",
        '{"text": "a", "label": true}\n{"text": "b", "label": false}\n',
        [("a", "True"), ("b", "False")],
    ),
    "None as a label": ("t.csv", "text,label\na,None\nb,NA\n", [("a", "None"), ("b", "NA")]),
    "labels with commas": (
        "t.csv",
        'text,label\na,"x, y"\nb,z\n',
        [("a", "x, y"), ("b", "z")],
    ),
    "labels of other scripts": (
        "t.csv",
        "text,label\na,긍정\nb,부정\n",
        [("a", "긍정"), ("b", "부정")],
    ),
    "one row of each label": ("t.csv", "label,text\npos,fine\nneg,bad", AS_TWO),
}
for ending, compress in COMPRESS.items():
    for kind, content in (
        ("csv", TWO),
        ("tsv", TSV),
        ("jsonl", LINES),
        ("json", json.dumps(OBJECTS)),
    ):
        READ[f"{kind}{ending}"] = (f"t.{kind}{ending}", compress(content.encode()), AS_TWO)
READ["two gzip members"] = (
    "t.csv.gz",
    gzip.compress(TWO[:15].encode()) + gzip.compress(TWO[15:].encode()),
    AS_TWO,
)


@pytest.mark.parametrize("case", READ)
def test_read_as_it_is_meant(tmp_path, case):
    name, content, expected = READ[case]
    assert text_and_label(task_of(tmp_path, name, content).read("train")) == expected


QUOTED = r"expected cells quoted as spreadsheets .* pass --quoting=none"
ONE = "text,label\n"
# id: name of the file, content, what the one line says.
REFUSED = {
    "empty file": ("t.csv", "", r"t\.csv:1: empty; expected a line with the names"),
    "empty jsonl": ("t.jsonl", "", r"t\.jsonl: no rows"),
    "empty json": ("t.json", "", r"t\.json: no rows"),
    "empty array": ("t.json", "[]", r"t\.json: no rows"),
    "empty gzip": ("t.csv.gz", gzip.compress(b""), r"t\.csv\.gz:1: empty"),
    "nothing but a mark": ("t.csv", "\ufeff", r"t\.csv:1: empty"),
    "nothing but blank lines": ("t.csv", "\n\n\n", r"t\.csv:1: empty"),
    "a blank first line": ("t.csv", "\n" + TWO, r"t\.csv:1: empty; expected a line with the names"),
    "nothing but a header": ("t.csv", ONE, r"t\.csv: no rows; expected"),
    "no header": ("t.csv", "fine,pos\nbad,neg\n", r":1: no column 'text'.*found 'fine', 'pos'"),
    "no text column": ("t.csv", "body,label\na,pos\n", r":1: no column 'text'"),
    "no label column": ("t.csv", "text,class\na,pos\n", r":1: no column 'label'"),
    "capital names": ("t.csv", "Text,Label\na,pos\n", r":1: no column 'text'.*'Text', 'Label'"),
    "names with spaces": ("t.csv", "text, label\na,pos\n", r":1: no column 'label'.*' label'"),
    "a column twice": ("t.csv", "text,label,text\na,pos,b\n", r":1: several columns 'text'"),
    "semicolons": ("t.csv", "text;label\nfine;pos\n", r"columns seem to stand between ';'"),
    "tabs in csv": ("t.csv", TSV, r"columns seem to stand between tabs"),
    "commas in tsv": ("t.tsv", TWO, r"columns seem to stand between commas"),
    "a cell too few": ("t.csv", ONE + "a,pos\nb\n", r":3: 1 columns, expected 2: 'text', 'label'"),
    "a cell too many": ("t.csv", ONE + "a,pos\nb,c,neg\n", r":3: 3 columns, expected 2"),
    "a cell too many after quoted lines": (
        "t.csv",
        ONE + '"a\nb",pos\nb,c,neg\n',
        r":4: 3 columns, expected 2",
    ),
    "a tab too many": ("t.tsv", TSV + "x\ty\tz\n", r":4: 3 columns, expected 2"),
    "a quote never closed": (
        "t.csv",
        ONE + '"fine,pos\nbad,neg\n',
        rf":2: .*never closed.*{QUOTED}",
    ),
    "a quote never closed in tsv": ("t.tsv", 'text\tlabel\n"a\tpos\nb\tneg\n', rf":2: .*{QUOTED}"),
    "text after a quoted cell": ("t.csv", ONE + '"fine" indeed,pos\n', rf":2: .*{QUOTED}"),
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
    "backslash before a quote": ("t.csv", ONE + '"say \\"hi\\" now",pos\n', rf":2: .*{QUOTED}"),
    "utf-16": ("t.csv", TWO.encode("utf-16"), r"this is UTF-16 text; convert the file"),
    "utf-16 without a mark": ("t.csv", TWO.encode("utf-16-le"), r"this is UTF-16 text"),
    "utf-16 of Excel": ("t.txt", TSV.encode("utf-16"), r"this is UTF-16 text"),
    "utf-32": ("t.csv", TWO.encode("utf-32"), r"t\.csv"),
    "latin-1": ("t.csv", ONE.encode() + "caf\xe9,pos\n".encode("latin-1"), r":2: byte 0xE9 is not"),
    "latin-1 in the header": ("t.csv", b"text,label,\xe9\na,b,c\n", r":1: byte 0xE9 is not UTF-8"),
    "latin-1 in jsonl": ("t.jsonl", LINES.encode() + b'{"text": "\xe9"}', r":3: byte 0xE9"),
    "latin-1 in an array": ("t.json", b'[\n{"text": "\xe9"}]', r":2: byte 0xE9"),
    "utf-8 cut off": ("t.csv", (ONE + "café").encode()[:-1], r":2: byte 0xC3 is not UTF-8"),
    "a NUL": ("t.csv", ONE + "a\0b,pos\n", r":2: .*a NUL character"),
    "a NUL in the header": ("t.csv", "te\0xt,label\na,pos\n", r":1: .*a NUL character"),
    "a NUL in quotes": ("t.csv", ONE + '"a\n\0b",pos\n', r":3: .*a NUL character"),
    "a NUL in jsonl": ("t.jsonl", '{"text": "\0", "label": 1}\n', r":1: .*a NUL character"),
    "a spreadsheet": ("t.csv", b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0", r"t\.csv"),
    "a name of a spreadsheet": ("t.xlsx", b"PK\x03\x04", r"expected a name that ends in \.csv"),
    "no ending": ("train", TWO, r"expected a name that ends in \.csv"),
    "parquet": ("t.parquet", b"PAR1", r"expected a name that ends in \.csv"),
    "gzip without its name": (
        "t.csv",
        gzip.compress(TWO.encode()),
        r"this is a gzip file; give it",
    ),
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
    "an array not closed": ("t.json", json.dumps(OBJECTS)[:-1], r":1: the array is not closed"),
    "an array that ends in a comma": ("t.json", '[{"text": "a", "label": 1},', r"is not closed"),
    "an array without a comma": ("t.json", '[{"text": "a", "label": 1}\n{}]', r":2: no comma"),
    "an array of numbers": ("t.json", "[1, 2]", r":1: an element is no object"),
    "an array of arrays": ("t.json", "[[1, 2]]", r":1: an element is no object"),
    "text after an array": ("t.json", json.dumps(OBJECTS) + "\n[]", r":2: text after the end"),
    "bad json in an array": (
        "t.json",
        '[{"text": "a", "label": 1},\n{"text": a}]' + " " * 99,
        r":2: not JSON",
    ),
    "no number within json": ("t.jsonl", '{"text": "a", "label": nope}\n', r":1: not JSON"),
    "an object over lines": ("t.json", json.dumps(OBJECTS[0], indent=1), r":1: not JSON"),
    "an object of lists": (
        "t.json",
        '{"text": ["a"], "label": ["b"]}',
        r":1: 'text' is \[\"a\"\], exp",
    ),
    "a field too few": ("t.jsonl", LINES + '{"text": "a"}\n', r":3: no field 'label'"),
    "a field too few in an array": (
        "t.json",
        '[{"text": "a", "label": "x"},\n {"text": "a"}]',
        r":2: no field 'label'",
    ),
    "deep nesting": ("t.jsonl", '{"text": ' + "[" * 99_999, r":1: not JSON"),
    "no text in json": ("t.jsonl", LINES + '{"text": null, "label": "pos"}', r":3: 'text' is null"),
    "a number as text": ("t.jsonl", LINES + '{"text": 5, "label": "pos"}', r":3: 'text' is 5"),
    "a label that is null": ("t.jsonl", '{"text": "a", "label": null}', r":1: 'label' is null"),
    "a label that is a list": ("t.jsonl", '{"text": "a", "label": ["x"]}', r":1: 'label' is \["),
    "a label that is a fraction": (
        "t.jsonl",
        '{"text": "a", "label": 1.5}',
        r":1: 'label' is 1\.5",
    ),
    "a label that is NaN": ("t.jsonl", '{"text": "a", "label": NaN}', r":1: 'label' is NaN"),
    "an empty label": ("t.csv", ONE + "a,pos\nb,\n", r":3: 'label' is \"\", expected a label"),
    "a blank label": ("t.csv", ONE + "a,pos\nb,  \n", r":3: 'label' is .*expected a label"),
    "one class": ("t.csv", ONE + "a,pos\nb,pos\n", r"every 'label' is 'pos'; expected two labels"),
    "1 and 1.0": ("t.csv", ONE + "a,1\nb,1.0\nc,0\n", r"labels '1' and '1\.0' differ only"),
    "1 and 01": ("t.csv", ONE + "a,1\nb,01\nc,0\n", r"labels '01' and '1' differ only"),
    "1 and +1": ("t.csv", ONE + "a,1\nb,+1\nc,0\n", r"labels '\+1' and '1' differ only"),
    "1 and 1e0": ("t.csv", ONE + "a,1\nb,1e0\nc,0\n", r"labels '1' and '1e0' differ only"),
    "0 and -0": ("t.csv", ONE + "a,0\nb,-0\nc,1\n", r"labels '-0' and '0' differ only"),
    "1 and a wide 1": ("t.csv", ONE + "a,1\nb,１\nc,0\n", r"labels '1' and '１' differ only"),
    "pos and Pos": ("t.csv", ONE + "a,pos\nb,Pos\nc,neg\n", r"labels 'Pos' and 'pos' differ only"),
    "very good and verygood": (
        "t.csv",
        ONE + "a,very good\nb,verygood\nc,neg\n",
        r"labels 'very good' and 'verygood' differ only",
    ),
    "two spaces and one": ("t.csv", ONE + "a,v g\nb,v  g\nc,neg\n", r"labels 'v  g' and 'v g'"),
    "a space that does not break": ("t.csv", ONE + "a,v g\nb,v\xa0g\nc,n\n", r"labels 'v g' and"),
    "true and True": (
        "t.jsonl",
        '{"text": "a", "label": true}\n{"text": "b", "label": "true"}\n',
        r"labels 'True' and 'true' differ only",
    ),
    "1 and true number": (
        "t.jsonl",
        '{"text": "a", "label": 1}\n{"text": "b", "label": "1.0"}\n',
        r"labels '1' and '1\.0' differ only",
    ),
    "ß and ss": ("t.csv", ONE + "a,groß\nb,GROSS\nc,x\n", r"labels 'GROSS' and 'groß' differ only"),
    "nan": ("t.csv", ONE + "a,pos\nb,nan\nc,neg\n", r"'nan' spells that there is no label"),
    "NaN": ("t.csv", ONE + "a,pos\nb,NaN\nc,neg\n", r"'NaN' spells that there is no label"),
    "#N/A": ("t.csv", ONE + "a,pos\nb,#N/A\nc,neg\n", r"'#N/A' spells that there is no label"),
    "<NA>": ("t.csv", ONE + "a,pos\nb,<NA>\nc,neg\n", r"'<NA>' spells that there is no label"),
}


def assert_is_one_line(error):
    assert program.is_user_error(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 700


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
    "nothing": ("", "expected a number$"),
    "nan": ("nan", "expected a number$"),
    "infinity": ("inf", "expected a number$"),
    "a comma in German": ('"1,5"', "expected a number$"),
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


def test_labels_that_are_listed_may_differ_in_case(tmp_path):
    task = task_of(tmp_path, "t.csv", "text,label\na,us\nb,US\nc,nan\n", labels=["us", "US", "nan"])
    assert [label for _, label in text_and_label(task.read("train"))] == ["us", "US", "nan"]


def test_an_unknown_label_is_compared_with_the_known(tmp_path):
    task = task_of(tmp_path, "t.csv", "text,label\na,pos\nb,Neg \n", labels=["pos", "neg"])
    with pytest.raises(ValueError, match=r":3: unknown label 'Neg' .*; it is almost 'neg'$"):
        task.read("train")


def test_thousands_of_labels(tmp_path):
    rows = "".join(f"text {i},class {i}\n" for i in range(5000))
    task = task_of(tmp_path, "t.csv", "text,label\n" + rows)
    assert len(task.labels) == 5000 and len(task.read("train")) == 5000


def test_quotation_marks_may_be_characters(tmp_path):
    content = 'text\tlabel\n"fine\tpos\n"bad" they say\tneg\n""quoted""\tpos\n'
    task = task_of(tmp_path, "t.tsv", content, quoting="none")
    expected = [('"fine', "pos"), ('"bad" they say', "neg"), ('""quoted""', "pos")]
    assert text_and_label(task.read("train")) == expected


@pytest.mark.parametrize("separator, name", [(",", "t.csv"), ("\t", "t.tsv")])
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
    assert found == [('"quoted"', "a"), ('"', "b"), ("x y", "c")]


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
