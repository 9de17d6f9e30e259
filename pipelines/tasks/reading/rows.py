"""Reads the raw rows of a file (cells or JSON objects) with their line numbers."""

import collections
import csv
import itertools
import json
import operator
import re
from collections.abc import Iterator
from typing import Any

from albert_tf.storage.errors import UserError, shown
from ...data.text_files import read_lines

# Maximum characters per cell, so that an unclosed quotation mark does not fill the memory.
_MAX_CELL = 1 << 26
# Matches a comma or semicolon that is part of a text, not a column separator, as in "1,000".
_IN_PROSE = {mark: re.compile(rf"{mark}\s|\d{mark}\d") for mark in ",;"}
# Matches the optional first line of Excel's CSV files, which defines the column separator.
_SEPARATOR_LINE = re.compile(r'"?sep=([,;|\t])"?')
_QUOTED = re.compile(r'"[^"]*("|$)')
# Longer cells are not labels. A column with more distinct cells does not contain labels.
_LONGEST_LABEL, _MOST_LABELS = 64, 10_000


Place = int | str


def read_cells(path: str, separator: str, quoting: str) -> Iterator[tuple[Place, list[str]]]:
    """Yields (place, cells) for each row. A blank line has no cells.

    The place is the number of the row's first line, from 1. If an earlier cell contains line ends,
    the row number that spreadsheets show is added: "7 (row 5)".

    If `separator` is ",", the file may use another separator. A first line such as `sep=;` defines
    it and is not a row. Otherwise the separator is a semicolon if the first line has semicolons and
    no comma outside quotation marks.
    """
    lines: Iterator[str] = (line for _, line in read_text_lines(path))
    first = 1
    if separator == "," and (head := next(lines, None)) is not None:
        names = _QUOTED.sub("", head)
        if named := _SEPARATOR_LINE.fullmatch(head):
            separator, first = named[1], 2
        else:
            lines = itertools.chain([head], lines)
            separator = ";" if ";" in names and "," not in names else ","
    if quoting == "csv":
        yield from _quoted_rows(path, separator, first, lines)
    else:
        for number, line in enumerate(lines, start=first):
            yield number, line.split(separator) if line else []


def _quoted_rows(
    path: str, separator: str, first: int, plain_lines: Iterator[str]
) -> Iterator[tuple[Place, list[str]]]:
    """Parses lines with CSV quoting and yields rows; `first` is the number of the first line.

    A quoted cell may contain separators, line ends (converted to \\n) and doubled quotation marks,
    as written by spreadsheets and pandas. Parsing is strict, so that files without quoting fail. A
    lenient parser would silently join rows.

    Raises:
      UserError: if quotation marks violate these rules, or if each line of a multi-line row looks
        like a complete row. In this case the quotation marks are probably part of the text. (In
        prose, a comma is followed by a space, a line end or a digit. Between columns this is rare.)
        Some of these rows are only detected at the end of the file; see _EdgeColumn.
    """
    csv.field_size_limit(_MAX_CELL)
    lines_of_row: list[str] = []

    def lines() -> Iterator[str]:
        for line in plain_lines:
            lines_of_row.append(line)
            yield line + "\n"

    reader = csv.reader(lines(), delimiter=separator, strict=True)
    columns, edges = None, [_EdgeColumn(separator, is_last) for is_last in (False, True)]
    for row in itertools.count(1):  # spreadsheets do not count a first line `sep=;`
        number = reader.line_num + first
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise _wrong_quoting(path, number, str(error)) from error
        if cells is None:
            break
        columns = columns or len(cells)
        if columns > 1:
            if len(lines_of_row) > 1 and _are_rows(lines_of_row, separator, columns):
                raise _joined_rows(path, number, len(lines_of_row))
            # The first row is the header.
            if number > first and cells:
                for edge in edges:
                    edge.add(number, lines_of_row)
        yield number if number == row else f"{number} (row {row})", cells
        lines_of_row.clear()
    for edge in edges:
        edge.refuse_joined_rows(path)


def _are_rows(lines: list[str], separator: str, columns: int) -> bool:
    """Returns whether each line looks like a row of the table, ignoring quotation marks."""
    in_prose = _IN_PROSE.get(separator)
    if in_prose and any(in_prose.search(f"{line} ") for line in lines):
        return False
    return all(line.count(separator) == columns - 1 for line in lines)


