"""Reads tables of examples (CSV, TSV, JSON, Parquet). Errors name the file and the line."""

import csv
import dataclasses
import decimal
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

# Maps the ending of a file name to the column separator.
_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
QUOTING = ("csv", "none")

_SURROGATE = re.compile("[\ud800-\udfff]")
# For labels that are numbers: long numbers are not rounded, and 1E3456789 does not overflow.
_EXACT = decimal.Context(prec=500, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
# Does not match a comma before exactly three digits, which may be a thousands separator.
_DECIMAL_COMMA = re.compile(r"^([+-]?\d+),(\d{1,2}|\d{4,})$")
_INVISIBLE = ("Cc", "Cf")  # control characters, U+200B, U+FEFF and the like


def read_table(
    path: str,
    columns: Sequence[str],
    header: Sequence[str] | None = None,
    leave_out_broken_rows: bool = False,
    quoting: str = "csv",
    absent: str | None = None,
) -> Iterator[tuple[Place, dict]]:
    """Yields (place, dict of the values in `columns`) for each row. For places see read_cells.

    Blank lines are skipped. In a table with a single column they are empty texts instead.

    Args:
      path: .csv, .tsv or .txt, with strings as values; .jsonl; .json, an array of objects or one
        object per line. All of these may be compressed. Or .parquet, with rows numbered from 1.
      columns: names of the columns to read.
      header: names of all columns, if the file has no header.
      leave_out_broken_rows: skip rows with a wrong number of columns, and print their number.
      quoting: "csv" or "none", see --quoting. Ignored for JSON.
      absent: a field that is missing in the first JSON object and must be missing in all others.

    Raises:
      UserError: if the file is not such a table, lacks a column or has no rows.
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
    """Returns the column names of a table, from the header or the first JSON object."""
    if separator := _separator(path):
        return next(read_cells(path, separator, quoting), (1, []))[1]
    return list(next(_json_objects(path), (1, {}))[1])


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table. `cells` maps the fields of a task to cells or JSON values.

    `where` is FILE:LINE, or rows[NUMBER] in memory. `id` is the id in the file, or the row number
    if the file has no ids. `columns` maps a field to its column.
    """

    where: str
    id: str
    columns: Mapping[str, str]
    cells: Mapping[str, Any]

    def text(self, field: str) -> str:
        """Returns the text in a cell; see as_text."""
        return as_text(self.cells[field], self.columns[field], self.where)


def read_rows(
    path: str,
    first: int,
    needs_answers: bool,
    columns: Mapping[str, str | None],
    quoting: str = "csv",
    **table_arguments,
) -> Iterator[Row]:
    """Yields the rows of a table. Unless `needs_answers`, the label column may be missing.

    `columns` maps a field to its column or None. Without a column for `id`, rows are numbered from
    `first`. A label column in another case is refused. For other arguments see read_table.
    """
    present = {field: column for field, column in columns.items() if column}
    absent, may_be_absent = None, "label" in present and not needs_answers
    if may_be_absent and present["label"] not in (names := column_names(path, quoting)):
        absent = present.pop("label")
        for name in {*names} - {*present.values()}:
            if name.strip().casefold() == absent.casefold():
                raise UserError(f"{path}: no column {absent!r}, but {name!r}: rename that column")
    rows = read_table(path, [*present.values()], quoting=quoting, absent=absent, **table_arguments)
    yield from as_rows(((f"{path}:{number}", cells) for number, cells in rows), present, first)


def as_rows(
    records: Iterable[tuple[str, Mapping]], columns: Mapping[str, str], first: int = 0
) -> Iterator[Row]:
    """Yields a Row for each (where, cells by column). For other arguments see read_rows."""
    for place, (where, cells) in enumerate(records, start=first):
        name = str(place)
        if "id" in columns:
            name = _as_id(cells[columns["id"]], columns["id"], where)
        yield Row(where, name, columns, {field: cells[columns[field]] for field in columns})


def _separator(path: str) -> str | None:
    """Returns the column separator of a file, or None for JSON."""
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
    """Yields (place, dict of cells). For the arguments see read_table and read_cells."""
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
        if header_line and len(header) > 1 and cells == header:
            raise UserError(
                f"{path}:{number}: the header of line {header_line} again; remove this line"
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
        print(f"{path}: skipped {broken_rows} rows with a wrong number of columns")


def _check_header(path: str, line: Place, header: Sequence[str], columns: Sequence[str]) -> None:
    """Raises a UserError unless the header contains each column exactly once."""
    expected = "expected a line with the names of the columns"
    hint = "; .csv has commas between columns, .tsv tabs" * (len(header) == 1)
    if not header:
        raise UserError(f"{path}:{line}: empty; {expected}")
    for column in columns:
        if header.count(column) == 1:
            continue
        found = "several columns" if column in header else "no column"
        raise UserError(
            f"{path}:{line}: {found} {column!r}; {expected}, found {_listed(header)}{hint}; see "
            "the column flags in --help"
        )


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
                f"{where}: no field {column!r}; the row has {_listed(record)}; see the column "
                "flags in --help, or columns= in Python"
            )


def as_text(value: object, column: str, where: str) -> str:
    """Returns a cell or JSON value. It must be a string, which may be empty."""
    if not isinstance(value, str):
        raise UserError(f"{where}: {column!r} is {_shown(value)}, expected text")
    # JSON can encode lone surrogates, which are not valid text.
    return _SURROGATE.sub("\ufffd", value)


def _as_id(value: object, column: str, where: str) -> str:
    # Predictions with a missing or truncated id cannot be joined with their rows.
    if value in (None, "") or isinstance(value, (dict, list)) or value != value:
        raise UserError(
            f"{where}: {column!r} is {_shown(value)}, expected text or a number as an id"
        )
    return as_text(str(value), column, where)


def as_label(value: object, column: str, where: str) -> str:
    """Converts a value to a label. It must be a non-empty string, an integer or a bool."""
    if not isinstance(value, (str, int)):
        expected = "expected text or a whole number as a label"
        if isinstance(value, float) and value.is_integer():
            expected += "; pandas writes 1 as 1.0 if a row has no label: drop it, then .astype(int)"
        raise UserError(f"{where}: {column!r} is {_shown(value)}, {expected}")
    label = as_text(str(value), column, where).strip()
    if not label:
        raise UserError(f"{where}: {column!r} is {_shown(value)}, expected a label")
    return label


def label_key(label: str) -> str:
    """Returns a key that is equal for labels that are probably meant to be the same.

    It ignores case, spaces, invisible characters, and the format of numbers and truth values.
    """
    plain = unicodedata.normalize("NFKC", label).casefold()
    key = "".join(c for c in plain if unicodedata.category(c) not in _INVISIBLE and not c.isspace())
    key = {"true": "1", "false": "0"}.get(key, key)
    try:
        # float() would merge different long numbers. Adding 0 converts -0 to 0.
        number = _EXACT.create_decimal(_DECIMAL_COMMA.sub(r"\1.\2", key))
        return str(_EXACT.add(number.normalize(_EXACT), 0))
    except decimal.DecimalException:
        return key


def as_number(value: Any, column: str, where: str) -> float:
    """Converts a number or a string to a finite float."""
    try:
        # Refuse 1_000, which float() accepts.
        is_none = isinstance(value, bool) or "_" in str(value)
        number = math.nan if is_none else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        point = "; use a decimal point instead of a comma" if "," in str(value) else ""
        raise UserError(f"{where}: {column!r} is {_shown(value)}, expected a number{point}")
    return number


def write_table(path: str, columns: Mapping[str, Iterable]) -> None:
    """Writes columns of equal length as CSV or TSV, depending on the ending of the path."""
    separator = "," if path.endswith(".csv") else "\t"
    rows = (quoted_row(row, separator) for row in (columns, *zip(*columns.values())))
    files.write_atomically(path, "".join(rows))


def quoted_row(cells: Iterable[object], separator: str) -> str:
    """Formats a line of CSV or TSV that read_table and pandas can read.

    Lists are converted to JSON. NUL is replaced by U+FFFD, because tables cannot contain it.
    """
    buffer = io.StringIO()
    # Before Python 3.13 the writer only quotes the characters of its own line terminator. The
    # terminator includes a carriage return, because readers also split rows there.
    csv.writer(buffer, delimiter=separator, lineterminator="\r\n").writerow(map(_cell, cells))
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def _cell(value: object) -> object:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


def _shown(value: object) -> str:
    try:
        return json.dumps(value, default=lambda other: type(other).__name__)[:60]
    except (TypeError, ValueError):  # keys that are no text, or a list that contains itself
        return type(value).__name__


def _listed(names: Iterable[str]) -> str:
    text = ", ".join(map(repr, names))
    return text if len(text) <= 200 else text[:200] + "..."
