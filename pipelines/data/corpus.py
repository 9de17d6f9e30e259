"""Documents of text files, in the forms that corpora come in, by byte ranges; all streaming."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from absl import flags

from albert_tf.storage.errors import UserError
from .sentences import split_sentences
from .text_files import decode_line, read_lines, refuse_line

INPUT_FORMATS = ("sentences", "prose", "jsonl")

# A JSON object has to be in memory as a whole.
_MAX_JSON_BYTES = 64_000_000
# How far to look back first for the blank lines before a range.
_LOOK_BACK_BYTES = 1 << 12

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Sentence(NamedTuple):
    """One sentence, without the white space around it."""

    document_offset: int  # byte of the file at which the first line of its document begins
    text: str


@dataclass(frozen=True)
class TextFormat:
    """How documents lie in files; each is the flag of that name."""

    input_format: str = "sentences"
    document_blank_lines: int = 1
    text_field: str = "text"
    language: str = "en"
    on_bad_line: str = "error"

    def identity(self) -> dict:
        """Returns what the documents depend on, beside the files."""
        identity = dataclasses.asdict(self)
        # What it changes comes to light at the first bad line: until then you may change your mind.
        del identity["on_bad_line"]
        if self.input_format != "sentences":
            identity["sentencex"] = importlib.metadata.version("sentencex")
        return identity


def define_flags() -> None:
    """Defines the flags of every program that reads text."""
    default = TextFormat()
    flags.DEFINE_string(
        "input_file", None, "Text files: globs or paths, comma between.", required=True
    )
    flags.DEFINE_enum(
        "input_format",
        default.input_format,
        INPUT_FORMATS,
        "sentences: one per line, a blank line between documents. prose: lines up to a blank one "
        "are a paragraph, which is split into sentences. jsonl: a line is a JSON object, whose "
        "--text_field is a document of prose.",
    )
    flags.DEFINE_integer(
        "document_blank_lines",
        default.document_blank_lines,
        "Least number of successive blank lines that end a document (not for jsonl). Pass 2 or "
        "more if one blank line separates paragraphs.",
        lower_bound=1,
    )
    flags.DEFINE_string("text_field", default.text_field, "Field of the JSON objects.")
    flags.DEFINE_string(
        "language", default.language, "ISO code of the language, to split prose into sentences."
    )
    flags.DEFINE_enum(
        "on_bad_line",
        default.on_bad_line,
        ["error", "skip"],
        "What to do with a line that is not UTF-8 or not a JSON object with text.",
    )


def text_format_of(values: flags.FlagValues) -> TextFormat:
    """Returns what the flags of `define_flags` say."""
    return TextFormat(**{f.name: values[f.name].value for f in dataclasses.fields(TextFormat)})


def read_documents(
    path: str,
    text_format: TextFormat = TextFormat(),
    begin: int = 0,
    end: int | None = None,
    counts: Counter | None = None,
    on_read: Callable[[int], None] | None = None,
) -> Iterator[Sentence]:
    """Yields the sentences of the documents that belong to a byte range of a file, in order.

    A document belongs to the range in which the last of the blank lines before it begins, the first
    of a file to the range that begins at 0; one of jsonl to the range in which its line begins. So
    ranges that share out the bytes of a file share out its documents. Every document is read to
    its end, even past `end`. Lines are blank after str.strip().

    Args:
      path: any file tf.io.gfile reads; see text_files.read_lines. In a compressed one bytes are
        counted after decompression.
      text_format: how documents lie in it.
      begin: first byte of the range.
      end: the byte after the last one; None for the end of the file.
      counts: where given, its "skipped_lines" counts what was left out. A line left out does not
        end its document.
      on_read: see text_files.read_lines.

    Raises:
      UserError: for a line that cannot be read, and as text_files.read_lines.
    """
    assert begin >= 0 and (end is None or begin < end), (begin, end)
    if text_format.input_format == "jsonl":
        yield from _read_json(path, text_format, begin, end, counts, on_read)
        return
    lines = _read_text(path, text_format, begin, end, counts, on_read)
    if text_format.input_format == "sentences":
        for offset, line in lines:
            if text := line.strip():
                yield Sentence(offset, text)
        return
    for offset, document in itertools.groupby(lines, key=operator.itemgetter(0)):
        for text in split_sentences((line for _, line in document), text_format.language):
            yield Sentence(offset, text)


def _read_text(
    path: str,
    text_format: TextFormat,
    begin: int,
    end: int | None,
    counts: Counter | None,
    on_read: Callable[[int], None] | None,
) -> Iterator[tuple[int, str]]:
    """Yields (document offset, line with its end), blank lines inside of documents too."""
    document = None  # the offset of the document we are in
    is_ours = begin == 0
    enough = text_format.document_blank_lines
    blank_lines = _blank_lines_before(path, begin) if begin and enough > 1 else 0
    # Reading starts one byte before the range, to find whether a line begins with the range: what
    # is read up to the first line end is no line of ours.
    for offset, line in read_lines(path, max(begin - 1, 0), on_read):
        if offset < begin:
            continue
        if not is_ours and end is not None and offset >= end:
            return
        if is_ours:
            text = decode_line(path, offset, line, text_format.on_bad_line, counts)
            if text is None:
                blank_lines = 0
                continue
        else:
            text = line.decode("utf-8", errors="replace")
        if text.strip():
            blank_lines = 0
            if is_ours:
                if document is None:
                    document = offset
                yield document, text
            continue
        blank_lines += 1
        if blank_lines >= enough:
            if end is not None and offset >= end:
                return
            document, is_ours = None, True
        elif document is not None:
            yield document, text


def _blank_lines_before(path: str, begin: int) -> int:
    """Returns how many blank lines end right at, or reach over, byte `begin` of a file."""
    look_back = _LOOK_BACK_BYTES
    while True:
        start = max(begin - look_back, 0)
        blank_lines, is_cut = 0, start > 0
        for offset, line in read_lines(path, start):
            if offset >= begin:
                break
            # The first bytes may be the rest of a character.
            text = line.lstrip(bytes(range(0x80, 0xC0))) if is_cut else line
            text = text.decode("utf-8", errors="replace")
            if offset == 0:
                text = text.removeprefix("\ufeff")
            if text.strip():
                blank_lines, start = 0, 0  # what comes before does not matter
            elif not is_cut:
                blank_lines += 1
            is_cut = False
        if start == 0:
            return blank_lines
        look_back *= 2


def _read_json(
    path: str,
    text_format: TextFormat,
    begin: int,
    end: int | None,
    counts: Counter | None,
    on_read: Callable[[int], None] | None,
) -> Iterator[Sentence]:
    def refuse(what: str) -> None:
        remedy = f'expected {{"{text_format.text_field}": "..."}} (see --text_field)'
        refuse_line(path, offset, what, remedy, text_format.on_bad_line, counts)

    lines = read_lines(path, max(begin - 1, 0), on_read)
    for offset, parts in itertools.groupby(lines, key=operator.itemgetter(0)):
        if offset < begin:
            continue
        if end is not None and offset >= end:
            return
        line = bytearray()
        for _, part in parts:
            if len(line) <= _MAX_JSON_BYTES:
                line += part
        if len(line) > _MAX_JSON_BYTES:
            refuse(f"a line of more than {_MAX_JSON_BYTES / 1e6:g} MB")
            continue
        decoded = decode_line(path, offset, line, text_format.on_bad_line, counts)
        if decoded is None:
            continue
        try:
            text = _json_text(decoded, text_format.text_field)
        except ValueError as error:
            refuse(str(error))
            continue
        lines_of_text = (match[0] for match in _LINE.finditer(text))
        for sentence in split_sentences(lines_of_text, text_format.language):
            yield Sentence(offset, sentence)


def _json_text(line: str, field: str) -> str:
    """Returns the text of a JSON object; none if the line is blank.

    Raises:
      UserError: for anything else; the message states what is wrong.
    """
    if not line.strip():
        return ""
    try:
        value = json.loads(line.rstrip())
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise UserError(f"not JSON ({what} at character {error.pos + 1})") from error
    except (ValueError, RecursionError) as error:  # numbers of 5,000 digits, 1,000 brackets
        raise UserError(f"not JSON that can be read ({error})") from error
    if not isinstance(value, dict):
        raise UserError("not a JSON object")
    text = value.get(field)
    if not isinstance(text, str):
        found = "no" if field not in value else "something else than text as"
        raise UserError(f"{found} field {field!r} (it has {', '.join(map(repr, value))[:200]})")
    # JSON can spell halves of characters, which are no text.
    return _SURROGATE.sub("\ufffd", text)
