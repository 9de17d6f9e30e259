"""Reads texts with tagged words from CoNLL files, or from JSON lines with tags or spans."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from albert_tf.storage.errors import UserError
from albert_tf.text.entities import OUTSIDE
from albert_tf.text.words import split_words
from ...data.text_files import ending
from .examples import AnyExample
from .rows import read_text_lines
from .tables import Row, as_label, as_text, read_rows


@dataclasses.dataclass(frozen=True)
class TokenExample(AnyExample):
    """A text as a sequence of non-empty words, with one tag per word (None if not known).

    Attributes:
      text: the raw text, or None if the text was given as words.
      spans: for raw text, the character range [start, end) of each word.
      entities: for raw text with answers, tuples (start, end, label) in characters.
      counts_utf16: whether the offsets in the file are UTF-16 code units.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    text: str | None = None
    spans: tuple[tuple[int, int], ...] = ()
    entities: tuple[tuple[int, int, str], ...] | None = None
    counts_utf16: bool = False

    @property
    def is_answered(self) -> bool:
        return self.tags is not None

    @property
    def separated(self) -> tuple[str, ...]:
        return (" ".join(self.words),)

    def inputs(self) -> dict[str, Sequence[str]]:
        return {"words": self.words}


# The default columns or fields of words and tags.
#
# In JSON lines (.jsonl, .json), either `text` is a list of words and `label` a list of their tags,
# or `text` is a string and `label` a list of spans in characters: {"start", "end", "label"} or
# [start, end, label]. Other files have CoNLL's columns, with one word per line and a blank line
# between texts. There, `text` and `label` are column numbers, from the end if negative. The
# defaults are the first and the last column (.conllu: 1 and 3). `id` is only used for JSON lines.
FIELDS = {"text": "text", "label": "label", "id": None}


def iterate_examples(
    path: str, columns: Mapping[str, str | None], first: int, needs_tags: bool
) -> Iterator[TokenExample]:
    """Yields the texts of a file, numbered from `first`. Raises a UserError for an empty file.

    The name's ending selects JSON or .conllu. Other files are read as CoNLL's columns.
    """
    if ending(path) == ".csv":
        raise UserError(
            f"{path}: models that tag words read .jsonl, or a word and its tag on each line as in "
            "CoNLL's files: convert the table"
        )
    if ending(path) in (".json", ".jsonl"):
        utf16 = _counts_utf16(path, columns)
        for row in read_rows(path, first, needs_tags, columns):
            yield example_of_row(row, utf16)
        return
    example = None
    for example in _read_conll(path, columns, first, needs_tags):
        yield example
    if example is None:
        raise UserError(f"{path}: no texts; expected at least one")


def _read_conll(
    path: str, columns: Mapping[str, str | None], first: int, needs_tags: bool
) -> Iterator[TokenExample]:
    # Universal Dependencies: skip comments, contractions ("1-2") and empty nodes ("1.1").
    is_ud = ending(path) == ".conllu"
    word_place = _column_number(columns, "text", 1 if is_ud else 0)
    tag_place = _column_number(columns, "label", 3 if is_ud else -1)
    lines = read_text_lines(path)
    if is_ud:
        lines = (numbered for numbered in lines if not numbered[1].startswith("#"))
    number_of_columns, has_tabs, texts = None, False, first
    for is_boundary, lines_of_text in itertools.groupby(lines, _is_boundary):
        words, tags = [], []
        for number, line in () if is_boundary else lines_of_text:
            where = f"{path}:{number}"
            has_tabs = "\t" in line if number_of_columns is None else has_tabs
            # str.split without a separator would also split at a no-break space within a word.
            cells = line.split("\t") if has_tabs else re.split("[ \t]+", line.strip(" \t"))
            if number_of_columns is None:
                number_of_columns = len(cells)
                places = range(-number_of_columns, number_of_columns)
                if word_place not in places:
                    raise UserError(f"{where}: no column {word_place} of words; see --text_column")
                has_tags = number_of_columns > 1 and tag_place in places and columns["label"]
                if needs_tags and not has_tags:
                    raise UserError(
                        f"{where}: {number_of_columns} columns, expected a word and, in column "
                        f"{tag_place} (--label_column), its tag"
                    )
            if len(cells) != number_of_columns:
                raise UserError(
                    f"{where}: {len(cells)} columns, expected {number_of_columns} as in the first "
                    f"line (between {'tabs' if has_tabs else 'spaces'})"
                )
            if is_ud and not cells[0].isdecimal():
                continue
            if not cells[word_place].strip():
                raise UserError(f"{where}: the word in column {word_place} is empty")
            words.append(cells[word_place])
            if has_tags:
                tags.append(as_label(cells[tag_place], f"column {tag_place}", where))
        if words:
            yield TokenExample(str(texts), tuple(words), tuple(tags) if tags else None)
            texts += 1


def _is_boundary(numbered: tuple[int, str]) -> bool:
    # The mark is CoNLL-2003's line between documents.
    return not numbered[1].strip() or numbered[1].startswith("-DOCSTART-")


