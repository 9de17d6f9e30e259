import gzip
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data import corpus
from pipelines.data.corpus import read_documents, read_lines


def documents(path, begin=0, end=None, on_decode_error="error", counts=None):
    """Returns (offset, sentences) of each document."""
    sentences = read_documents(str(path), begin, end, on_decode_error, counts)
    return [
        (offset, [sentence.text for sentence in group])
        for offset, group in itertools.groupby(sentences, key=lambda s: s.document_offset)
    ]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_reads_lines_whatever_their_ends(tmp_path, line_end):
    path = tmp_path / "text.txt"
    path.write_bytes(line_end.join([b"one", b"", b" two\x0b\xe2\x80\xa8still two ", b"three"]))
    assert list(read_lines(str(path))) == ["one", "", " two\x0b\u2028still two ", "three"]


def test_line_ends_are_whole_at_the_end_of_a_block(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_bytes(b"ab\r\ncd\r\r\nef\n\r\ngh")
    for block_bytes in range(1, 7):
        monkeypatch.setattr(corpus, "_BLOCK_BYTES", block_bytes)
        assert list(read_lines(str(path))) == ["ab", "cd", "", "ef", "", "gh"]
        assert [corpus._line_number(str(path), at) for at in (0, 4, 7, 9, 12, 14)] == [*range(1, 7)]


def test_reads_gzip_and_drops_the_byte_order_mark(tmp_path):
    text = "\ufeffeins\n\nzwölf\ufeff\n"
    plain, packed = tmp_path / "text.txt", tmp_path / "text.gz"
    plain.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        assert list(read_lines(str(path))) == ["eins", "", "zwölf\ufeff"]
        assert documents(path) == [(0, ["eins"]), (9, ["zwölf\ufeff"])]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "text\n".encode("utf-16"), "UTF-16 text; convert the file to UTF-8"),
        ("b.gz", b"plain text", "not a whole gzip file"),
        ("c.gz", gzip.compress(b"text " * 999)[:-9], "not a whole gzip file"),
        ("d.txt", b"good\r\n\r\nbad \xe9\n", r"d.txt:3: byte 0xE9 is not UTF-8 .*on_decode_error"),
    ],
)
def test_names_what_it_cannot_read(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    for read in (read_lines, read_documents):
        with pytest.raises(ValueError, match=message) as error:
            list(read(str(path)))
        assert "\n" not in str(error.value)


def test_line_numbers_are_of_the_file_in_a_range_too(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"one\n\ntwo\n\nthree\nf\xffur\n")
    assert documents(path, 0, 9) == [(0, ["one"]), (5, ["two"])]
    with pytest.raises(ValueError, match=r"text.txt:6: byte 0xFF"):
        documents(path, 9, 12)


def test_skips_and_counts_lines_once_over_all_ranges(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xff\none\n\xc3\ntwo\n\n\xe9\n\nthree\n")
    for step in range(1, 25):
        counts = Counter()
        found = [
            document
            for begin in range(0, 24, step)
            for document in documents(path, begin, begin + step, "skip", counts)
        ]
        assert found == [(2, ["one", "two"]), (16, ["three"])]
        assert counts == {"skipped_lines": 3}
    assert list(read_lines(str(path), "skip")) == ["one", "two", "", "", "three"]


def test_blank_is_what_python_strips(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("one\n \t\ntwo\n\u00a0\u3000\nthree", encoding="utf-8")
    assert [sentences for _, sentences in documents(path)] == [["one"], ["two"], ["three"]]


def test_breaks_long_lines_between_words_and_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", 7)
    path = tmp_path / "text.txt"
    for text, parts in (
        ("ab cd ef gh\nx", ["ab cd ", "ef gh", "x"]),
        ("1234567\r\nx", ["1234567", "x"]),
        ("ééééé\nx", ["ééé", "éé", "x"]),
    ):
        path.write_bytes(text.encode())
        for block_bytes in range(1, 16):
            monkeypatch.setattr(corpus, "_BLOCK_BYTES", block_bytes)
            assert list(read_lines(str(path))) == parts


line = st.sampled_from(
    ["", " ", "\u3000", "a", "sentence", "two words", "é", "a long line of words"]
)


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.tuples(line, st.sampled_from(["\n", "\r\n", "\r"])), max_size=20),
    range_bytes=st.integers(1, 40),
    block_bytes=st.integers(1, 20),
)
def test_ranges_share_out_the_documents(tmp_path_factory, lines, range_bytes, block_bytes):
    path = tmp_path_factory.mktemp("ranges") / "text.txt"
    content = "".join(itertools.chain(*lines)).encode()
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_MAX_LINE_BYTES", 13)
        whole = documents(path)
        patch.setattr(corpus, "_BLOCK_BYTES", block_bytes)
        in_ranges = [
            document
            for begin in range(0, len(content), range_bytes)
            for document in documents(path, begin, begin + range_bytes)
        ]
    assert in_ranges == whole
    words = [word for _, sentences in whole for text in sentences for word in text.split()]
    assert words == content.decode().split()


def test_memory_does_not_grow_with_the_file(tmp_path):
    import tracemalloc

    path = tmp_path / "text.txt"
    with open(path, "wb") as file:
        for _ in range(30):
            file.write(b"one sentence of a document without an end\n" * 20_000)
        file.write(b"x" * 9_000_000)  # and a line of 9 MB
    tracemalloc.start()
    for _ in read_documents(str(path)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000
