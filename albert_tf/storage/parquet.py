"""Reads Parquet files. No other module imports pyarrow, which is imported lazily."""

import json
import uuid
from collections.abc import Iterator

import tensorflow as tf

from albert_tf.storage.errors import UserError


def json_lines(file: tf.io.gfile.GFile) -> Iterator[bytes]:
    """Converts a Parquet file to JSON lines, one per row, and yields them in blocks.

    Dates, times, decimals and UUIDs are converted to strings, as in a CSV. Bytes, and values that
    Python cannot represent, are converted to an object, which is not mistaken for text. Raises an
    OSError if the file is damaged, a UserError if several columns have the same name.
    """
    import pyarrow
    from pyarrow import parquet

    file.closed = False  # pyarrow requires this attribute, which GFile does not have
    try:
        # Without buffer_size, or with pre_buffer, pyarrow reads entire row groups.
        table = parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
        names = table.schema_arrow.names
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"{file.name}: several columns {twice!r}: rename all but one")
        for batch in table.iter_batches(64):  # kept in memory; a row may be as long as a book
            columns = [_values(column, pyarrow) for column in batch.columns]
            records = (dict(zip(names, row)) for row in zip(*columns))
            lines = (json.dumps(r, ensure_ascii=False, default=_no_text) + "\n" for r in records)
            yield "".join(lines).encode()
    except UserError:
        raise
    except (pyarrow.ArrowException, OverflowError, ValueError) as error:
        raise OSError(str(error)) from error


def _values(column, pyarrow) -> list:
    kinds = pyarrow.types
    is_text = kinds.is_temporal(column.type) or kinds.is_decimal(column.type)
    try:
        return (column.cast(pyarrow.string()) if is_text else column).to_pylist()
    except (ValueError, LookupError, OverflowError):
        return [_value(scalar) for scalar in column]


def _value(scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, LookupError, OverflowError) as error:
        # Python has no such value, for example a nanosecond. It matters only if it is used.
        return {str(scalar.type): str(error)[:60]}


def _no_text(value: object) -> str | dict[str, str]:
    if isinstance(value, uuid.UUID):
        return str(value)
    return {type(value).__name__: str(value)[:60]}
