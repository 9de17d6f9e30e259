"""Reads tables of examples: CSV, TSV, JSON, Parquet; errors name file and line."""

from __future__ import annotations

import csv
import dataclasses
import decimal
import difflib
import io
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from ...data.text_files import ending
from .rows import Place, read_cells, read_json_objects

# Ending of a name -> the separator of columns.
_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
QUOTING = ("csv", "none")

_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_LABEL = 500  # characters
# The square of a larger number, which the loss computes, may overflow float32.
_MAX_NUMBER = 1e18
# A comma before exactly three digits may divide thousands.
_DECIMAL_COMMA = re.compile(r"^([+-]?\d+),(\d{1,2}|\d{4,})$")
_ANY_COMMA = re.compile(r"\s*[+-]?[\d.]*,\d+\s*")
_INVISIBLE = ("Cc", "Cf")  # control characters, U+200B, U+FEFF and the like


def read_table(
    path: str,
    columns: Sequence[str],
    header: Sequence[str] | None = None,
    leave_out_broken_rows: bool = False,
    quoting: str = "csv",
    absent: str | None = None,
) -> Iterator[tuple[Place, dict]]:
    """Yields (line number from 1, the values of `columns` by name) for each row; see read_cells.

    Blank lines are skipped, except in a table of one column, where they are empty texts.

    Args:
      path: .csv (commas or semicolons: rows.read_cells), .tsv or .txt, whose values are strings;
        .jsonl, one object per line; .json, an array of objects or one object per line. All also
        compressed. .parquet, whose rows are numbered from 1.
      columns: their names.
      header: the names of all columns, for a file without a header.
      leave_out_broken_rows: skip rows with a wrong number of columns, and print their number.
      quoting: "csv": as spreadsheets and pandas quote; "none": a quotation mark is a character like
        any other. JSON has its own.
      absent: a field that the first JSON object lacks, so no other object may have it.

    Raises:
      UserError: for a file that is not such a table, lacks a column or has no rows.
    """
    if separator := _separator(path):
        cells = read_cells(path, separator, quoting)
        rows = _named_cells(path, cells, columns, header, leave_out_broken_rows)
    else:
        rows = _read_json(path, columns, absent)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path}: no rows; expected at least one")
    yield first
    yield from rows


def column_names(path: str, quoting: str = "csv") -> list[str]:
    """Returns the names of a table's columns: its header, or the fields of its first object."""
    if separator := _separator(path):
        return next(read_cells(path, separator, quoting), (1, []))[1]
    return list(next(_json_objects(path), (1, {}))[1])


@dataclasses.dataclass(frozen=True)
class Row:
    """The cells or JSON values of a row, by the fields of a task.

    `where` is FILE:LINE; `id` the row's name in the file, or its number; `columns` field -> column.
    """

    where: str
    id: str
    columns: Mapping[str, str]
    cells: Mapping[str, Any]

    def text(self, field: str) -> str:
        """Returns a cell that must be text; see as_text."""
        return as_text(self.cells[field], self.columns[field], self.where)


def read_rows(
    path: str,
    first: int,
    needs_answers: bool,
    columns: Mapping[str, str | None],
    quoting: str = "csv",
    **table_arguments,
) -> Iterator[Row]:
    """Yields the rows of a table; without `label` if it may lack answers and does.

    `columns` are field -> column, None: there is no such column. Rows without a column `id` are
    numbered from `first` on. For other arguments see read_table.

    Raises:
      UserError: see read_table; or a column has almost the name of a missing `label`.
    """
    present = {field: column for field, column in columns.items() if column}
    absent = None
    if not needs_answers and "label" in present and not _has_label(path, columns, quoting):
        absent = present.pop("label")
    rows = read_table(path, [*present.values()], quoting=quoting, absent=absent, **table_arguments)
    for place, (number, cells) in enumerate(rows, start=first):
        where, name = f"{path}:{number}", str(place)
        if "id" in present:
            name = as_text(str(cells[present["id"]]), present["id"], where)
        yield Row(where, name, present, {field: cells[present[field]] for field in present})


