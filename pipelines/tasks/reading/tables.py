"""Tables of examples: CSV, TSV, JSON lines and arrays; every error names file and line."""

from __future__ import annotations

import csv
import decimal
import difflib
import io
import itertools
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence

from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from ...data.text_files import ending
from .rows import read_json_lines, read_json_objects, read_quoted_rows, read_unquoted_rows

# Ending of a name -> the separator of columns.
_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_JSON_LINES, _JSON = ".jsonl", ".json"
QUOTING = ("csv", "none")

_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_LABEL = 500  # characters
# Beyond it the square, which a loss takes, is no float32.
_MAX_NUMBER = 1e18
# A comma with three digits behind it may divide thousands.
_DECIMAL_COMMA = re.compile(r"^([+-]?\d+),(\d{1,2}|\d{4,})$")
_ANY_COMMA = re.compile(r"\s*[+-]?[\d.]*,\d+\s*")
_INVISIBLE = ("Cc", "Cf")  # control characters, and such as U+200B and U+FEFF
# What programs write where there is no value. "None" and "NA" are labels of real sets.
_MISSING = ("nan", "-nan", "<na>", "#n/a", "nat")


def read_table(
    path: str,
    columns: Sequence[str],
    header: Sequence[str] | None = None,
    leave_out_broken_rows: bool = False,
    quoting: str = "csv",
    absent: str | None = None,
) -> Iterator[tuple[int, dict]]:
    """Yields (line number from 1, the values of `columns` by name) for each row.

    Blank lines are no rows, except in a table of one column, where they are empty texts.

    Args:
      path: .csv (of commas or semicolons: rows.read_quoted_rows), .tsv or .txt, whose values are
        strings; .jsonl, whose lines are objects; .json, an array of objects or an object a line.
        All of them also compressed.
      columns: their names.
      header: the names of all columns of a file that does not begin with them.
      leave_out_broken_rows: pass over rows with a wrong number of columns, and say how many.
      quoting: "csv": as rows.read_quoted_rows; "none": a quotation mark is a character like any
        other. JSON has its own.
      absent: a field that the first object of JSON lacks; so no other may have it.

    Raises:
      UserError: for a file that is no such table, lacks a column or has no rows.
    """
    if _separator(path):
        rows = _read_cells(path, columns, header, leave_out_broken_rows, quoting)
    else:
        rows = _read_json(path, columns, absent)
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise UserError(f"{path}: no rows; expected {', '.join(columns)} of at least one example")


def column_names(path: str, quoting: str = "csv") -> list[str]:
    """Returns the names of a table's columns: its header, or the fields of its first object.

    Raises:
      UserError: for a file that is no table.
    """
    if _separator(path):
        return next(_rows_of_cells(path, quoting), (1, []))[1]
    return list(next(_json_objects(path), (1, {}))[1])


def has_answers(path: str, column: str, quoting: str = "csv") -> bool:
    """Returns whether a table, which may be without answers, has the column of the answers.

    Raises:
      UserError: if it has a column whose name is almost the same.
    """
    names = column_names(path, quoting)
    if column in names:
        return True
    if close := _close_name(column, names):
        raise UserError(
            f"{path}: no column {column!r}, but {close!r}: rename it if it holds the answers; if "
            f"there are none, give {close!r} a name that is less like {column!r}"
        )
    return False


def _close_name(name: str, names: Sequence[str]) -> str | None:
    plain = {label_key(other): other for other in names}
    found = difflib.get_close_matches(label_key(name), plain, n=1, cutoff=0.75)
    return plain[found[0]] if found else None


def _separator(path: str) -> str | None:
    """Returns the separator of a file's columns; None: it is JSON.

    Raises:
      UserError: if the ending of its name is none of a table.
    """
    if ending(path) in (_JSON_LINES, _JSON):
        return None
    if ending(path) not in _SEPARATORS:
        raise UserError(
            f"{path}: expected a name that ends in .csv (columns between commas), .tsv, .txt "
            "(between tabs; all three with the columns' names in the first line), .jsonl (one "
            "object a line) or .json (also an array of objects), compressed or not"
        )
    return _SEPARATORS[ending(path)]


def _json_objects(path: str) -> Iterator[tuple[int, dict]]:
    return read_json_objects(path) if ending(path) == _JSON else read_json_lines(path)


def _rows_of_cells(path: str, quoting: str) -> Iterator[tuple[int, list[str]]]:
    read = read_quoted_rows if quoting == "csv" else read_unquoted_rows
    return read(path, _separator(path))


def _read_cells(
    path: str,
    columns: Sequence[str],
    header: Sequence[str] | None,
    leave_out_broken_rows: bool,
    quoting: str,
) -> Iterator[tuple[int, dict]]:
    rows = _rows_of_cells(path, quoting)
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
    # Behind a byte order mark quotation marks are characters.
    first = cells[0].removeprefix("\ufeff").strip('"')
    return [cell.strip().casefold() for cell in (first, *cells[1:])] == [
        name.strip().casefold() for name in header
    ]


