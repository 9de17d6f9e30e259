"""Reads documents from byte ranges of text files, in the formats of --input_format."""

import dataclasses
import functools
import importlib.metadata
import itertools
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from absl import flags

from albert_tf.jobs.settings import define_settings_flags, setting
from albert_tf.storage.errors import UserError
from .sentences import split_sentences
from .text_files import PARQUET, line_number, read_lines

INPUT_FORMATS = ("sentences", "prose", "jsonl")

# Maximum length of a JSON line, which must fit into memory as a whole.
_MAX_JSON_BYTES = 64_000_000
# Initial number of bytes before a range that are searched for blank lines.
_LOOK_BACK_BYTES = 1 << 12

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Sentence(NamedTuple):
    """A sentence without leading and trailing white space."""

    document_offset: int  # byte offset of the first line of the sentence's document
    text: str


@dataclass(frozen=True)
class TextFormat:
    """How documents are stored in text files."""

    input_format: str = setting(
        flags.DEFINE_enum,
        "sentences: one sentence per line, and a blank line between documents. prose: paragraphs "
        "are separated by blank lines and split into sentences. jsonl: one JSON object per line, "
        "or a row of a .parquet file, with a document of prose in its --text_field.",
        "sentences",
        enum_values=INPUT_FORMATS,
    )
    document_blank_lines: int = setting(
        flags.DEFINE_integer,
        "Minimum number of consecutive blank lines that end a document. Not used for jsonl. Pass 2 "
        "or more if a single blank line separates paragraphs.",
        1,
        lower_bound=1,
    )
    text_field: str = setting(
        flags.DEFINE_string, "JSON field or Parquet column that contains the text.", "text"
    )
    language: str = setting(
        flags.DEFINE_string,
        "ISO 639-1 code of the text's language: its abbreviations do not end sentences of prose.",
        "en",
    )
    on_bad_line: str = setting(
        flags.DEFINE_enum,
        "How to handle a line that is not UTF-8 or, for jsonl, not a JSON object with text.",
        "error",
        enum_values=["error", "skip"],
    )

    def __post_init__(self):
        """Raises a UserError for spellings of a language that sentencex would take for English."""
        if not re.fullmatch("[a-z]{2}", self.language):
            raise UserError(
                f"--language={self.language}: expected a code of ISO 639-1, two small letters such "
                "as de"
            )

    def identity(self) -> dict:
        """Returns the settings that affect the documents, for the identity of a job."""
        identity = dataclasses.asdict(self)
        # A job that failed at a bad line must be able to resume with --on_bad_line=skip.
        del identity["on_bad_line"]
        if self.input_format != "sentences":
            identity["sentencex"] = importlib.metadata.version("sentencex")
        return identity


def define_flags() -> None:
    """Defines the flags for input text."""
    flags.DEFINE_string(
        "input_file", None, "Text files: comma-separated paths or globs.", required=True
    )
    define_settings_flags(TextFormat)


def read_documents(
    path: str,
    text_format: TextFormat = TextFormat(),
    begin: int = 0,
    end: int | None = None,
    counts: Counter | None = None,
) -> Iterator[Sentence]:
    """Yields the sentences of all documents that belong to the byte range [begin, end) of a file.

    A document belongs to the range that contains the first byte of the blank line directly before
    it. The first document of a file belongs to the range that starts at 0. A jsonl document belongs
    to the range in which its line starts. Documents are read to their end, even past `end` (None:
    the end of the file). Offsets in a compressed file count decompressed bytes.

    `counts["skipped_lines"]` is incremented for each skipped line. A skipped line does not end its
    document. For `path` and all errors except invalid lines, see text_files.read_lines.
    """
    is_json = text_format.input_format == "jsonl"
    if path.endswith(PARQUET) and not is_json:
        raise UserError(
            f"{path}: a Parquet file: pass --input_format=jsonl, then each row is a document, with "
            f"its text in the column of --text_field (now {text_format.text_field!r})"
        )
    skipped: Counter = Counter() if counts is None else counts
    decode = functools.partial(_json_text, text_format.text_field) if is_json else _decode

    def text_of(offset: int, line: bytes) -> str | None:
        """Returns the text of a line, or None if the line is skipped."""
        try:
            return decode(offset, line)
        except UserError as error:
            if text_format.on_bad_line != "skip":
                raise UserError(
                    f"{path}:{line_number(path, offset)}: {error}, or pass --on_bad_line=skip to "
                    "skip such lines"
                ) from error
        skipped["skipped_lines"] += 1
        return None

    # Start reading one byte before the range to detect whether a line starts at `begin`. Drop the
    # line that starts before the range.
    lines = read_lines(path, max(begin - 1, 0))
    lines = itertools.dropwhile(lambda line: line[0] < begin, lines)
    limit = math.inf if end is None else end
    if is_json:
        found = _json_lines(lines, text_of, limit)
    else:
        enough = text_format.document_blank_lines
        blank_lines = _blank_lines_before(path, begin) if begin and enough > 1 else 0
        found = _text_lines(lines, text_of, begin == 0, limit, enough, blank_lines)
    if text_format.input_format == "sentences":
        for offset, line in found:
            if text := line.strip():
                yield Sentence(offset, text)
        return
    for offset, document in itertools.groupby(found, key=operator.itemgetter(0)):
        for text in split_sentences((line for _, line in document), text_format.language):
            yield Sentence(offset, text)


