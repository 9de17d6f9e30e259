from albert_tf.jobs import program
from pipelines.tasks.reading.rows import read_json_objects
from pipelines.tasks.reading.tables import read_table, write_table


def test_what_is_written_is_read_again(tmp_path):
    path = str(tmp_path / "new" / "t.tsv")
    ids = ["x\ty", " z", 'said "so"', '"', "a\u3000 b", "one\ntwo", "a\0b"]
    write_table(path, {"id": ids, "number": [1.5, 2, 3, 4, 5, 6, ["é", "b"]]})
    assert '[""é"", ""b""]' in (tmp_path / "new/t.tsv").read_text(encoding="utf-8")
    assert [row["id"] for _, row in read_table(path, ["number", "id"])] == [*ids[:-1], "a\ufffdb"]
    # A blank line is an empty text where there is one column.
    (tmp_path / "t.tsv").write_text("text\none\n\ntwo\n")
    found = read_table(str(tmp_path / "t.tsv"), ["text"])
    assert [(number, row["text"]) for number, row in found] == [(2, "one"), (3, ""), (4, "two")]


def test_nasty_text_is_no_table(nasty):
    """Each .txt file says in one short line that it is none."""
    problems = []
    for path in (str(path) for path in nasty.glob("*.txt") if path.is_file()):
        for read in (lambda p: read_table(p, ["sentence1"]), read_json_objects):
            try:
                list(read(path))
            except ValueError as error:
                problems.append(error)
    assert all(program.is_user_error(error) for error in problems)
    assert not [text for text in map(str, problems) if "\n" in text or len(text) >= 700]
    assert len(problems) == 2 * 34 - 2  # as JSON an empty file has no rows, and so have blank lines