def _has_label(path: str, columns: Mapping[str, str | None], quoting: str) -> bool:
    column = columns["label"]
    names = column_names(path, quoting)
    if column in names:
        return True
    plain = {label_key(name): name for name in names}
    if found := difflib.get_close_matches(label_key(column), plain, n=1, cutoff=0.75):
        close = plain[found[0]]
        raise UserError(
            f"{path}: no column {column!r}, but {close!r}: rename it if it holds the answers; if "
            f"there are none, give {close!r} a name that is less like {column!r}"
        )
    return False


def _separator(path: str) -> str | None:
    """Returns the separator of a file's columns; None for JSON."""
    if ending(path) in (".json", ".jsonl"):
        return None
    if ending(path) not in _SEPARATORS:
        raise UserError(
            f"{path}: expected a name that ends in .csv (columns between commas), .tsv, .txt "
            "(between tabs; all three with the columns' names in the first line), .jsonl (one "
            "object a line) or .json (also an array of objects), compressed or not, or .parquet"
        )
    return _SEPARATORS[ending(path)]


def _json_objects(path: str) -> Iterator[tuple[int, dict]]:
    return read_json_objects(path, may_be_array=ending(path) == ".json")


def _named_cells(
    path: str,
    rows: Iterator[tuple[Place, list[str]]],
    columns: Sequence[str],
    header: Sequence[str] | None,
    leave_out_broken_rows: bool,
) -> Iterator[tuple[Place, dict]]:
    """Yields line numbers and cells by name; for the arguments see read_table and read_cells."""
    header_line = None
    if header is None:
        header_line, header = next(rows, (1, []))
        _check_header(path, header_line, header, columns)
    places = [(column, header.index(column)) for column in columns]
    broken_rows = 0
    for number, cells in rows:
        if not cells:
            if len(header) > 1:
                continue
            cells = [""]
        if header_line and len(header) > 1 and _is_header(cells, header):
            raise UserError(
                f"{path}:{number}: the header of line {header_line} again: files seem to have been "
                "put one after the other; remove this line, or give the files one by one"
            )
        if len(cells) == len(header):
            yield number, {column: cells[place] for column, place in places}
        elif leave_out_broken_rows:
            broken_rows += 1
        else:
            raise UserError(
                f"{path}:{number}: {len(cells)} columns, expected {len(header)}: {_listed(header)}"
            )
    if broken_rows:
        print(f"{path}: {broken_rows} rows without all of their columns left out")


def _is_header(cells: Sequence[str], header: Sequence[str]) -> bool:
    # After a byte order mark the csv module treats quotation marks as characters.
    first = cells[0].removeprefix("\ufeff").strip('"')
    return [cell.strip().casefold() for cell in (first, *cells[1:])] == [
        name.strip().casefold() for name in header
    ]


def _check_header(path: str, line: Place, header: Sequence[str], columns: Sequence[str]) -> None:
    """Raises a UserError unless the header has each of the columns once."""
    expected = "expected a line with the names of the columns"
    if not header:
        raise UserError(f"{path}:{line}: empty; {expected}")
    for column in columns:
        if header.count(column) == 1:
            continue
        found = "several columns" if column in header else "no column"
        raise UserError(
            f"{path}:{line}: {found} {column!r}; {expected}, found {_listed(header)}"
            f"{_hint_at_separator(path, header)}; see --text_column and others"
        )


def _hint_at_separator(path: str, header: Sequence[str]) -> str:
    if len(header) == 1:
        for mark, name in {";": "';'", ",": "commas", "\t": "tabs"}.items():
            if mark in header[0]:
                return f"; its columns seem to stand between {name}: name or save it accordingly"
    elif ending(path) == ".csv" and any(";" in name for name in header):
        return "; if ';' divides its columns, begin the file with the line sep=;"
    return ""


def _read_json(path: str, columns: Sequence[str], absent: str | None) -> Iterator[tuple[int, dict]]:
    for number, record in _json_objects(path):
        require_fields(record, columns, f"{path}:{number}", absent)
        yield number, {column: record[column] for column in columns}


