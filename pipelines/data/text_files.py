"""Lines of text files, plain or compressed, from any byte on; memory does not grow with a line."""

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

from albert_tf.storage.errors import UserError

_BLOCK_BYTES = 1 << 20
# A longer line is read in parts. Only its first bytes decide where the parts end, so the same line
# gives the same parts wherever reading began.
_MAX_LINE_BYTES = 1 << 20
# Of a Zstandard file: one call returns all that these bytes hold, which may be 30,000 times as
# much (a block of 128 KB of one character takes 4 bytes).
_ZSTANDARD_BLOCK_BYTES = 1 << 12

_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES = 1 << 12

# Name, how the content of such files begins, and where in the file these bytes stand.
_COMPRESSIONS = {
    ".gz": ("gzip", b"\x1f\x8b\x08", 0),
    ".bz2": ("bzip2", b"1AY&SY", 4),
    ".xz": ("xz", b"\xfd7zXZ\0", 0),
    ".zst": ("Zstandard", b"\x28\xb5\x2f\xfd", 0),
}
# Files that spreadsheets and databases write, by how they begin, and what to do with them.
_NO_TEXT = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook (.xlsx); unpack it, or save the sheet as "
    "'CSV UTF-8'",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an Excel workbook (.xls); save the sheet as 'CSV UTF-8'",
    b"PAR1\x15": "a Parquet file; convert it, for example with pandas: "
    "read_parquet(...).to_csv(..., index=False)",
}


def is_compressed(path: str) -> bool:
    """Returns whether the file's name is a compressed one's: such a file is not read in ranges."""
    return path.endswith(tuple(_COMPRESSIONS))


def expansion(path: str) -> float:
    """Returns how many bytes of text a byte of a compressed file holds, by its first megabyte."""
    with tf.io.gfile.GFile(path, "rb") as file:
        num_bytes = 0
        for block in _decompressed_blocks(path, file):
            num_bytes += len(block)
            if num_bytes >= _BLOCK_BYTES:
                break
        return num_bytes / max(file.tell(), 1)


def ending(path: str) -> str:
    """Returns how a name ends without compression, in lower case: ".csv" of "A.CSV.gz"."""
    stem, suffix = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] if suffix in _COMPRESSIONS else suffix


def read_lines(
    path: str, begin: int = 0, on_read: Callable[[int], None] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, line with its end), from `begin` as if a line began there.

    Lines end in \\n, \\r\\n or \\r. The parts of a line longer than 1 MB, broken at a space or at
    least between characters, all have the offset of that line; only the last has the line's end.

    Args:
      path: any file tf.io.gfile reads; by its name it is decompressed (.gz, .bz2, .xz, .zst; of
        several members or frames all are read).
      begin: the first byte to read; 0 for a compressed file.
      on_read: called with a byte of the file, compressed or not, when the lines before it have been
        used; about once a megabyte.

    Raises:
      UserError: for UTF-16 text, a damaged file or one that its name does not fit.
    """
    offset, rest = begin, b""
    used = 0  # bytes of the line at `offset` that have been yielded already
    for block in _read_blocks(path, begin, on_read):
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


def line_number(path: str, offset: int) -> int:
    """Returns the number, from 1, of the line that begins at `offset`."""
    lines = itertools.groupby(read_lines(path), key=operator.itemgetter(0))
    return 1 + sum(1 for _ in itertools.takewhile(lambda line: line[0] < offset, lines))


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
    # Of many small files each call counts.
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
        else:
            yield from _blocks(openers[suffix](file))
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        if getattr(error, "errno", None):
            raise  # of the file system; an error of damaged bytes has no number
        raise UserError(
            f"{path}: not a whole {_COMPRESSIONS[suffix][0]} file ({error}); if it is another kind "
            f"of file, give it a name without {suffix}, else fetch it again"
        ) from error


def _zstandard_blocks(file: tf.io.gfile.GFile) -> Iterator[bytes]:
    # Not the library's stream_reader, for which a file cut short is one that ends there.
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
    """Raises a UserError if the first bytes of a file are surely no UTF-8 text."""
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
    """Returns whether every other byte, or one in ten of them, is NUL, and none of the others."""
    nuls = sorted([head[0::2].count(0), head[1::2].count(0)])
    return nuls[0] == 0 and nuls[1] > 2 and nuls[1] > len(head) / 20
