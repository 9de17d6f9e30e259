"""Prose to sentences: nothing is lost, lines are joined, long paragraphs are bounded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_tf.text import words
from pipelines.data import sentences
from pipelines.data.sentences import split_sentences


def split(text: str, language: str = "en") -> list[str]:
    return list(split_sentences(text.splitlines(keepends=True), language))


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
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
        ("", "en", []),
        ("\n \n", "en", []),
    ],
)
def test_sentences(text, language, expected):
    assert split(text, language) == expected


def test_a_line_without_its_end_goes_on():
    lines = ["A lo", "ng line. ", "It\n", "ends."]
    assert list(split_sentences(lines, "en")) == ["A long line.", "It ends."]
    long = ["x" * 4000 + "\n", "abc\n"]  # as long as the window
    assert "".join(split_sentences(long, "en")) == "x" * 4000 + "abc"
    # White space of several bytes does not stop sentencex.
    for space in "\u0085\u00a0\u2028\u3000":
        assert "".join(split(f"A.{space}.", "kk")).replace(" ", "") == "A.."
    assert sentences.SCRIPTS_WITHOUT_SPACES == words.SCRIPTS_WITHOUT_SPACES


def test_long_paragraphs_are_split_as_short_ones():
    expected = [f"Sentence number {i} says {'word ' * (i % 13)}again." for i in range(400)]
    assert split(" ".join(expected)) == expected
    assert split("\n".join(" ".join(expected).split(" "))) == expected


def test_an_open_quotation_mark_takes_no_more_than_a_window():
    text = "He said “Yes. " + "Then he went home. " * 900 + "The end”. She stayed."
    found = split(text)
    assert max(map(len, found)) <= 2000
    assert found[-1] == "She stayed."
    assert found.count("Then he went home.") > 700


@pytest.mark.parametrize("text", ["x" * 6007, "word " * 3001, "字" * 4801, "“ " * 3001, "?" * 5003])
def test_text_without_an_end_comes_in_parts(text):
    found = split(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert max(map(len, found)) <= 2000
    assert len(found) <= len(text) // 1990 + 1


PARTS = ["Mr.", "a.", "“B", "c”", "(", "x!", "字。", "\n", "\n\n", "З."]


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS)), window=st.integers(3, 30))
def test_loses_nothing_at_any_window(parts, window):
    text = " ".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "_WINDOW", window)
        found = split(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(part and part == part.strip() for part in found)
