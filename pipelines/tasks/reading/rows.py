"""Reads the raw rows of a file (cells or JSON objects) with their line numbers."""

import csv
import itertools
import json
import operator
import re
from collections.abc import Iterator
from typing import Any

from albert_tf.storage.errors import UserError
from ...data.text_files import read_lines

# Maximum characters per cell, so that an unclosed quotation mark does not fill the memory.
_MAX_CELL = 1 << 26
# Matches a comma or semicolon that is part of a text, not a column separator, as in "1,000".
_IN_PROSE = {mark: re.compile(rf"{mark}\s|\d{mark}\d") for mark in ",;"}
# Matches the optional first line of Excel's CSV files, which defines the column separator.
_SEPARATOR_LINE = re.compile(r'"?sep=([,;|\t])"?')
_MAX_HEADER_LINES = 20
_QUOTED = re.compile(r'"[^"]*("|$)')

Place = int | str


def read_cells(path: str, separator: str, quoting: str) -> Iterator[tuple[Place, list[str]]]:
    """Yields (place, cells) for each row. A blank line has no cells.

    The place is the number of the row's first line, from 1. If an earlier cell contains line ends,
    the row number that spreadsheets show is added: "7 (row 5)".

    If `separator` is ",", the file may use another separator. A first line such as `sep=;` defines
    it and is not a row. Otherwise the separator is a semicolon if the first row has semicolons and
    no comma outside quotation marks.
    """
    lines: Iterator[str] = (line for _, line in read_text_lines(path))
    first = 1
    if separator == "," and (head := [*itertools.islice(lines, 1)]):
        if named := _SEPARATOR_LINE.fullmatch(head[0]):
            separator, first = named[1], 2
        else:
            names = _QUOTED.sub("", head[0])
            # If the first line has an open quotation and no separator, read on to its end.
            while (
                quoting == "csv" and "".join(head).count('"') % 2 and not re.search("[,;]", names)
            ):
                if len(head) == _MAX_HEADER_LINES or (line := next(lines, None)) is None:
                    break
                head.append(line)
                names = _QUOTED.sub("", "\n".join(head))
            lines = itertools.chain(head, lines)
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

    Line ends in cells become \\n. Parsing is strict, because a lenient parser would silently join
    rows of files without quoting.

    Raises:
      UserError: if the quoting is wrong, or if each line of a multi-line row looks like a complete
        row. In this case the quotation marks are probably part of the text.
    """
    csv.field_size_limit(_MAX_CELL)
    lines_of_row: list[str] = []

    def lines() -> Iterator[str]:
        for line in plain_lines:
            lines_of_row.append(line)
            yield line + "\n"

    reader = csv.reader(lines(), delimiter=separator, strict=True)
    number, columns = first, None
    try:
        # Spreadsheets do not count a first line `sep=;`.
        for row, cells in enumerate(reader, start=1):
            columns = columns or len(cells)
            is_joined = columns > 1 and len(lines_of_row) > 1
            if is_joined and _are_rows(lines_of_row, separator, columns):
                raise csv.Error(
                    f"a quotation mark here is closed in line {number + len(lines_of_row) - 1} "
                    "only, and each line looks like a row (if it is really a single cell, write "
                    ".jsonl)"
                )
            yield number if number == row else f"{number} (row {row})", cells
            lines_of_row.clear()
            number = reader.line_num + first
    except csv.Error as error:
        what = str(error).replace(
            "unexpected end of data", "a quotation mark opens a cell here and is never closed"
        )
        raise UserError(
            f"{path}:{number}: {what}; expected cells quoted as spreadsheets and pandas write them "
            '("he said ""no"""). If a quotation mark is a character like any other in this file, '
            "pass --quoting=none"
        ) from error


def _are_rows(lines: list[str], separator: str, columns: int) -> bool:
    """Returns whether each line looks like a row of the table, ignoring quotation marks.

    In prose, a comma is followed by a space, a line end or a digit. Between columns this is rare.
    """
    in_prose = _IN_PROSE.get(separator)
    if in_prose and any(in_prose.search(f"{line} ") for line in lines):
        return False
    return all(line.count(separator) == columns - 1 for line in lines)


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

    Raises a UserError, whose message ends with `expected`, if it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for huge numbers and deep nesting
        what = str(error)
        if isinstance(error, json.JSONDecodeError):
            what, line = f"column {error.colno}: {error.msg}", line or error.lineno
        where = f"{path}:{line}" if line else path
        raise UserError(f"{where}: not JSON ({what}); {expected}") from error


def first_character(path: str) -> str:
    """Returns the first character of a text file that is not white space, or ""."""
    return next((line.lstrip()[0] for _, line in read_text_lines(path) if line.strip()), "")


def read_text(path: str) -> str:
    """Returns the content of a text file, with lines separated by \\n."""
    return "\n".join(line for _, line in read_text_lines(path))


def read_text_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without line end and byte order mark).

    Raises a UserError if a line is not UTF-8 or contains NUL.
    """
    # Parts with the same offset belong to one long line.
    lines = itertools.groupby(read_lines(path), key=operator.itemgetter(0))
    for number, (_, parts) in enumerate(lines, start=1):
        line = b"".join(part for _, part in parts)
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}:{number}: byte 0x{line[error.start]:02X} is not UTF-8 ({error.reason}); "
                "convert the file, for example with iconv"
            ) from error
        if "\0" in text:
            raise UserError(
                f"{path}:{number}: the line holds a NUL character, which is not valid in text; is "
                "the file complete, and is it a table?"
            )
        # A file that was joined from several may have a mark in the middle.
        yield number, text.removeprefix("\ufeff")
