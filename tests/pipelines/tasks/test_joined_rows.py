"""Rows that a stray quotation mark joins into one are refused; cells of several lines are read."""

from __future__ import annotations

import pytest

from pipelines.tasks.reading.tables import read_table

JOINED = {
    "numbers as labels": '"size 9,1\nb,0\nc 9",1\nd,0\n',
    "a comma in prose": '"12 inch bolt, long one,pos\nb,neg\nc 9",pos\nd,neg\n',
    "blanks after commas": '"12 inch bolt, pos\nb, neg\nc 9", pos\nd, neg\n',
    "a neighbour with a comma": '"12 inch bolt,pos\nI said, no,neg\nc 9",pos\nd,neg\n',
    "a blank line between": '"12 inch bolt, long,pos\n\nb,neg\nc 9",pos\nd,neg\n',
}


def read(directory, content):
    (directory / "t.csv").write_text(content)
    return [row for _, row in read_table(str(directory / "t.csv"), ["text", "label"])]


@pytest.mark.parametrize("rows", JOINED.values(), ids=JOINED)
def test_refused(tmp_path, rows):
    with pytest.raises(ValueError, match=r"t\.csv:2: a quotation mark here is closed in line [45]"):
        read(tmp_path, f"text,label\n{rows}")


def test_twenty_rows_with_numbers_in_prose(tmp_path):
    rows = [f"size 4.{i},{i % 2}\n" for i in range(20)]
    rows[3], rows[8] = '"12 inch, 4,0 long,1\n', 'c 9",0\n'
    with pytest.raises(ValueError, match=r":5: .* closed in line 10 only"):
        read(tmp_path, "text,label\n" + "".join(rows))


def test_labels_in_the_first_column(tmp_path):
    joined = 'pos,"12 inch, a\nneg,b, c\npos,c 9"\n' + "neg,d\npos,e\n" * 3
    with pytest.raises(ValueError, match=r":2: .* closed in line 4 only"):
        read(tmp_path, f"label,text\n{joined}")


def test_cells_of_several_lines_are_read(tmp_path):
    """Also where each line has one comma, ends with one, or begins with a short text of others."""
    letters = ['"Dear Sir, thank you\nfor that",pos', '"Dear Sir,\nthank you",', "Thanks,neg"]
    letters += ['"Hello\nThanks, Bob",pos', "Thanks,pos", "fine,"]
    texts = [row["text"] for row in read(tmp_path, "text,label\n" + "\n".join(letters) + "\n")]
    assert len(texts) == 6
    assert texts[0] == "Dear Sir, thank you\nfor that" and texts[3] == "Hello\nThanks, Bob"
