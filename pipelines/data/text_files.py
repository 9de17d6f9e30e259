"""Reads the lines of plain, compressed and Parquet text files in bounded memory."""

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
# Longer lines are read in parts. The parts depend only on the bytes of the line, so they are the
# same for every offset at which reading starts.
_MAX_LINE_BYTES = 1 << 20
# Number of bytes of a Zstandard file to decompress per call. The output can be 30,000 times as long
# (a 128 KB block of one repeated character is compressed to 4 bytes).
_ZSTANDARD_BLOCK_BYTES = 1 << 12

_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES = 1 << 12

PARQUET = ".parquet"
# Maps a file extension to the format's name, its magic bytes, and the offset of the magic bytes in
# the file. Rows of Parquet files are read as JSON lines.
_COMPRESSIONS = {
    ".gz": ("gzip", b"\x1f\x8b\x08", 0),
    ".bz2": ("bzip2", b"1AY&SY", 4),
    ".xz": ("xz", b"\xfd7zXZ\0", 0),
    ".zst": ("Zstandard", b"\x28\xb5\x2f\xfd", 0),
    PARQUET: ("Parquet", b"PAR1\x15", 0),
}
# Maps the magic bytes of unsupported file types to a description and advice for the user.
_NO_TEXT = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook (.xlsx); unpack it, or save the sheet as "
    "'CSV UTF-8'",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an Excel workbook (.xls); save the sheet as 'CSV UTF-8'",
}


def is_compressed(path: str) -> bool:
    """Returns whether a file is compressed or Parquet. Such files are not read in byte ranges."""
    return path.endswith(tuple(_COMPRESSIONS))


def ending(path: str) -> str:
    """Returns a lower-case extension: ".csv" for "A.CSV.gz", and ".jsonl" for a Parquet file."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix == PARQUET:
        return ".jsonl"
    return os.path.splitext(stem)[1] if suffix in _COMPRESSIONS else suffix


def read_lines(path: str, begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, line with line end), starting at `begin` as if a line started there.

    Lines end in \\n, \\r\\n or \\r. A line longer than 1 MB is yielded in parts. It is split at a
    space if possible, and never inside a character. All parts have the offset of the line. Only the
    last part has the line end. The extension of `path` selects the decompression; `begin` must then
    be 0. Raises a UserError if the text is UTF-16, or the file is damaged or wrongly named.
    """
    offset, rest = begin, b""
    used = 0  # number of bytes of the line at `offset` that have already been yielded
    for block in _read_blocks(path, begin):
        lines = (rest + block).splitlines(keepends=True)
        # The last line may continue in the next block, and its "\r" may be the start of "\r\n".
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
    """Returns the line number, counted from 1, of the line that starts at `offset`."""
    lines = itertools.groupby(read_lines(path), key=operator.itemgetter(0))
    return 1 + sum(1 for _ in itertools.takewhile(lambda line: line[0] < offset, lines))


def _long_line_parts(line: bytes) -> Iterator[bytes]:
    """Yields parts of a line, from its start on, until the remaining part is short enough."""
    start, end = 0, len(line.rstrip(b"\r\n"))
    while end - start > _MAX_LINE_BYTES:
        stop = line.rfind(b" ", start, start + _MAX_LINE_BYTES) + 1
        if not stop:
            # Without a space, cut between two characters. Continuation bytes are 0b10xxxxxx.
            stop = start + _MAX_LINE_BYTES
            stop -= next((i for i in range(4) if line[stop - i] & 0xC0 != 0x80), 0)
        yield line[start:stop]
        start = stop


def _read_blocks(path: str, begin: int) -> Iterator[bytes]:
    """Yields the decompressed bytes of a file from `begin` on, in non-empty blocks."""
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


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    # A short block is the last one. Another read call would be slow with many small files.
    block = file.read(_BLOCK_BYTES)
    while block:
        yield block
        block = file.read(_BLOCK_BYTES) if len(block) == _BLOCK_BYTES else b""


def _decompressed_blocks(path: str, file: tf.io.gfile.GFile) -> Iterator[bytes]:
    suffix = path[path.rindex(".") :]
    openers: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    try:
        if suffix == ".zst":
            yield from _zstandard_blocks(file)
        elif suffix == PARQUET:
            yield from parquet.json_lines(file)
        else:
            yield from _blocks(openers[suffix](file))
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        if getattr(error, "errno", None):
            raise  # a file-system error; errors about damaged data have no errno
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: not a whole {_COMPRESSIONS[suffix][0]} file ({reason}); if it is another "
            f"kind of file, give it a name without {suffix}, else fetch it again"
        ) from error


def _zstandard_blocks(file: tf.io.gfile.GFile) -> Iterator[bytes]:
    # zstandard's stream_reader is not used, because it does not report a truncated file.
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
    """Returns True if over a tenth of the even bytes and no odd bytes are NUL, or vice versa."""
    nuls = sorted([head[0::2].count(0), head[1::2].count(0)])
    return nuls[0] == 0 and nuls[1] > 2 and nuls[1] > len(head) / 20