class _EdgeColumn:
    """Detects joined rows in a table, based on the labels in its first or last column.

    A stray quotation mark joins all rows up to the next quotation mark. If labels are in the last
    column, every line of such a row ends with a label, except the last line. If labels are in the
    first column, every line but the first one starts with a label. In at least one line the
    separator is used as in other rows: between two digits, before a space, or neither. Two or more
    lines of a text rarely meet these conditions by chance.

    Not detected: two rows joined into one, and joined rows in a table without repeated labels in
    its first or last column.
    """

    def __init__(self, separator: str, is_last: bool):
        self._separator, self._is_last = separator, is_last
        self._num_rows = 0
        self._labels: set[str] = set()
        # Counts separators by kind: between two digits, before a space, or neither.
        self._kinds: collections.Counter = collections.Counter()
        # For each row: number of the first line, number of lines, labels, kinds of separators.
        self._suspects: list[tuple[int, int, tuple[str, ...], set[tuple[bool, bool]]]] = []

    def add(self, number: int, lines: list[str]) -> None:
        """Records a row that starts in line `number`."""
        full = [line for line in lines if line.strip()] or lines[:1]
        *others, own = map(self._divide, full if self._is_last else full[::-1])
        if own is None:
            return
        self._num_rows += 1
        self._kinds[own[1]] += 1
        if len(self._labels) <= _MOST_LABELS:
            self._labels.add(own[0])
        if len(others) > 1 and all(divided and divided[0].strip() for divided in others):
            labels, kinds = zip(*others)
            self._suspects.append((number, len(lines), labels, set(kinds)))

    def _divide(self, line: str) -> tuple[str, tuple[bool, bool]] | None:
        """Returns the possible label of a line and the kind of its separator, or None."""
        if self._is_last:
            rest, _, label = line.rpartition(self._separator)
            around = rest[-1:], label[:1]
        else:
            label, _, rest = line.partition(self._separator)
            around = label[-1:], rest[:1]
        if not rest or len(label) > _LONGEST_LABEL:
            return None
        return label, (all(map(str.isdigit, around)), around[1] == " ")

    def refuse_joined_rows(self, path: str) -> None:
        """Raises a UserError for the first joined row. Must be called after the last row."""
        if len(self._labels) > _MOST_LABELS:
            return
        common = {kind for kind, times in self._kinds.items() if 10 * times >= self._num_rows}
        for number, num_lines, labels, kinds in self._suspects:
            # Short texts such as "Thanks" may look like labels, but only labels are repeated.
            repeats = 2 * len(self._labels) <= self._num_rows + len(labels)
            if repeats and kinds & common and self._labels.issuperset(labels):
                raise _joined_rows(path, number, num_lines)


def _joined_rows(path: str, number: int, num_lines: int) -> UserError:
    what = f"a quotation mark here is closed in line {number + num_lines - 1} only, and each line "
    what += "looks like a row (if it is really a single cell, write .jsonl)"
    return _wrong_quoting(path, number, what)


def _wrong_quoting(path: str, number: int, what: str) -> UserError:
    if what == "unexpected end of data":
        what = "a quotation mark opens a cell here and is never closed"
    return UserError(
        f"{path}:{number}: {what}; expected cells quoted as spreadsheets and pandas write them "
        '("he said ""no"""). If a quotation mark is a character like any other in this file, pass '
        "--quoting=none"
    )


def read_json_objects(path: str, may_be_array: bool = True) -> Iterator[tuple[int, dict]]:
    """Yields (number, object) from a file with one object per line or an array of objects.

    The number is the line number or the position in the array, from 1. Arrays are loaded at once.
    """
    records: Iterator[tuple[int, Any]]
    if may_be_array and first_character(path) == "[":
        kind, expected = "element", "expected an array of objects: [{...}, {...}]"
        records = enumerate(parse_json(read_text(path), path, expected), start=1)
    else:
        kind, expected = "line", "expected one object a line"
        lines = ((number, line) for number, line in read_text_lines(path) if line.strip())
        records = ((number, parse_json(line, path, expected, number)) for number, line in lines)
    for number, record in records:
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: {kind} {number} is no object; {expected}")
        yield number, record


def parse_json(text: str, path: str, expected: str, line: int | None = None) -> Any:
    """Parses a line of JSON, or a whole file if `line` is None.

    Raises a UserError if it is not JSON, or if an object repeats a field. The message ends with
    `expected`.
    """
    try:
        return json.loads(text, object_pairs_hook=_as_object)
    except (ValueError, RecursionError) as error:  # also raised for huge numbers and deep nesting
        what = str(error)
        if isinstance(error, json.JSONDecodeError):
            what, line = f"column {error.colno}: {error.msg}", line or error.lineno
        where = f"{path}:{line}" if line else path
        raise UserError(f"{where}: not JSON ({what}); {expected}") from error


def _as_object(fields: list[tuple[str, object]]) -> dict:
    """Returns a dict. Raises a ValueError for repeated fields (json would keep the last one)."""
    record = dict(fields)
    if len(record) < len(fields):
        names = [name for name, _ in fields]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {shown(twice)} twice in one object")
    return record


def first_character(path: str) -> str:
    """Returns the first character of a text file that is not white space, or ""."""
    return next((part.lstrip()[0] for _, part in read_text_parts(path) if part.strip()), "")


def read_text(path: str) -> str:
    """Returns the content of a text file, with lines separated by \\n."""
    return "\n".join(line for _, line in read_text_lines(path))


def read_text_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without line end)."""
    # Parts with the same line number belong to one long line.
    lines = itertools.groupby(read_text_parts(path), key=operator.itemgetter(0))
    for number, parts in lines:
        line = "".join(part for _, part in parts).rstrip("\r\n")
        if "\0" in line:
            raise UserError(
                f"{path}:{number}: the line holds a NUL character, which is not valid in text; is "
                "the file complete, and is it a table?"
            )
        yield number, line


def read_text_parts(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line with line end). Long lines are split into several parts.

    Raises a UserError if a line is not UTF-8.
    """
    number, last = 0, -1
    for offset, line in read_lines(path):
        number += offset != last
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}:{number}: byte 0x{line[error.start]:02X} is not UTF-8 ({error.reason}); "
                "convert the file, for example with iconv"
            ) from error
        yield number, text if last >= 0 else text.removeprefix("\ufeff")  # the byte order mark
        last = offset