def _check_header(path: str, line: int, header: Sequence[str], columns: Sequence[str]) -> None:
    """Raises a UserError unless the header has each of the columns once."""
    if not header:
        raise UserError(f"{path}:{line}: empty; expected a line with the names of the columns")
    for column in columns:
        if header.count(column) == 1:
            continue
        found = "several columns" if column in header else "no column"
        hint = ""
        if len(header) == 1:
            others = {";": "';'", ",": "commas", "\t": "tabs"}
            mark = next((name for mark, name in others.items() if mark in header[0]), "")
            hint = f"; its columns seem to stand between {mark}: name or save it accordingly"
            hint *= bool(mark)
        elif ending(path) == ".csv" and any(";" in name for name in header):
            hint = "; if ';' divides its columns, begin the file with the line sep=;"
        raise UserError(
            f"{path}:{line}: {found} {column!r}; expected a line with the names of the columns, "
            f"found {_listed(header)}{hint}"
        )


def _read_json(path: str, columns: Sequence[str], absent: str | None) -> Iterator[tuple[int, dict]]:
    for number, record in _json_objects(path):
        require_fields(record, columns, f"{path}:{number}", absent)
        yield number, {column: record[column] for column in columns}


def require_fields(
    record: dict, columns: Sequence[str], where: str, absent: str | None = None
) -> None:
    """Checks that a JSON object has some fields.

    Args:
      record: a JSON object of a file.
      columns: names of the fields that it must have.
      where: file and line, for the error message.
      absent: as of read_table.

    Raises:
      UserError: if it lacks one, or has `absent`.
    """
    if absent in record:
        raise UserError(
            f"{where}: a field {absent!r}, which the first object lacks: give it to all, or to none"
        )
    for column in columns:
        if column not in record:
            raise UserError(f"{where}: no field {column!r}; the object has {_listed(record)}")


def as_text(value: object, column: str, where: str) -> str:
    """Returns a value that is text, which may be empty.

    Args:
      value: a cell of a table, or a value of a JSON object.
      column: its column or field, for the error message.
      where: file and line, for the error message.

    Raises:
      UserError: if it is something else.
    """
    if not isinstance(value, str):
        raise UserError(f"{where}: {column!r} is {_shown(value)}, expected text")
    # JSON can spell halves of characters, which are no text.
    return _SURROGATE.sub("\ufffd", value)


def as_label(value: object, column: str, where: str) -> str:
    """Returns a value that names a class: text that is not empty, a whole number or a truth value.

    A long text names no class: the column may hold the texts.

    Raises:
      UserError: if it is something else.
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
    """Returns what labels share that are hardly meant to differ.

    They differ only in case, spaces, invisible characters, or the form of a number or truth value.
    """
    plain = unicodedata.normalize("NFKC", label).casefold()
    key = "".join(c for c in plain if unicodedata.category(c) not in _INVISIBLE and not c.isspace())
    key = {"true": "1", "false": "0"}.get(key, key)
    try:
        # -0 is 0. A float would make one number of long ones.
        return str(decimal.Decimal(_DECIMAL_COMMA.sub(r"\1.\2", key)).normalize() + 0)
    except decimal.InvalidOperation:
        return key


def check_labels(places: Mapping[str, str]) -> None:
    """Refuses labels that were found in data and are hardly meant.

    Labels that differ only in form are not merged: the owner of the file decides what is meant.

    Args:
      places: label -> file and line where it occurs first.

    Raises:
      UserError: for two labels with the same label_key, and for what programs write for a missing
        value.
    """
    seen: dict[str, str] = {}
    for label in sorted(places):
        remedy = "correct the file, or list all labels in --labels if it is meant"
        if label.casefold() in _MISSING:
            raise UserError(f"{places[label]}: {label!r} spells that there is no label; {remedy}")
        other = seen.setdefault(label_key(label), label)
        if other != label:
            where = ", ".join(dict.fromkeys((places[other], places[label])))
            raise UserError(
                f"{where}: labels {other!r} and {label!r} differ only in case, spaces, invisible "
                f"characters, or the form of a number or truth value; {remedy}"
            )


def listed_labels(labels: Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns the labels of --labels, None where there are none.

    Raises:
      UserError: if there are fewer than two, or one twice.
    """
    if not labels:
        return None
    if len(set(labels)) < max(2, len(labels)):
        raise UserError(f"--labels={','.join(labels)}: expected two different labels or more")
    return tuple(labels)


def as_number(value: object, column: str, where: str) -> float:
    """Returns a value that is a finite number, or text that spells one.

    Raises:
      UserError: if it is something else, or too great for a loss in float32.
    """
    try:
        # Python reads 1_000 as a number.
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
    """Writes columns of one length as CSV or TSV, by the path's ending, that read_table reads."""
    rows = itertools.chain([columns], zip(*columns.values()))
    separator = "," if path.endswith(".csv") else "\t"
    files.write_atomically(path, "".join(quoted_row(row, separator) for row in rows))


def quoted_row(cells: Iterable[object], separator: str) -> str:
    """Returns a line of CSV or TSV that read_table and pandas read.

    Lists become JSON. JSON can spell NUL, but no table can hold it: U+FFFD replaces it.
    """
    buffer = io.StringIO()
    # Before Python 3.13 the writer quotes only those line ends that it writes itself, and readers
    # divide a row at a carriage return.
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
