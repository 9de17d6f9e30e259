import csv
import io
import json
import re

import pytest

from pipelines.tasks.classification import ClassificationTask
from tests.builders import raises_one_line
from tests.pipelines.data.test_corpus import COMPRESS

ONE = "text,label\n"
TWO = ONE + "fine,pos\nbad,neg\n"
AS_TWO = [("fine", "pos"), ("bad", "neg")]
TSV = "text\tlabel\nfine\tpos\nbad\tneg\n"
OBJECTS = [{"text": "fine", "label": "pos"}, {"text": "bad", "label": "neg"}]
LINES = "".join(json.dumps(record) + "\n" for record in OBJECTS)
BIG = "word " * 320_000


def task_of(directory, name, content, split="train", **arguments):
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return ClassificationTask("classification", {split: str(path)}, **arguments)


def text_and_label(examples):
    return [(example.text, example.label) for example in examples]


def first(cell, text, name="t.csv"):
    """A table whose first row has this cell, and what is read of it."""
    s = "," if name == "t.csv" else "\t"
    rows = f"text{s}label\n{cell}{s}pos\nbad{s}neg\n"
    return name, rows, [(text, "pos"), ("bad", "neg")]


# id: name of the file, content, what is read of it.
READ = {
    "json array over lines": ("t.json", "\n \n" + json.dumps(OBJECTS, indent=2) + "\n\n", AS_TWO),
    "byte order mark and quotes": ("t.csv", '\ufeff"text","label"\nfine,pos\nbad,neg\n', AS_TWO),
    "mixed line ends": ("t.csv", "text,label\r\nfine,pos\nbad,neg\r", AS_TWO),
    "blank lines": ("t.csv", "text,label\n\nfine,pos\n\n\nbad,neg\n\n", AS_TWO),
    "a quote within a cell": first('6" pipe', '6" pipe', "t.tsv"),
    "spaces around a label": ("t.csv", "text,label\nfine, pos \nbad,neg\n", AS_TWO),
    "a column without a name": ("t.csv", ",text,label\n0,fine,pos\n1,bad,neg\n", AS_TWO),
    "empty columns at the end": ("t.csv", "text,label,,\nfine,pos,,\nbad,neg,,\n", AS_TWO),
    "columns of one name": ("t.csv", "x,x,text,label\n1,2,fine,pos\n1,2,bad,neg\n", AS_TWO),
    "line separators of Unicode": first("a\u2028b\x85c\x0bd\x0ce", "a\u2028b\x85c\x0bd\x0ce"),
    "a huge cell": first(f'"{BIG}"', BIG),
    "None as a label": ("t.csv", "text,label\na,None\nb,NA\n", [("a", "None"), ("b", "NA")]),
    "commas, a semicolon in quotes": ("t.csv", '"a; b",text,label\n1,fine,pos\n2,bad,neg', AS_TWO),
    "a line of separators": ("t.csv", "\ufeffsep=;\r\ntext;label\r\nfine;pos\r\nbad;neg", AS_TWO),
    "separators that are tabs": ("t.csv", '"sep=\t"\n' + TSV, AS_TWO),
    "; and names of two lines": ("t.csv", '"a,\nb";text;label\n;fine;pos\n;bad;neg\n', AS_TWO),
    "; and a quote in a name": ("t.csv", 'text;6";label\nfine;a,;pos\nbad;5" b;neg\n', AS_TWO),
    "; in prose": ("t.csv", 'text;label\n"a; b\nc";pos\nbad;neg', [("a; b\nc", "pos"), AS_TWO[1]]),
    "escapes": ("t.json", LINES.replace("fine", r"\u0000\ud800"), [("\0\ufffd", "pos"), AS_TWO[1]]),
    "lines that look like rows, but for commas of prose": (
        "t.csv",
        'label,text\n1,"They paid\n1,000 or\n0,5 dollars"\n0,a\n',
        [("They paid\n1,000 or\n0,5 dollars", "1"), ("a", "0")],
    ),
}
for case, codes in {
    "huge": ("12E3456789", "12E3456790"),
    "beyond all exponents": ("1E9999999999999999999", "2E9999999999999999999"),
    "long": ("1234567890123456789012345678901", "1234567890123456789012345678902"),
}.items():
    rows = [(text, code) for text in "abc" for code in codes]
    lines = "".join(f"{text},{code}\n" for text, code in rows)
    READ[f"labels that are {case} numbers"] = "t.csv", f"text,label\n{lines}", rows
