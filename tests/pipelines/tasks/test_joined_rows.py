"""Rows that a stray quotation mark joins into one are refused; cells of several lines are read."""

import pytest

from albert_tf.storage.errors import UserError
from pipelines.tasks.reading.tables import read_table

ROWS = {
    "numbers as labels": '"size 9,1\nb,0\nc 9",1\nd,0\n',
    "a comma in prose": '"12 inch bolt, long one,pos\nb,neg\nc 9",pos\nd,neg\n',
    "blanks after commas": '"12 inch bolt, pos\nb, neg\nc 9", pos\nd, neg\n',
    "a neighbour with a comma": '"12 inch bolt,pos\nI said, no,neg\nc 9",pos\nd,neg\n',
    "a blank line between": '"12 inch bolt, long,pos\n\nb,neg\nc 9",pos\nd,neg\n',
}
JOINED = {name: f"text,label\n{rows}" for name, rows in ROWS.items()}
JOINED["a comma between semicolons"] = (
    'id;text;label\n1;"a bolt, long;5\n2;b, c;6\n3;c 9";7\n4;d;8\n'
)
JOINED["labels in the first column"] = (
    'label,text\npos,"12 inch, a\nneg,b, c\npos,c 9"\n' + "neg,d\npos,e\n" * 3
)


def read(directory, content):
    (directory / "t.csv").write_text(content)
    return [row for _, row in read_table(str(directory / "t.csv"), ["text", "label"])]


@pytest.mark.parametrize("content", JOINED.values(), ids=JOINED)
def test_refused(tmp_path, content):
    last = content[: content.rindex('"')].count("\n") + 1
    problem = rf"t\.csv:2: a quotation mark here is closed in line {last} only"
    with pytest.raises(ValueError, match=problem):
        read(tmp_path, content)


def test_twenty_rows_with_numbers_in_prose(tmp_path):
    rows = [f"size 4.{i},{i % 2}\n" for i in range(20)]
    rows[3], rows[8] = '"12 inch, 4,0 long,1\n', 'c 9",0\n'
    with pytest.raises(ValueError, match=r":5: .* closed in line 10 only"):
        read(tmp_path, "text,label\n" + "".join(rows))


CELLS = {
    "a letter with a comma a line": '"Dear Sir, thank you\nfor that",pos\n',
    "a line that ends with a comma": '"Dear Sir,\nthank you,\nand bye",\nfine,\n',
    "a line that begins with a short text": '"Hello\nThanks, Bob",pos\nThanks,neg\nThanks,pos\n',
    "decimal commas": '"Note 2,5\nwarum 2,3?\noder, 4",2\n' + "a,2\nb,5\nc,3\n" * 4,
    "thousands": '"It has 3,500\nor, 1,500\ninhabitants",500\n' + "a,500\nb,1500\n" * 4,
    "yes and no": '"Are you coming\nwell, yes\nfine, no\nbye",no\n' + "a,yes\nb,no\n" * 4,
}


@pytest.mark.parametrize("rows", CELLS.values(), ids=CELLS)
def test_cells_of_several_lines_are_read(tmp_path, rows):
    texts = [row["text"] for row in read(tmp_path, f"text,label\n{rows}")]
    assert texts[0].count("\n") == rows[: rows.index('",')].count("\n")


@pytest.mark.parametrize(("name", "mark"), [("t.csv", ","), ("t.tsv", "\t")])
def test_rows_of_white_space_are_one_line_as_before(tmp_path, name, mark):
    rows = [f"text{mark}label", f"a{mark}b", mark]
    (tmp_path / name).write_text("\n".join([*rows, " "]))
    with pytest.raises(UserError, match=rf"{name}:4: 1 columns, expected 2"):
        list(read_table(str(tmp_path / name), ["text", "label"]))
    (tmp_path / name).write_text("\n".join(rows))
    assert len(list(read_table(str(tmp_path / name), ["text", "label"]))) == 2


def test_many_different_cells_are_no_labels(tmp_path):
    rows = "".join(f"text {i},{i % 2}\n" for i in range(12_000))
    letter = '"Hello\ntext 7, yes\ntext 8, no",1\n'
    assert len(read(tmp_path, "text,label\n" + rows * 2 + letter)) == 24_001


def test_lines_that_begin_with_labels_are_read_in_a_column_of_texts(tmp_path):
    rows = '1,"They paid\n1,000 or\n0,5 dollars"\n' + "0,a\n1,b\n" * 4
    assert len(read(tmp_path, f"label,text\n{rows}")) == 9
