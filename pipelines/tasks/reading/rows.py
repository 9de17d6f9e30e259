"""The rows of a file as they stand: cells or JSON objects, with line numbers."""

from __future__ import annotations

import collections
import csv
import itertools
import json
import operator
import re
from collections.abc import Callable, Iterator

from albert_tf.storage.errors import UserError, shown
from ...data.text_files import read_lines

# Characters of one cell. An unclosed quotation mark is found before the whole file is in memory.
_MAX_CELL = 1 << 26
# A comma or semicolon that divides no columns, such as the one in "1,000".
_IN_PROSE = {mark: re.compile(rf"{mark}\s|\d{mark}\d") for mark in ",;"}
# The first line of Excel's CSV, where it names the separator of columns.
_SEPARATOR_LINE = re.compile(r'"?sep=([,;|\t])"?')
_QUOTED = re.compile(r'"[^"]*("|$)')
# A longer cell is no label, and a column of more different cells has none.
_LONGEST_LABEL, _MOST_LABELS = 64, 10_000


def read_quoted_rows(path: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number from 1 where the row begins, cells) of a table with CSV's quoting.

    A cell in quotation marks may hold separators, line ends (which become \\n) and, doubled,
    quotation marks. That is how spreadsheets and pandas write tables. A blank line is a row
    without cells. For `separator` "," see _divided_lines. Quoting is read strictly: a file without
    quoting then fails, where a lenient reader would join and lose rows.

    Raises:
      UserError: for a file that is not UTF-8, for quotation marks that are no such quoting, and
        for a row over several lines if each line is a row by itself: its quotation marks are
        hardly meant as such. (In prose a space, a line end or a digit follows a comma; between
        columns seldom.) Some such rows are known at the end of the file only: see _EdgeColumn.
    """
    csv.field_size_limit(_MAX_CELL)
    lines_of_row: list[str] = []
    separator, first, plain_lines = _divided_lines(path, separator)

    def lines() -> Iterator[str]:
        for line in plain_lines:
            lines_of_row.append(line)
            yield line + "\n"

    reader = csv.reader(lines(), delimiter=separator, strict=True)
    columns, edges = None, [_EdgeColumn(separator, is_last) for is_last in (False, True)]
    while True:
        number = reader.line_num + first
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise _wrong_quoting(path, number, str(error)) from error
        if cells is None:
            break
        columns = columns or len(cells)
        last = number + len(lines_of_row) - 1
        if last > number and columns > 1 and _are_rows(lines_of_row, separator, columns):
            raise _joined_rows(path, number, last)
        # The first row is the header.
        for edge in edges if columns > 1 and number > first and cells else ():
            edge.add(number, lines_of_row)
        yield number, cells
        lines_of_row.clear()
    for found in filter(None, (edge.first_joined() for edge in edges)):
        raise _joined_rows(path, *found)


def _are_rows(lines: list[str], separator: str, columns: int) -> bool:
    """Returns whether each line has as many columns as the header, quotation marks apart."""
    in_prose = _IN_PROSE.get(separator)
    if in_prose and any(in_prose.search(f"{line} ") for line in lines):
        return False
    return all(line.count(separator) == columns - 1 for line in lines)


class _EdgeColumn:
    """The first or the last column of a table, and rows that may be several rows joined.

    A stray quotation mark joins the rows up to the next one. Each line of such a row but its last
    ends with the label of some row; if labels are in the first column, each but its first begins
    with one. At least one of these lines has a separator as other rows have it: between two digits,
    before a space, or neither. The lines of a text hardly fit by chance if there are two or more.

    Not found: two rows joined into one, and rows joined in a table whose edges have no labels that
    repeat.
    """

    def __init__(self, separator: str, is_last: bool):
        self._separator, self._is_last = separator, is_last
        self._num_rows = 0
        self._labels: set[str] = set()
        # How often a digit stands on both sides of the separator, a space behind it, or neither.
        self._kinds: collections.Counter = collections.Counter()
        # First and last line of a row, the labels of its lines, their kinds.
        self._suspects: list[tuple[int, int, list[str], set[tuple[bool, bool]]]] = []

    def add(self, number: int, lines: list[str]) -> None:
        """Counts a row, which begins in line `number`."""
        last = number + len(lines) - 1
        lines = [line for line in lines if line.strip()] or lines[:1]
        *others, own = map(self._divide, lines if self._is_last else lines[::-1])
        if own is None:
            return
        self._num_rows += 1
        self._kinds[own[1]] += 1
        if len(self._labels) <= _MOST_LABELS:
            self._labels.add(own[0])
        found = [divided for divided in others if divided and divided[0].strip()]
        if len(found) == len(others) > 1:
            labels, kinds = zip(*found)
            self._suspects.append((number, last, list(labels), set(kinds)))

    def _divide(self, line: str) -> tuple[str, tuple[bool, bool]] | None:
        """Returns what may be the label of a line, and how it is divided from the rest."""
        if self._is_last:
            rest, _, label = line.rpartition(self._separator)
            around = rest[-1:], label[:1]
        else:
            label, _, rest = line.partition(self._separator)
            around = label[-1:], rest[:1]
        if not rest or len(label) > _LONGEST_LABEL:
            return None
        return label, (all(map(str.isdigit, around)), around[1] == " ")

    def first_joined(self) -> tuple[int, int] | None:
        """Returns the first and last line of the first row that is several, after all rows."""
        if len(self._labels) > _MOST_LABELS:
            return None
        common = {kind for kind, times in self._kinds.items() if 10 * times >= self._num_rows}
        for number, last, labels, kinds in self._suspects:
            # Texts may be short, too: "Thanks". Labels repeat.
            repeats = 2 * len(self._labels) <= self._num_rows + len(labels)
            if repeats and kinds & common and self._labels.issuperset(labels):
                return number, last
        return None


def _joined_rows(path: str, number: int, last: int) -> UserError:
    what = f"a quotation mark here is closed in line {last} only, and each line "
    what += "seems a row by itself (if the cell is meant so, write .jsonl)"
    return _wrong_quoting(path, number, what)


def _wrong_quoting(path: str, number: int, what: str) -> UserError:
    if what == "unexpected end of data":
        what = "a quotation mark opens a cell here and is never closed"
    return UserError(
        f"{path}:{number}: {what}; expected cells quoted as spreadsheets and pandas write them "
        '("he said ""no"""). If a quotation mark is a character like any other in this file, pass '
        "--quoting=none"
    )


