"""Tables: rows come out as they stand, and every fault names file and line."""

import json

import pytest

from albert_tf.jobs import program
from albert_tf.storage.errors import UserError
from pipelines.tasks.reading.rows import as_object, read_json_lines
from pipelines.tasks.reading.tables import as_label, as_number, as_text, read_table, write_table


def write(directory, name, content):
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def rows(path, columns, **arguments):
    return [(number, tuple(row.values())) for number, row in read_table(path, columns, **arguments)]


def test_tsv_is_read_by_name_without_quoting(tmp_path):
    content = (
        "\ufefflabel\tb\textra\ta\r\n"
        'x\t"one\t\t two "" \u2028 more\r\n'
        "\r\n"
        "y\t\tz\tback\\slash\r\n"
        'x\t"\t"\tlast'
    )
    path = write(tmp_path, "t.tsv", content)
    assert rows(path, ["a", "label", "b"], quoting="none") == [
        (2, (' two "" \u2028 more', "x", '"one')),
        (4, ("back\\slash", "y", "")),
        (5, ("last", "x", '"')),
    ]


LONG = "word " * 300_001  # 1.5 MB: the reader of lines hands it out in parts


@pytest.mark.parametrize(
    ("content", "columns", "options", "expected"),
    [
        ("a\tb\nc\td\n", ["y"], {"header": ("x", "y")}, [(1, ("b",)), (2, ("d",))]),
        # A blank line is an empty text where there is one column.
        ("text\none\n\ntwo\n", ["text"], {}, [(2, ("one",)), (3, ("",)), (4, ("two",))]),
        (f"a\tb\n{LONG}\tx\nc\ty\n", ["a", "b"], {}, [(2, (LONG, "x")), (3, ("c", "y"))]),
    ],
    ids=["a header that is given", "one column", "a long line"],
)
def test_tsv(tmp_path, content, columns, options, expected):
    assert rows(write(tmp_path, "t.tsv", content), columns, **options) == expected


def test_json_lines(tmp_path):
    records = [{"b": [1, "two"], "a": "x\ty\u2028"}, {"a": "\ud800z", "b": None}]
    path = write(tmp_path, "t.jsonl", "\n".join(map(json.dumps, records)) + "\n \n")
    found = rows(path, ["a", "b"])
    assert found == [(1, ("x\ty\u2028", [1, "two"])), (2, ("\ud800z", None))]
    assert as_text(found[1][1][0], "a", "here") == "\ufffdz"  # half a character is no text


@pytest.mark.parametrize(
    ("convert", "value", "result"),
    [(as_text, "", ""), (as_text, 5, None), (as_text, None, None),
     (as_label, " yes ", "yes"), (as_label, 3, "3"), (as_label, True, "True"),
     (as_label, " ", None), (as_label, None, None), (as_label, 2.5, None), (as_label, ["a"], None),
     (as_number, " 2.5", 2.5), (as_number, -3, -3.0), (as_number, "two", None),
     (as_number, "", None), (as_number, "nan", None), (as_number, "inf", None),
     (as_number, True, None), (as_number, None, None), (as_number, 10**400, None)],
)  # fmt: skip
def test_values(convert, value, result):
    if result is not None:
        assert convert(value, "c", "f:7") == result
        return
    with pytest.raises(UserError, match=r"^f:7: 'c' is .*, expected (text|a label|a number)$"):
        convert(value, "c", "f:7")


def test_what_is_written_is_read_again(tmp_path):
    path = str(tmp_path / "new" / "t.tsv")
    ids = ["x\ty", " z", 'said "so"', '"', "a\u3000 b", "one\ntwo", "a\0b"]
    write_table(path, {"id": ids, "number": [1.5, 2, 3, 4, 5, 6, ["é", "b"]]})
    assert '[""é"", ""b""]' in (tmp_path / "new/t.tsv").read_text(encoding="utf-8")
    assert [row["id"] for _, row in read_table(path, ["number", "id"])] == [*ids[:-1], "a\ufffdb"]


# What is wrong with each as a table without quoting; a number: its rows.
NASTY = {
    "csv_quotes.tsv": r":5: 2 columns, expected 4: 'index', 'sentence1', 'sentence2', 'label'",
    "crlf_bom.tsv": 2,
    "squad_nasty.json": r":1: no field 'sentence1'; the object has 'version', 'data'",
    "squad_truncated.json": r":1: not JSON",
}


@pytest.mark.parametrize("name", NASTY)
def test_nasty_files(nasty, name):
    path, columns = str(nasty / name), ["sentence1", "sentence2", "label"]
    if isinstance(NASTY[name], int):
        assert rows(path, columns, quoting="none") == [
            (2, ("a b", "c d", "entailment")),
            (3, ("e", "f", "not_entailment")),
        ]
        return
    with pytest.raises(ValueError, match=NASTY[name]):
        rows(path, columns, quoting="none")


def test_nasty_text_is_no_table(nasty):
    """Each .txt file says in one short line that it is none."""
    problems = []
    for path in (str(path) for path in nasty.glob("*.txt") if path.is_file()):
        for read in (lambda p: rows(p, ["sentence1"]), lambda p: list(read_json_lines(p))):
            try:
                read(path)
            except ValueError as error:
                problems.append(error)
    assert all(program.is_user_error(error) for error in problems)
    assert not [text for text in map(str, problems) if "\n" in text or len(text) >= 700]
    assert len(problems) == 2 * 34 - 2  # as JSON an empty file has no rows, and so have blank lines


def test_the_field_given_twice_is_named():
    with pytest.raises(ValueError, match="the field 'label' twice"):
        as_object([("text", "a"), ("label", 1), ("label", 2)])
