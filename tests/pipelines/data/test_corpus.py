import bz2
import gzip
import itertools
import json
import lzma
import tracemalloc
from collections import Counter

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.data import corpus, sentences, text_files
from pipelines.data.corpus import TextFormat, read_documents
from pipelines.data.sentences import split_sentences
from pipelines.data.text_files import read_lines
from tests.builders import raises_one_line
from tests.conftest import make_text

COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
COMPRESS[".zst"] = zstandard.ZstdCompressor().compress


def documents(path, begin=0, end=None, counts=None, **text_format):
    sentences = read_documents(str(path), TextFormat(**text_format), begin, end, counts)
    return [
        (offset, [sentence.text for sentence in group])
        for offset, group in itertools.groupby(sentences, key=lambda s: s.document_offset)
    ]


def in_ranges(path, size, range_bytes, **text_format):
    ranges = ((begin, begin + range_bytes) for begin in range(0, size, range_bytes))
    return sum((documents(path, *of_range, **text_format) for of_range in ranges), [])


def test_lines_are_whole_at_the_end_of_a_block(tmp_path, monkeypatch):
    """A line that is too long is broken between words or characters."""
    path = tmp_path / "text.txt"
    for text, longest, parts in (
        ("ab\r\ncd\r\r\nef\n\r\ngh\x0b\u2028i", 99, ["ab", "cd", "", "ef", "", "gh\x0b\u2028i"]),
        ("ab cd ef gh\nx", 7, ["ab cd ", "ef gh", "x"]),
        ("1234567\r\nx", 7, ["1234567", "x"]),
        ("ééééé\nx", 7, ["ééé", "éé", "x"]),
    ):
        path.write_bytes(text.encode())
        monkeypatch.setattr(text_files, "_MAX_LINE_BYTES", longest)
        for block_bytes in range(1, 16):
            monkeypatch.setattr(text_files, "_BLOCK_BYTES", block_bytes)
            lines = [line.decode().rstrip("\r\n") for _, line in read_lines(str(path))]
            assert lines == parts


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
def test_reads_all_members(tmp_path, suffix, monkeypatch):
    compress = COMPRESS.get(suffix, bytes)
    text = "\ufeffeins\n\nzwölf\ufeff\n"
    path = tmp_path / f"text{suffix}"
    path.write_bytes(compress(text.encode()))
    assert documents(path) == [(0, ["eins"]), (9, ["zwölf\ufeff"])]
    path.write_bytes(b"".join(compress(text[i : i + 3].encode()) for i in range(0, 14, 3)))
    for block_bytes in (1, 7, 5000):
        monkeypatch.setattr(text_files, "_ZSTANDARD_BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(text_files, "_BLOCK_BYTES", block_bytes)
        assert documents(path) == [(0, ["eins"]), (9, ["zwölf\ufeff"])]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_refuses_files_that_are_not_what_their_names_say(tmp_path, suffix):
    compress = COMPRESS[suffix]
    whole = compress(make_text(40, seed=5).encode())
    damaged = rf"not a whole \w+ file .*without {suffix}"
    cases = [(f"a{suffix}", cut, damaged) for cut in (whole[:-9], whole[:200], b"plain text\n")]
    if suffix != ".bz2":  # its library passes over what follows the last stream
        cases.append((f"a{suffix}", whole + b"more", damaged))
    cases.append(("text.txt", whole, rf"this is a \w+ file; .*ends in {suffix}"))
    cases.append((f"a{suffix}", compress("text\n".encode("utf-16")), "this is UTF-16 text"))
    for encoding in ("utf-16-be", "utf-16-le"):  # without a mark
        utf16 = "Ну вот и всё, друзья мои.\n".encode(encoding)
        cases.append(("text.txt", utf16, "UTF-16 text; convert the file to UTF-8"))
    for name, content, message in cases:
        (tmp_path / name).write_bytes(content)
        with raises_one_line(message):
            documents(tmp_path / name)


def test_bad_lines_are_named_or_skipped_and_counted_once_over_all_ranges(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"one\n\ntwo\n\nthree\nf\xffur\n")
    assert documents(path, 0, 9) == [(0, ["one"]), (5, ["two"])]
    for input_format in ("sentences", "prose"):
        with raises_one_line(r"text.txt:6: byte 0xFF is not UTF-8 .*on_bad_line=skip"):
            documents(path, 9, 12, input_format=input_format)
    path.write_bytes(b"\xff\none\n\xc3\ntwo\n\n\xe9\n\nthree\n")
    for step in range(1, 25):
        counts = Counter()
        found = in_ranges(path, 24, step, on_bad_line="skip", counts=counts)
        assert found == [(2, ["one", "two"]), (16, ["three"])]
        assert counts == {"skipped_lines": 3}


line = st.sampled_from(
    ["", " ", "\u3000", "a", "sentence", "two words.", "é", "a long line of words", "Mr. B. A"]
)


@settings(max_examples=40, deadline=None)
@given(
    content=st.lists(st.tuples(line, st.sampled_from(["\n", "\r\n", "\r"])), max_size=20),
    range_bytes=st.integers(1, 40),
    block_bytes=st.integers(1, 20),
    input_format=st.sampled_from(["sentences", "prose"]),
    blank_lines=st.integers(1, 3),
)
# Blank lines before the range, in it, over its end.
@example([("a", "\n"), *[("", "\r\n")] * 3, ("a", "\n")], 5, 20, "prose", 3)
@example([("a", "\n"), *[("\u3000", "\n")] * 3, ("a", "\n")], 4, 20, "prose", 3)
@example([("a", "\n"), *[("\u3000", "\n")] * 2, ("a", "\n")], 6, 20, "prose", 2)
@example([("a", "\n"), ("a long line of words", "\n"), ("", "\n"), ("a", "")], 9, 20, "prose", 2)
def test_ranges_share_out_the_documents(
    tmp_path_factory, content, range_bytes, block_bytes, input_format, blank_lines
):
    path = tmp_path_factory.mktemp("ranges") / "text.txt"
    content = "".join(itertools.chain(*content)).encode()
    path.write_bytes(content)
    text_format = {"input_format": input_format, "document_blank_lines": blank_lines}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_MAX_LINE_BYTES", 13)
        patch.setattr(corpus, "_LOOK_BACK_BYTES", 3)
        whole = documents(path, **text_format)
        patch.setattr(text_files, "_BLOCK_BYTES", block_bytes)
        assert in_ranges(path, len(content), range_bytes, **text_format) == whole
    words = [word for _, sentences in whole for text in sentences for word in text.split()]
    assert words == content.decode().split()


def test_some_blank_lines_divide_paragraphs_only(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("One two\nthree. Four\n\nfive.\n\n\n\nSix.\n\n\nSeven.\n\n")
    first = ["One two three.", "Four"]
    for blank_lines, expected in (
        (1, [(0, first), (21, ["five."]), (30, ["Six."]), (37, ["Seven."])]),
        (2, [(0, [*first, "five."]), (30, ["Six."]), (37, ["Seven."])]),
        (3, [(0, [*first, "five."]), (30, ["Six.", "Seven."])]),
    ):
        options = {"input_format": "prose", "document_blank_lines": blank_lines}
        assert documents(path, **options) == expected
    assert documents(path, document_blank_lines=2)[0][1] == ["One two", "three. Four", "five."]


class TestJsonl:
    def test_an_object_is_a_document(self, tmp_path):
        path = tmp_path / "text.jsonl"
        objects = [{"id": 7, "text": "One. Two\nis \ud800 he\x0b\x0bre.\r\n\r\nThree"}]
        objects += [{"text": " \n"}, {"text": "Vier.", "x": [{}]}]
        path.write_text("\ufeff" + "\n\n".join(map(json.dumps, objects)), encoding="utf-8")
        size = path.stat().st_size
        first, last = documents(path, input_format="jsonl")
        assert first == (0, ["One.", "Two is \ufffd he re.", "Three"])
        assert last == (size - len(json.dumps(objects[2])), ["Vier."])
        for step in (1, 5, 17, 1000):
            assert in_ranges(path, size, step, input_format="jsonl") == [first, last]

    def test_bad_lines(self, tmp_path, monkeypatch):
        for line, message in (
            (b'{"text": "a', r"not JSON \(Unterminated string .*char 9\)"),
            (b"plain text", "not JSON"),
            (b"[" * 100_000, "not JSON"),
            (b"1" * 5000, "not (JSON|a JSON object)"),
            (b'["text"]', "not a JSON object"),
            (b'{"content": "a", "b": 1}', r"no field 'text' \(it has 'content', 'b'\)"),
            (b'{"text": null}', "something else than text as field 'text'"),
            (b'{"text": "\xff"}', "byte 0xFF is not UTF-8"),
            (b'{"text": "' + b"a b " * 60 + b'"}', "a line of more than 0.0002 MB"),
        ):
            monkeypatch.setattr(text_files, "_MAX_LINE_BYTES", 50)
            if message.startswith("a line of"):
                monkeypatch.setattr(corpus, "_MAX_JSON_BYTES", 200)
            path = tmp_path / "x.jsonl"
            path.write_bytes(b'{"text": "One."}\n' + line + b'\n{"text": "Two."}\n')
            with raises_one_line(rf"x.jsonl:2: {message}.*--on_bad_line=skip"):
                documents(path, input_format="jsonl")
            counts = Counter()
            skipping = {"input_format": "jsonl", "on_bad_line": "skip", "counts": counts}
            assert [d[1] for d in documents(path, **skipping)] == [["One."], ["Two."]]
            assert counts == {"skipped_lines": 1}
            if b"content" in line:
                with pytest.raises(ValueError, match=r"x.jsonl:1: no field 'content'"):
                    documents(path, input_format="jsonl", text_field="content")


@pytest.mark.parametrize("input_format", corpus.INPUT_FORMATS)
def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch, input_format):
    for name in ("_BLOCK_BYTES", "_MAX_LINE_BYTES"):
        monkeypatch.setattr(text_files, name, 1 << 14)
    path = tmp_path / "text.txt"
    text = "one sentence of a document without an end\n" * 200
    if input_format == "jsonl":
        path.write_text((json.dumps({"text": text}) + "\n") * 60)
    else:
        path.write_text(text * 60 + "x" * 500_000)  # and a long line
    tracemalloc.start()
    for _ in read_documents(str(path), TextFormat(input_format)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000


def split(text: str, language: str = "en") -> list[str]:
    return list(split_sentences(text.splitlines(keepends=True), language))


def test_sentences():
    for text, language, expected in (
        ("  Mr. Smith\n  went home.\nHe\r\nslept. ", "en", ["Mr. Smith went home.", "He slept."]),
        ("A heading\n\nA sentence\n \t\nAnd one.", "en", ["A heading", "A sentence", "And one."]),
        ('He said "Stop. Now." and left. Yes.', "en", ['He said "Stop. Now." and left.', "Yes."]),
        ("Das ist z.B. gut. Ja.", "de", ["Das ist z.B. gut.", "Ja."]),
        ("今天天气很\n好！你呢？\n是的，\n好。", "zh", ["今天天气很好！", "你呢？", "是的，好。"]),
        ("日本の\nTokyo\nです。", "ja", ["日本の Tokyo です。"]),
        ("ภาษา\nไทย", "th", ["ภาษาไทย"]),
        ("안녕하세요 여러\n분. 반갑습니다.", "ko", ["안녕하세요 여러 분.", "반갑습니다."]),
        ("كيف حالك؟ أنا\nبخير.", "ar", ["كيف حالك؟", "أنا بخير."]),
        ("One. Two.", "no such language", ["One.", "Two."]),
        ("\n \n", "en", []),
    ):
        assert split(text, language) == expected


def test_another_spelling_of_a_language():
    for language in ("de-DE", "DE", "german", "deu", "No Such"):
        with raises_one_line(f"--language={language}: expected a code of ISO 639-1, .* as de$"):
            TextFormat("prose", language=language)


def test_long_text_is_split_as_short_text_and_comes_in_parts_at_most():
    lines = ["A lo", "ng line. ", "It\n", "ends."]
    assert list(split_sentences(lines, "en")) == ["A long line.", "It ends."]
    long = ["x" * 4000 + "\n", "abc\n"]  # as long as the window
    assert "".join(split_sentences(long, "en")) == "x" * 4000 + "abc"
    # White space of several bytes does not stop sentencex.
    for space in "\u0085\u00a0\u2028\u3000":
        assert "".join(split(f"A.{space}.", "kk")).replace(" ", "") == "A.."
    expected = [f"Sentence number {i} says {'word ' * (i % 13)}again." for i in range(400)]
    assert split(" ".join(expected)) == expected
    assert split("\n".join(" ".join(expected).split(" "))) == expected
    # An open quotation mark takes no more than a window.
    found = split("He said “Yes. " + "Then he went home. " * 900 + "The end”. She stayed.")
    assert max(map(len, found)) <= 2000
    assert found[-1] == "She stayed."
    assert found.count("Then he went home.") > 700
    for text in ("x" * 6007, "word " * 3001, "字" * 4801, "“ " * 3001, "?" * 5003):
        assert len(split(text)) <= len(text) // 1990 + 1


PARTS = ["Mr.", "a.", "“B", "c”", "(", "x!", "字。", "\n", "\n\n", "З."]


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS)), window=st.integers(3, 30))
def test_loses_nothing_at_any_window(parts, window):
    text = " ".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "_WINDOW", window)
        found = split(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(part and part == part.strip() and len(part) <= window for part in found)
