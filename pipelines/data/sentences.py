"""Splits prose, with or without hard-wrapped lines, into sentences with sentencex."""

import re
import unicodedata
from collections.abc import Iterable, Iterator

import sentencex

from albert_tf.text.words import SCRIPTS_WITHOUT_SPACES

# Number of characters of a paragraph to split at once. After an unclosed quotation mark or bracket,
# all text up to the next one becomes a single sentence, so larger windows find fewer sentences. In
# whole books, with windows of 65,536 characters, up to 12 % of the text (Arabic: 85 %) is in
# sentences of more than 1,000 characters. With windows of 2,000 characters it is 1 to 2 %.
_WINDOW = 2000

_WHITE_SPACE = re.compile(r"\s+")


def split_sentences(lines: Iterable[str], language: str) -> Iterator[str]:
    """Yields the sentences of a document without leading and trailing white space.

    A blank line ends a paragraph. A sentence can span several lines, but not several paragraphs.
    Sentences longer than 2,000 characters are split, at a space if possible.

    A line without a line end continues in the next line. Lines are read lazily. `language` is an
    ISO 639-1 code that selects rules such as abbreviations. English is used for unknown codes.
    """
    text, is_line_ended = "", False
    for line in lines:
        if line.isspace():
            yield from _sentences(text, language)
            text = ""
            continue
        # sentencex aborts on some white space other than " ", such as U+2028 after an initial.
        words = _WHITE_SPACE.sub(" ", line)
        text = _join(text, words) if text.strip() and is_line_ended else text + words
        is_line_ended = line.endswith(("\n", "\r"))
        begin = 0
        while len(text) - begin > _WINDOW:
            finished, begin = _first_sentences(text, begin, language)
            yield from finished
        text = text[begin:]
    yield from _sentences(text, language)


def _join(text: str, line: str) -> str:
    text, line = text.rstrip(), line.lstrip()
    has_space = not all(map(_is_written_without_spaces, (text[-1], line[0])))
    return f"{text} {line}" if has_space else f"{text}{line}"


def _is_written_without_spaces(character: str) -> bool:
    name = unicodedata.name(character, "")
    # Chinese characters, kana and their punctuation are wide. Hangul is also wide, but has spaces.
    is_wide = unicodedata.east_asian_width(character) in "WF" and not name.startswith("HANGUL")
    return is_wide or name.startswith(SCRIPTS_WITHOUT_SPACES)


def _first_sentences(text: str, begin: int, language: str) -> tuple[list[str], int]:
    """Returns the sentences that end within the window, and the offset of the remaining text."""
    window = text[begin : begin + _WINDOW].rstrip()
    sentences = _sentences(window, language)
    if len(sentences) > 1:
        return sentences[:-1], begin + len(window) - len(sentences[-1])
    end = window.rfind(" ") + 1 or _WINDOW
    return [part] if (part := window[:end].strip()) else [], begin + end


def _sentences(text: str, language: str) -> list[str]:
    parts = (part.strip() for part in sentencex.segment(language, text))
    return [part for part in parts if part]