CONTENT = {"csv": TWO, "tsv": TSV, "txt": TSV, "jsonl": LINES, "json": json.dumps(OBJECTS)}
NAMES = [f"t.{kind}{packed}" for kind in CONTENT for packed in ("", *COMPRESS)]
for name in (*NAMES, "T.CSV", "t.Csv.gz", "T.TSV", "T.JSONL", "T.Json"):
    _, kind, *packed = name.lower().split(".")
    compress = COMPRESS[f".{packed[0]}"] if packed else bytes
    READ[name] = (name, compress(CONTENT[kind].encode()), AS_TWO)


@pytest.mark.parametrize("case", READ)
def test_read_as_it_is_meant(tmp_path, case):
    name, content, expected = READ[case]
    assert text_and_label(task_of(tmp_path, name, content).read("train")) == expected


def test_labels_that_are_listed_may_differ_in_case_and_quotation_marks_be_characters(tmp_path):
    rows = [("a", "us"), ('"b', "US"), ('"c" they say', "nan"), (' two "" \u2028 \\', "us")]
    content = "\ufeffid\tlabel\ttext\r\n\r\n"
    content += "".join(f'"\t{label}\t{text}\r\n' for text, label in rows)
    task = task_of(tmp_path, "t.tsv", content, labels=["us", "US", "nan"], quoting="none")
    assert text_and_label(task.read("train")) == rows


@pytest.mark.parametrize(("separator", "name"), [(",", "t.csv"), ("\t", "t.tsv")])
def test_what_the_csv_module_writes_is_read(tmp_path, separator, name):
    """As pandas and spreadsheets do: every cell comes back as it was."""
    texts = ['"', '""', 'a"b', '"a"', "a,b", "a\tb", "a\nb", "", " x ", "\\", "'", '\t\t",\n""']
    rows = [(text, ["a,b", 'c"d', "e f"][i % 3]) for i, text in enumerate(texts)]
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC):
        for line_end in ("\n", "\r\n"):
            buffer = io.StringIO()
            style = {"delimiter": separator, "quoting": quoting, "lineterminator": line_end}
            csv.writer(buffer, **style).writerows([("text", "label"), *rows])
            assert text_and_label(task_of(tmp_path, name, buffer.getvalue()).read("train")) == rows


def test_files_that_may_be_without_answers(tmp_path):
    for name, content, label in (
        ("t.csv", "text\na\n", None),
        ("t.csv", "text,label\na,pos\n", "pos"),
        ("t.csv", "sep=;\ntext;label\na;pos\n", "pos"),
        ("t.jsonl", '{"text": "a"}\n', None),
        ("t.jsonl", '{"text": "a", "label": "pos"}\n', "pos"),
    ):
        task = task_of(tmp_path, name, content, "test", labels=["pos", "neg"])
        assert text_and_label(task.read("test")) == [("a", label)]
    for content, problem in (
        ("text,label\na,\n", ":2: 'label' is .*, expected a label"),
        ("text,Label \na,pos\n", r"t\.csv: no column 'label', but 'Label ': rename"),
    ):
        with raises_one_line(problem):
            task_of(tmp_path, "t.csv", content, "test", labels=["pos", "neg"]).read("test")


QUOTED = r"expected cells quoted as spreadsheets .* pass --quoting=none"
SEMI = "sep=;\ntext;label\n"
# id: content of t.csv, what the one line says.
CSV = {
    "empty file": ("", r"t\.csv:1: empty; expected a line with the names"),
    "a quote that swallows rows": (SEMI + 'x;pos\n"a;pos\nb;neg\nc";neg\n', ":4: .*in line 6 only"),
    "a spreadsheet": (b"PK\x03\x04\x14\0\x06\0", r"t\.csv: .* \(\.xlsx\); .*CSV UTF-8"),
    "two files": (TWO * 2, ":4: the header of line 1 again"),
    "two files with marks": (("\ufeff" + TWO) * 2, ":4: the header of line 1 again"),
    "semicolons and a comma in names": (
        "text;label;a,b\nfine;pos;x\n",
        r":1: no column 'text'.*found 'text;label;a', 'b'",
    ),
    "both labels have a place": (ONE + "a,x\n\nc,X\n", r"t\.csv:4, .*t\.csv:2: labels 'X' and 'x'"),
    "nothing but a header": (ONE, r"t\.csv: no rows; expected at least one$"),
    "a column twice": ("text,label,text\na,pos,b\n", r":1: several columns 'text'"),
    "tabs in csv": (TSV, r":1: no column 'text'.*; \.csv has commas between columns, \.tsv tabs"),
    "a cell too few": (ONE + "a,pos\nb\n", r":3: 1 columns, expected 2: 'text', 'label'"),
    "too many after quoted lines": (ONE + '"a\nb",pos\nb,c,neg\n', r":4 \(row 3\): 3 columns, ex"),
    "a quote never closed": (ONE + '"fine,pos\nbad,neg\n', rf":2: .*never closed.*{QUOTED}"),
    "text after a quoted cell": (ONE + '"fine" indeed,pos\n', rf":2: .*{QUOTED}"),
    "utf-32": (TWO.encode("utf-32"), r"t\.csv"),
    "latin-1": (ONE.encode() + "caf\xe9,pos\n".encode("latin-1"), r":2: byte 0xE9 is not"),
    "a NUL in quotes": (ONE + '"a\n\0b",pos\n', r":3: .*a NUL character"),
    "parquet named csv": (b"PAR1\x15\x04", r"t\.csv: this is a Parquet file; .* ends in \.parquet"),
    "one class": (ONE + "a,pos\nb,pos\n", "the only label in 'label' is 'pos'; expected two label"),
}
# Labels that differ in a way that no user means.
ALIKE = [("01", "1.0"), ("-0", "0"), ("x2", "x²"), ("a b", "ab"), ("SS", "ß"), ('"1,5"', "1.5")]
for one, other in ALIKE:
    message = "labels '{}' and '{}' differ only".format(*(x.strip('"') for x in (one, other)))
    CSV[f"{one} and {other}"] = (f"{ONE}a,{one}\nb,{other}\nc,x\n", re.escape(message))
