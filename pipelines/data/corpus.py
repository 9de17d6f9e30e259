"""Streaming readers of text: lines of a file, documents of a byte range; memory does not grow."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf

_BLOCK_BYTES = 1 << 20
# A longer line is read in parts. Only its first bytes decide where the parts end, so the same line
# gives the same parts wherever reading began.
_MAX_LINE_BYTES = 1 << 20

_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


class Sentence(NamedTuple):
    """One sentence: a line that is not blank, without the white space around it."""

    document_offset: int  # byte of the file at which the first sentence of its document begins
    text: str


def read_lines(
    path: str, on_decode_error: str = "error", counts: Counter | None = None
) -> Iterator[str]:
    """Yields the lines of a UTF-8 text file without their ends, which are \\n, \\r\\n or \\r.

    A byte order mark is dropped. A line longer than 1 MB comes in parts, broken at a space.

    Args:
      path: any file tf.io.gfile reads; a name that ends in .gz is decompressed.
      on_decode_error: "error", or "skip" to leave out lines that are not UTF-8.
      counts: where given, its "skipped_lines" counts what was left out.

    Raises:
      ValueError: for a line that is not UTF-8, UTF-16 text or a damaged .gz file.
    """
    for offset, line in _read_raw_lines(path, 0):
        text = _decode(path, offset, line, on_decode_error, counts)
        if text is not None:
            yield text


def read_documents(
    path: str,
    begin: int = 0,
    end: int | None = None,
    on_decode_error: str = "error",
    counts: Counter | None = None,
) -> Iterator[Sentence]:
    """Yields the sentences of the documents that belong to a byte range of a file, in order.

    Lines are sentences; blank lines, after str.strip(), separate documents. A document belongs to
    the range in which the blank line before it begins, the first of a file to the range that
    begins at 0: so ranges that share out the bytes of a file share out its documents, and nobody
    has to look back further than one byte. Every document is read to its end, even past `end`.

    Args:
      path: as in `read_lines`. In a .gz file bytes are counted after decompression.
      begin: first byte of the range.
      end: the byte after the last one; None for the end of the file.
      on_decode_error: as in `read_lines`. A line left out does not end its document.
      counts: as in `read_lines`.

    Raises:
      ValueError: as `read_lines`.
    """
    assert begin >= 0 and (end is None or begin < end), (begin, end)
    document = None  # the offset of the document we are in
    is_ours = begin == 0
    # One byte before the range tells whether a line begins with it: what is read from there up to
    # the first line end is no line of ours.
    for offset, line in _read_raw_lines(path, max(begin - 1, 0)):
        if offset < begin:
            continue
        if is_ours:
            text = _decode(path, offset, line, on_decode_error, counts)
            if text is None:
                continue
        else:
            text = line.decode("utf-8", errors="replace")
        text = text.strip()
        if not text:
            if end is not None and offset >= end:
                return
            document, is_ours = None, True
        elif is_ours:
            if document is None:
                document = offset
            yield Sentence(document, text)


def is_compressed(path: str) -> bool:
    """Tells whether a file has to be decompressed: then it cannot be read in ranges."""
    return path.endswith(".gz")


def _decode(
    path: str, offset: int, line: bytes, on_decode_error: str, counts: Counter | None
) -> str | None:
    """Returns the text of a line without its end, or None if it is to be left out."""
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        if on_decode_error == "skip":
            if counts is not None:
                counts["skipped_lines"] += 1
            return None
        raise ValueError(
            f"{path}:{_line_number(path, offset)}: byte 0x{line[error.start]:02X} is not UTF-8 "
            f"({error.reason}); convert the file, for example with iconv, or pass "
            "--on_decode_error=skip to leave such lines out"
        ) from error
    return text if offset else text.removeprefix("\ufeff")  # the byte order mark


def _line_number(path: str, offset: int) -> int:
    """Returns the number, from 1, of the line that begins at `offset`."""
    line_ends, position, after_cr = 0, 0, False
    for block in _read_blocks(path, 0):
        block = block[: offset - position]
        position += len(block)
        line_ends += block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")
        line_ends -= after_cr and block.startswith(b"\n")
        after_cr = block.endswith(b"\r")
        if position == offset:
            break
    return line_ends + 1


def _read_raw_lines(path: str, begin: int) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, line with its end), from `begin` as if a line began there.

    The parts of a line longer than _MAX_LINE_BYTES all have the offset of that line.
    """
    offset, rest = begin, b""
    used = 0  # bytes of the line at `offset` that have been yielded already
    for block in _read_blocks(path, begin):
        lines = (rest + block).splitlines(keepends=True)
        # The last line may go on in the next block, and its "\r" may be half a "\r\n".
        rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        for line in lines:
            size = len(line)
            if size > _MAX_LINE_BYTES:
                for part in _long_line_parts(line):
                    yield offset, part
                    line = line[len(part) :]
            yield offset, line
            offset += used + size
            used = 0
        for part in _long_line_parts(rest):
            yield offset, part
            rest = rest[len(part) :]
            used += len(part)
    if rest:
        yield offset, rest


def _long_line_parts(line: bytes) -> Iterator[bytes]:
    """Yields the first parts of a line that is too long, up to a last one that is not."""
    start, end = 0, len(line.rstrip(b"\r\n"))
    while end - start > _MAX_LINE_BYTES:
        stop = line.rfind(b" ", start, start + _MAX_LINE_BYTES) + 1
        if not stop:
            # No space: at least do not cut a character, whose later bytes are 0b10xxxxxx.
            stop = start + _MAX_LINE_BYTES
            stop -= next((i for i in range(4) if line[stop - i] & 0xC0 != 0x80), 0)
        yield line[start:stop]
        start = stop


def _read_blocks(path: str, begin: int) -> Iterator[bytes]:
    """Yields the bytes of a file from `begin` on.

    Raises:
      ValueError: for UTF-16 text or a damaged .gz file.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        stream = gzip.GzipFile(fileobj=file) if is_compressed(path) else file
        try:
            if stream.read(2) in _UTF16_BOMS:
                raise ValueError(
                    f"{path}: this is UTF-16 text; convert the file to UTF-8, for example with "
                    "iconv -f UTF-16 -t UTF-8"
                )
            stream.seek(begin)
            while block := stream.read(_BLOCK_BYTES):
                yield block
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"{path}: not a whole gzip file ({error}); if it is plain text, give it a name "
                "without .gz"
            ) from error