def _text_lines(
    lines: Iterator[tuple[int, bytes]],
    text_of: Callable[[int, bytes], str | None],
    is_ours: bool,
    end: float,
    enough: int,
    blank_lines: int,
) -> Iterator[tuple[int, str]]:
    """Yields (document offset, line with line end), including blank lines inside documents.

    `is_ours`: the first line belongs to a document of this range. `enough` blank lines end a
    document. `blank_lines` are directly before the range.
    """
    document = None  # offset of the current document
    for offset, line in lines:
        if not is_ours and offset >= end:
            return
        # Lines before the first document belong to the previous range, which validates them.
        text = text_of(offset, line) if is_ours else line.decode("utf-8", errors="replace")
        if text is None:
            blank_lines = 0
        elif text.strip():
            blank_lines = 0
            if is_ours:
                document = offset if document is None else document
                yield document, text
        else:
            blank_lines += 1
            if blank_lines >= enough:
                if offset >= end:
                    return
                document, is_ours = None, True
            elif document is not None:
                yield document, text


def _json_lines(
    lines: Iterator[tuple[int, bytes]], text_of: Callable[[int, bytes], str | None], end: float
) -> Iterator[tuple[int, str]]:
    """Yields (document offset, line of the document's text with line end)."""
    for offset, parts in itertools.groupby(lines, key=operator.itemgetter(0)):
        if offset >= end:
            return
        line = bytearray()
        for _, part in parts:
            if len(line) <= _MAX_JSON_BYTES:  # _json_text rejects longer lines
                line += part
        yield from (
            (offset, match[0]) for match in _LINE.finditer(text_of(offset, bytes(line)) or "")
        )


def _blank_lines_before(path: str, begin: int) -> int:
    """Returns the number of consecutive blank lines that precede byte `begin` or contain it."""
    look_back = _LOOK_BACK_BYTES
    while True:
        start = max(begin - look_back, 0)
        blank_lines, is_enough = 0, start == 0
        for offset, line in read_lines(path, start):
            if offset >= begin:
                break
            if offset == start > 0:
                continue  # the line may be incomplete
            text = line.decode("utf-8", errors="replace")
            if (text if offset else text.removeprefix("\ufeff")).strip():
                blank_lines, is_enough = 0, True
            else:
                blank_lines += 1
        if is_enough:
            return blank_lines
        look_back *= 2


def _decode(offset: int, line: bytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"byte 0x{line[error.start]:02X} is not UTF-8 ({error.reason}); convert the file, for "
            "example with iconv"
        ) from error
    return text if offset else text.removeprefix("\ufeff")  # remove the byte order mark


def _json_text(field: str, offset: int, line: bytes) -> str:
    """Returns the text in a field of a JSON object, or "" for a blank line."""
    remedy = f'; expected {{"{field}": "..."}} (see --text_field)'
    if len(line) > _MAX_JSON_BYTES:
        raise UserError(f"a line of more than {_MAX_JSON_BYTES / 1e6:g} MB{remedy}")
    text = _decode(offset, line).rstrip()
    if not text:
        return ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # such as 5,000 digits or 1,000 nested lists
        raise UserError(f"not JSON ({error}){remedy}") from error
    if not isinstance(value, dict):
        raise UserError(f"not a JSON object{remedy}")
    of_field = value.get(field)
    if not isinstance(of_field, str):
        found = "no" if field not in value else "something else than text as"
        names = ", ".join(map(repr, value))[:200]
        raise UserError(f"{found} field {field!r} (it has {names}){remedy}")
    # JSON can contain escaped lone surrogates, which UTF-8 cannot encode.
    return _SURROGATE.sub("\ufffd", of_field)