for missing in ("nan", "NaN", "#N/A", "<NA>"):
    message = f"'{missing}' looks like a missing label"
    CSV[missing] = (ONE + f"a,pos\nb,{missing}\nc,neg\n", message)
for mark in "\u200b\ufeff\xad\x07":
    CSV[f"a label with U+{ord(mark):04X}"] = (
        f"{ONE}a,pos\nb,{mark}pos\nc,neg\n",
        rf"labels .*{re.escape(ascii(mark)[1:-1])}pos' .*differ only in .*invisible",
    )


def of_labels(*labels):
    return "".join(f'{{"text": "a", "label": {label}}}\n' for label in labels)


ROW = of_labels('"x"').strip()
# id: name of the file, content, what the one line says.
REFUSED = {
    **{case: ("t.csv", *rest) for case, rest in CSV.items()},
    "empty array": ("t.json", "[]", r"t\.json: no rows"),
    "commas in tsv": ("t.tsv", TWO, r":1: no column 'text'.*; \.csv has commas"),
    "unquoted tsv": ("t.tsv", 'text\tlabel\nx\ta\n"y\tb\nz"\tc\n', f":3: .*line 4 only.*{QUOTED}"),
    "an array of numbers": ("t.json", "[1, 2]", r":1: element 1 is no object"),
    "no ending": ("train", TWO, r"expected a name that ends in \.csv .*\.tsv, \.txt .*\.jsonl"),
    "jsonl cut off": ("t.jsonl", LINES[:-5], r":2: not JSON"),
    "an array cut off": ("t.json", json.dumps(OBJECTS, indent=1)[:-9], r":8: not JSON"),
    "text after an array": ("t.json", json.dumps(OBJECTS) + "\n[]", ":2: .*column 1: Extra data"),
    "an object of lists": ("t.json", '{"text": ["a"], "label": ["b"]}', r":1: 'text' is \[\"a\"\]"),
    "a field too few there": ("t.json", f'[{ROW},\n{{"text": "a"}}]', ":2: .*'label'; .*'text'"),
    "true and True": ("t.jsonl", of_labels("true", '"true"'), "labels 'True' and 'true' differ"),
    "true and 1": ("t.jsonl", of_labels("1", "true", "2"), ":1, .*:2: .*'1' and 'True' .*truth"),
    "deep nesting": ("t.jsonl", '{"text": ' + "[" * 99_999, r":1: not JSON"),
}
for label, shown in (("null", "null"), ('["x"]', r"\["), ("1.5", r"1\.5"), ("NaN", "NaN")):
    REFUSED[f"a label that is {label}"] = ("t.jsonl", of_labels(label), f":1: 'label' is {shown}")


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(tmp_path, case):
    name, content, problem = REFUSED[case]
    with raises_one_line(problem):
        task_of(tmp_path, name, content).read("train")


NUMBERS = {
    "two": "expected a number$",
    "": "expected a number$",
    "nan": "expected a number$",
    '"1,5"': "expected a number; use a decimal point",
    "1_000": "expected a number$",
}


@pytest.mark.parametrize("cell", NUMBERS)
def test_cells_that_are_no_numbers(tmp_path, cell):
    with raises_one_line(NUMBERS[cell]):
        task_of(tmp_path, "t.csv", f"{ONE}a,{cell}\n", is_regression=True).read("train")