def require_fields(
    record: dict, columns: Sequence[str], where: str, absent: str | None = None
) -> None:
    """Raises a UserError if a JSON object lacks one of the fields, or has the field `absent`."""
    if absent in record:
        raise UserError(
            f"{where}: a field {absent!r}, which the first object lacks: give it to all, or to none"
        )
    for column in columns:
        if column not in record:
            raise UserError(
                f"{where}: no field {column!r}; the object has {_listed(record)}; see "
                "--text_column and others"
            )


def as_text(value: object, column: str, where: str) -> str:
    """Returns a cell or JSON value, which must be text; it may be empty."""
    if not isinstance(value, str):
        raise UserError(f"{where}: {column!r} is {_shown(value)}, expected text")
    # JSON can encode lone surrogates, which are not valid text.
    return _SURROGATE.sub("\ufffd", value)


def as_label(value: object, column: str, where: str) -> str:
    """Returns a value that names a class: non-empty text, a whole number or a truth value.

    A long text is refused: the column may hold the texts.
    """
    label = as_text(str(value), column, where).strip()
    if not isinstance(value, (str, int)) or not label:
        raise UserError(f"{where}: {column!r} is {_shown(value)}, expected a label")
    if len(label) > _MAX_LABEL:
        raise UserError(
            f"{where}: {column!r} has {len(label):,} characters, expected a label of at most "
            f"{_MAX_LABEL}: does it hold the texts?"
        )
    return label


def label_key(label: str) -> str:
    """Returns a key that is equal for labels that are probably meant to be the same.

    It ignores case, spaces, invisible characters, and the form of a number or truth value.
    """
    plain = unicodedata.normalize("NFKC", label).casefold()
    key = "".join(c for c in plain if unicodedata.category(c) not in _INVISIBLE and not c.isspace())
    key = {"true": "1", "false": "0"}.get(key, key)
    try:
        # + 0: -0 becomes 0. Not float, which would merge different long numbers.
        return str(decimal.Decimal(_DECIMAL_COMMA.sub(r"\1.\2", key)).normalize() + 0)
    except decimal.InvalidOperation:
        return key


def as_number(value: object, column: str, where: str) -> float:
    """Returns a finite number, given as a number or as text."""
    try:
        # Refuse 1_000, which float() accepts.
        is_none = isinstance(value, bool) or "_" in str(value)
        number = math.nan if is_none else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        point = ""
        if _ANY_COMMA.fullmatch(str(value)):
            point = "; write a decimal point for a decimal comma, and nothing between thousands"
        raise UserError(f"{where}: {column!r} is {_shown(value)}, expected a number{point}")
    if abs(number) > _MAX_NUMBER:
        raise UserError(
            f"{where}: {column!r} is {_shown(value)}, expected a number up to {_MAX_NUMBER:.0e}: "
            "the loss squares it in float32; give the numbers in another unit"
        )
    return number


def write_table(path: str, columns: Mapping[str, Iterable]) -> None:
    """Writes columns of equal length as CSV or TSV, by the path's ending, for read_table."""
    separator = "," if path.endswith(".csv") else "\t"
    rows = (quoted_row(row, separator) for row in (columns, *zip(*columns.values())))
    files.write_atomically(path, "".join(rows))


def quoted_row(cells: Iterable[object], separator: str) -> str:
    """Returns a line of CSV or TSV that read_table and pandas read.

    Lists become JSON. Tables cannot hold NUL: U+FFFD replaces it.
    """
    buffer = io.StringIO()
    # Before Python 3.13 the writer quotes only the line ends that it writes itself, but readers
    # divide a row at a carriage return, too.
    csv.writer(buffer, delimiter=separator, lineterminator="\r\n").writerow(map(_cell, cells))
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def _cell(value: object) -> object:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


def _shown(value: object) -> str:
    return json.dumps(value)[:60]


def _listed(names: Iterable[str]) -> str:
    text = ", ".join(map(repr, names))
    return text if len(text) <= 200 else text[:200] + "..."
