"""Tables of examples: TSV with a header line, or JSON lines; every error names file and line."""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from albert_tf import files
from albert_tf.errors import UserError
from pipelines.data.text_files import read_lines

TSV_EXTENSIONS = (".tsv", ".txt")
JSON_EXTENSIONS = (".jsonl", ".json")

_SURROGATE = re.compile("[\ud800-\udfff]")


def read_table(
    path: str,
    columns: Sequence[str],
    header: Sequence[str] | None = None,
    leave_out_broken_rows: bool = False,
) -> Iterator[tuple[int, dict]]:
    """Yields (line number from 1, the values of `columns` by name) for each row.

    TSV has no quoting: a quotation mark is a character like any other. Blank lines are no rows,
    except in a TSV table of one column.

    Args:
      path: .tsv or .txt, whose values are strings; .jsonl or .json, whose lines are objects.
      columns: their names.
      header: the names of all columns of a TSV file that does not begin with them.
      leave_out_broken_rows: pass over rows with a wrong number of columns, and say how many.

    Raises:
      ValueError: for a file that is no such table, lacks a column or has no rows.
    """
    is_tsv = _name(path).endswith(TSV_EXTENSIONS)
    if not is_tsv and not _name(path).endswith(JSON_EXTENSIONS):
        raise UserError(
            f"{path}: expected a name that ends in {', '.join(TSV_EXTENSIONS)} (columns between "
            f"tabs, their names in the first line) or {', '.join(JSON_EXTENSIONS)} (one object a "
            "line), compressed or not"
        )
    if is_tsv:
        rows = _read_tsv(path, columns, header, leave_out_broken_rows)
    else:
        rows = _read_json(path, columns)
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise UserError(f"{path}: no rows; expected {', '.join(columns)} of at least one example")


def has_column(path: str, column: str) -> bool:
    """Tells whether a table has a column: in its header, or in its first object."""
    if _name(path).endswith(TSV_EXTENSIONS):
        _, first = next(_read_text_lines(path), (1, ""))
        return column in first.split("\t")
    _, record = next(read_json_lines(path), (1, {}))
    return column in record


def _name(path: str) -> str:
    """Returns the path without what says how the file is compressed."""
    return re.sub(r"\.(gz|bz2|xz|zst)$", "", path)


def _read_tsv(
    path: str, columns: Sequence[str], header: Sequence[str] | None, leave_out_broken_rows: bool
) -> Iterator[tuple[int, dict]]:
    lines = _read_text_lines(path)
    if header is None:
        _, first = next(lines, (1, ""))
        if not first:
            raise UserError(f"{path}:1: empty; expected a line with the names of the columns")
        header = first.split("\t")
        for column in columns:
            if header.count(column) != 1:
                found = "several columns" if column in header else "no column"
                raise UserError(
                    f"{path}:1: {found} {column!r}; expected a line with the names of the columns, "
                    f"found {_listed(header)}"
                )
    places = [(column, header.index(column)) for column in columns]
    broken_rows = 0
    for number, line in lines:
        if not line and len(header) > 1:
            continue
        cells = line.split("\t")
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


def _read_json(path: str, columns: Sequence[str]) -> Iterator[tuple[int, dict]]:
    for number, record in read_json_lines(path):
        require_fields(record, columns, f"{path}:{number}")
        yield number, {column: record[column] for column in columns}


def require_fields(record: dict, columns: Sequence[str], where: str) -> None:
    """Checks that a JSON object has some fields.

    Args:
      where: file and line, for the error message.

    Raises:
      ValueError: if it lacks one.
    """
    for column in columns:
        if column not in record:
            raise UserError(f"{where}: no field {column!r}; the object has {_listed(record)}")


def read_json_lines(path: str) -> Iterator[tuple[int, dict]]:
    """Yields (line number from 1, object) for each line that is not blank.

    Raises:
      ValueError: for a line that is not UTF-8 or no JSON object.
    """
    for number, line in _read_text_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            what = getattr(error, "msg", str(error))  # without its "line 1", which is not ours
            raise UserError(
                f"{path}:{number}: not JSON ({what}); expected one object a line"
            ) from error
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: not a JSON object; expected one object a line")
        yield number, record


def _read_text_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its end)."""
    # What begins at one offset is one line, however long.
    lines = itertools.groupby(read_lines(path), key=operator.itemgetter(0))
    for number, (_, parts) in enumerate(lines, start=1):
        line = b"".join(part for _, part in parts).rstrip(b"\r\n")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}:{number}: byte 0x{line[error.start]:02X} is not UTF-8 ({error.reason}); "
                "convert the file, for example with iconv"
            ) from error
        yield number, text.removeprefix("\ufeff") if number == 1 else text  # byte order mark


def as_text(value: object, column: str, where: str) -> str:
    """Returns a value that is text, which may be empty.

    Args:
      where: file and line, for the error message.

    Raises:
      ValueError: if it is something else.
    """
    if not isinstance(value, str):
        raise UserError(f"{where}: {column!r} is {_shown(value)}, expected text")
    # JSON can spell halves of characters, which are no text.
    return _SURROGATE.sub("\ufffd", value)


def as_label(value: object, column: str, where: str) -> str:
    """Returns a value that names a class: text that is not empty, a whole number or a truth value.

    Raises:
      ValueError: if it is something else.
    """
    label = as_text(str(value), column, where).strip()
    if not isinstance(value, (str, int)) or not label:
        raise UserError(f"{where}: {column!r} is {_shown(value)}, expected a label")
    return label


def as_number(value: object, column: str, where: str) -> float:
    """Returns a value that is a finite number, or text that spells one.

    Raises:
      ValueError: if it is something else.
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: {column!r} is {_shown(value)}, expected a number")
    return number


def write_table(path: str, columns: Mapping[str, Iterable]) -> None:
    """Writes columns of one length as TSV; white space inside of a cell becomes a space."""
    rows = itertools.chain([columns], zip(*columns.values()))
    lines = ("\t".join(" ".join(str(cell).split()) for cell in row) for row in rows)
    files.write_atomically(path, "".join(line + "\n" for line in lines))


def _shown(value: object) -> str:
    return json.dumps(value)[:60]


def _listed(names: Iterable[str]) -> str:
    text = ", ".join(map(repr, names))
    return text if len(text) <= 200 else text[:200] + "..."