def read_unquoted_rows(path: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number from 1, cells); a quotation mark is a character like any other.

    A blank line is a row without cells.

    Raises:
      UserError: for a file that is not UTF-8.
    """
    separator, first, lines = _divided_lines(path, separator)
    for number, line in enumerate(lines, start=first):
        yield number, line.split(separator) if line else []


def _divided_lines(path: str, separator: str) -> tuple[str, int, Iterator[str]]:
    """Returns the separator of columns, the number of the first line, and the lines from it on.

    In place of "," the separator may be what the first line names (`sep=;`, which is no row). It is
    a semicolon if the first line has some and no comma outside of quotation marks.
    """
    lines = (line for _, line in read_text_lines(path))
    if separator != "," or (first := next(lines, None)) is None:
        return separator, 1, lines
    if named := _SEPARATOR_LINE.fullmatch(first):
        return named[1], 2, lines
    names = _QUOTED.sub("", first)
    if ";" in names and "," not in names:
        separator = ";"
    return separator, 1, itertools.chain([first], lines)


def as_object(fields: list[tuple[str, object]]) -> dict:
    """Returns an object; refuses a field given twice, where parsers keep the last."""
    record = dict(fields)
    if len(record) < len(fields):
        names = [name for name, _ in fields]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {shown(twice)} twice in one object")
    return record


def read_json_lines(path: str) -> Iterator[tuple[int, dict]]:
    """Yields (line number from 1, object) for each line that is not blank.

    Raises:
      UserError: for a line that is not UTF-8 or no JSON object.
    """
    for number, line in read_text_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=as_object)
        except (ValueError, RecursionError) as error:
            what = getattr(error, "msg", str(error))  # without its "line 1", which is not ours
            raise UserError(
                f"{path}:{number}: not JSON ({what}); expected one object a line"
            ) from error
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: not a JSON object; expected one object a line")
        yield number, record


def read_json_objects(path: str) -> Iterator[tuple[int, dict]]:
    """Yields (number from 1, object) of an array of objects, or of one object a line.

    The number is the line's; in an array, which is in memory as a whole, the object's.

    Raises:
      UserError: for a file that is neither.
    """
    head = next((part.lstrip() for _, part in read_text_parts(path) if part.strip()), "")
    if not head.startswith("["):
        yield from read_json_lines(path)
        return
    expected = "expected an array of objects: [{...}, {...}]"
    text = "".join(part for _, part in read_text_parts(path))
    try:
        records = json.loads(text, object_pairs_hook=as_object)
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}"
        raise UserError(f"{where}: not JSON ({error.msg}); {expected}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); {expected}") from error
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: element {number} is no object; {expected}")
        yield number, record


def read_text_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end)."""
    # What begins at one offset is one line, however long.
    lines = itertools.groupby(read_text_parts(path), key=operator.itemgetter(0))
    for number, parts in lines:
        line = "".join(part for _, part in parts).rstrip("\r\n")
        if "\0" in line:
            raise UserError(
                f"{path}:{number}: the line holds a NUL character, which no text has; is the file "
                "whole, and is it a table?"
            )
        yield number, line


def read_text_parts(
    path: str, on_read: Callable[[int], None] | None = None
) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line with its end); a long line comes in parts.

    `on_read`: see read_lines.

    Raises:
      UserError: for a line that is not UTF-8.
    """
    number, last = 0, -1
    for offset, line in read_lines(path, on_read=on_read):
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