def _column_number(columns: Mapping[str, str | None], field: str, default: int) -> int:
    if (column := columns[field]) in (None, FIELDS[field]):
        return default
    try:
        return int(column)
    except ValueError:
        raise UserError(
            f"--{field}_column={column}: the columns of CoNLL files have no names; expected a "
            "number, 0 for the first, -1 for the last"
        ) from None


def _counts_utf16(path: str, columns: Mapping[str, str | None]) -> bool:
    """Returns whether fewer than half as many spans miss the words' bounds in UTF-16 code units.

    Annotation tools in browsers count so. Only texts with characters above U+FFFF tell.
    """
    misses = [0, 0]
    for row in read_rows(path, 0, False, columns):
        text, spans = row.cells["text"], row.cells.get("label")
        if not isinstance(text, str) or not isinstance(spans, list):
            return False
        if not (utf16_places := _utf16_places(text)):
            continue
        starts, ends = map(set, split_words(text).T.tolist())
        for places, span in itertools.product(({}, utf16_places), spans):
            try:
                start, end, _ = _as_span(span, text, "", "", places)
            except UserError:
                start = end = -1
            misses[places is utf16_places] += start not in starts or end not in ends
    return 2 * misses[True] < misses[False]


def _utf16_places(text: str) -> dict[int, int]:
    """Maps offsets in UTF-16 code units to those in characters. Empty if all are equal."""
    if max(text, default="") <= "\uffff":
        return {}
    units = itertools.accumulate((1 + (c > "\uffff") for c in text), initial=0)
    return {unit: place for place, unit in enumerate(units)}


def example_of_row(row: Row, counts_utf16: bool = False) -> TokenExample:
    """Converts a JSON object with words and tags, or with a text and spans; see FIELDS."""
    words, labels = row.cells["text"], row.cells.get("label")
    if "label" in row.cells and not isinstance(labels, list):
        raise UserError(
            f"{row.where}: {row.columns['label']!r} is no list, expected one of tags or spans"
        )
    if isinstance(words, list):
        return _of_words(row, words, labels)
    column = row.columns.get("label", "")
    return of_text(row.id, row.text("text"), labels, column, row.where, counts_utf16)


def _of_words(row: Row, cells: list, tags: list | None) -> TokenExample:
    column, where = row.columns["text"], row.where
    words = tuple(as_text(word, column, where) for word in cells)
    if not all(map(str.strip, words)):
        raise UserError(f"{where}: a word in {column!r} is empty")
    if tags is None:
        return TokenExample(row.id, words, None)
    if len(tags) != len(words):
        raise UserError(
            f"{where}: {len(tags)} tags in {row.columns['label']!r}, expected {len(words)}, one a "
            f"word (for spans {column!r} has to be a text)"
        )
    labels = tuple(as_label(tag, row.columns["label"], where) for tag in tags)
    return TokenExample(row.id, words, labels)


def of_text(
    name: str,
    text: str,
    spans: list | None = None,
    column: str = "",
    where: str = "",
    counts_utf16: bool = False,
) -> TokenExample:
    """Creates an example from a raw text. Spans are converted to IOB2 tags of its words.

    White space at the ends of a span is removed. If a span covers a part of a word, it tags the
    whole word. Empty spans, spans outside the text and overlapping spans are refused.
    """
    bounds = split_words(text)
    words = tuple(text[start:limit] for start, limit in bounds)
    places = tuple((int(start), int(limit)) for start, limit in bounds)
    if spans is None:
        return TokenExample(name, words, None, text, places)
    utf16_places = _utf16_places(text) if counts_utf16 else {}
    entities = sorted(_as_span(span, text, column, where, utf16_places) for span in spans)
    tags = [OUTSIDE] * len(words)
    for before, entity in zip([None, *entities], entities):
        start, end, label = entity
        if before and start < before[1]:
            raise UserError(f"{where}: the spans {list(before)} and {list(entity)} overlap")
        first = int(np.searchsorted(bounds[:, 1], start, "right"))
        last = int(np.searchsorted(bounds[:, 0], end, "left"))
        # If two spans share a word, the first span determines its tag.
        for word in range(first, last):
            if tags[word] == OUTSIDE:
                tags[word] = f"{'B' if word == first else 'I'}-{label}"
    return TokenExample(name, words, tuple(tags), text, places, tuple(entities), counts_utf16)


def _as_span(
    span: object, text: str, column: str, where: str, utf16_places: Mapping[int, int]
) -> tuple[int, int, str]:
    if isinstance(span, dict):
        start, end, label = map(span.get, ("start", "end", "label"))
    elif isinstance(span, (list, tuple)) and len(span) == 3:
        start, end, label = span
    else:
        start = end = label = None
    if utf16_places and type(start) is type(end) is int:
        start, end = utf16_places.get(start), utf16_places.get(end)
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
        raise UserError(
            f"{where}: {column!r} holds {str(span)[:60]}, expected "
            '{"start": 0, "end": 5, "label": "person"}, in characters (the text has '
            f"{len(text)}), with `end` after the last one"
        )
    marked = text[start:end]
    if not marked.strip():
        raise UserError(f"{where}: {column!r} holds {str(span)[:60]}, which marks no text")
    start, end = start + len(marked) - len(marked.lstrip()), start + len(marked.rstrip())
    return start, end, as_label(label, column, where)
