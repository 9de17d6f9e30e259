"""Reads lines of text files from any byte on, in bounded memory: plain, compressed, Parquet."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import operator
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO

import tensorflow as tf
import zstandard

from albert_tf.storage import parquet
from albert_tf.storage.errors import UserError

_BLOCK_BYTES = 1 << 20
# A longer line is read in parts. Where the parts end depends on the line's bytes alone, so the
# parts are the same wherever reading began.
_MAX_LINE_BYTES = 1 << 20
# Bytes of a Zstandard file to decompress in one call. The output may be 30,000 times as long (a
# block of 128 KB of one character takes 4 bytes).
_ZSTANDARD_BLOCK_BYTES = 1 << 12

_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES = 1 << 12

PARQUET = ".parquet"
# Ending -> name, magic bytes, and the offset of the magic bytes in the file. Rows of Parquet
# are read as JSON lines.
_COMPRESSIONS = {
    ".gz": ("gzip", b"\x1f\x8b\x08", 0),
    ".bz2": ("bzip2", b"1AY&SY", 4),
    ".xz": ("xz", b"\xfd7zXZ\0", 0),
    ".zst": ("Zstandard", b"\x28\xb5\x2f\xfd", 0),
    PARQUET: ("Parquet", b"PAR1\x15", 0),
}
# First bytes of files that spreadsheets and databases write -> advice for the user.
_NO_TEXT = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook (.xlsx); unpack it, or save the sheet as "
    "'CSV UTF-8'",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an Excel workbook (.xls); save the sheet as 'CSV UTF-8'",
}


def is_compressed(path: str) -> bool:
    """Returns whether a file is compressed, by its name's ending; it is not read in ranges."""
    return path.endswith(tuple(_COMPRESSIONS))


def expansion(path: str) -> float:
    """Returns the ratio of decompressed to compressed bytes in a file's first megabyte."""
    with tf.io.gfile.GFile(path, "rb") as file:
        num_bytes = 0
        for block in _decompressed_blocks(path, file):
            num_bytes += len(block)
            if num_bytes >= _BLOCK_BYTES:
                break
        return num_bytes / max(file.tell(), 1)


def ending(path: str) -> str:
    """Returns a name's ending in lower case, compression left out: ".csv" for "A.CSV.gz".

    A Parquet file has ".jsonl", which is what read_lines makes of it.
    """
    stem, suffix = os.path.splitext(path.lower())
    if suffix == PARQUET:
        return ".jsonl"
    return os.path.splitext(stem)[1] if suffix in _COMPRESSIONS else suffix


def read_lines(
    path: str, begin: int = 0, on_read: Callable[[int], None] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, line with its end), from `begin` as if a line began there.

    Lines end in \\n, \\r\\n or \\r. A line longer than 1 MB is yielded in parts, broken at a space
    or at least between characters. All have the line's offset; only the last part has the line end.

    `path` may be local or remote. Its ending selects the decompression; all members or frames of a
    compressed file are read. `begin` is 0 for a compressed file. `on_read` is called about once a
    megabyte with the offset in the (compressed) file up to which lines have been consumed.

    Raises:
      UserError: for UTF-16 text, a damaged file, or a file whose ending does not match its content.
    """
    offset, rest = begin, b""
    used = 0  # bytes of the line at `offset` that have been yielded already
    for block in _read_blocks(path, begin, on_read):
        lines = (rest + block).splitlines(keepends=True)
        # The last line may continue in the next block, and its "\r" may be half a "\r\n".
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


def line_number(path: str, offset: int) -> int:
    """Returns the number, from 1, of the line that begins at `offset`."""
    lines = itertools.groupby(read_lines(path), key=operator.itemgetter(0))
    return 1 + sum(1 for _ in itertools.takewhile(lambda line: line[0] < offset, lines))


def _long_line_parts(line: bytes) -> Iterator[bytes]:
    """Yields parts of a line that is too long, until the rest is short enough."""
    start, end = 0, len(line.rstrip(b"\r\n"))
    while end - start > _MAX_LINE_BYTES:
        stop = line.rfind(b" ", start, start + _MAX_LINE_BYTES) + 1
        if not stop:
            # No space: at least do not cut a character, whose later bytes are 0b10xxxxxx.
            stop = start + _MAX_LINE_BYTES
            stop -= next((i for i in range(4) if line[stop - i] & 0xC0 != 0x80), 0)
        yield line[start:stop]
        start = stop


def _read_blocks(
    path: str, begin: int, on_read: Callable[[int], None] | None = None
) -> Iterator[bytes]:
    """Yields the bytes of a file from `begin` on; no block is empty."""
    with tf.io.gfile.GFile(path, "rb") as file:
        if begin:
            assert not is_compressed(path), f"{path} is compressed"
            _check_head(path, file.read(_HEAD_BYTES))
            file.seek(begin)
        blocks = _decompressed_blocks(path, file) if is_compressed(path) else _blocks(file)
        for number, block in enumerate(blocks):
            if not begin and not number:
                _check_head(path, block[:_HEAD_BYTES])
            yield block
            if on_read:
                on_read(file.tell())


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    # No call after a short block: it would cost time for each of many small files.
    block = file.read(_BLOCK_BYTES)
    while block:
        yield block
        block = file.read(_BLOCK_BYTES) if len(block) == _BLOCK_BYTES else b""


def _decompressed_blocks(path: str, file: tf.io.gfile.GFile) -> Iterator[bytes]:
    suffix = path[path.rindex(".") :]
    openers = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    try:
        if suffix == ".zst":
            yield from _zstandard_blocks(file)
        elif suffix == PARQUET:
            yield from parquet.json_lines(file)
        else:
            yield from _blocks(openers[suffix](file))
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        if getattr(error, "errno", None):
            raise  # a file-system error; an error about damaged bytes has no errno
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: not a whole {_COMPRESSIONS[suffix][0]} file ({reason}); if it is another "
            f"kind of file, give it a name without {suffix}, else fetch it again"
        ) from error


def _zstandard_blocks(file: tf.io.gfile.GFile) -> Iterator[bytes]:
    # Not zstandard's stream_reader, which does not report a truncated file.
    frame = None
    while data := file.read(_ZSTANDARD_BLOCK_BYTES):
        while data:
            if frame is None:
                frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            if block := frame.decompress(data):
                yield block
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError("it ends inside a frame")


def _check_head(path: str, head: bytes) -> None:
    """Raises a UserError if the first bytes of a file cannot be UTF-8 text."""
    if head.startswith(_UTF16_BOMS) or _looks_like_utf16(head):
        raise UserError(
            f"{path}: this is UTF-16 text; convert the file to UTF-8, for example with "
            "iconv -f UTF-16 -t UTF-8"
        )
    for magic, what in _NO_TEXT.items():
        if head.startswith(magic):
            raise UserError(f"{path}: this is {what}")
    for suffix, (name, magic, place) in _COMPRESSIONS.items():
        if head.startswith(magic, place):
            raise UserError(f"{path}: this is a {name} file; give it a name that ends in {suffix}")


def _looks_like_utf16(head: bytes) -> bool:
    """Returns whether a tenth of the even bytes are NUL and no odd byte is, or vice versa."""
    nuls = sorted([head[0::2].count(0), head[1::2].count(0)])
    return nuls[0] == 0 and nuls[1] > 2 and nuls[1] > len(head) / 20
