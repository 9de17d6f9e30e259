"""Lines of text files, plain or compressed, from any byte on; memory does not grow with a line."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator

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

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}
# How the content of such files begins: bytes, and where they stand.
_MAGIC = {
    ".gz": (0, b"\x1f\x8b\x08"),
    ".bz2": (4, b"1AY&SY"),
    ".xz": (0, b"\xfd7zXZ\0"),
    ".zst": (0, b"\x28\xb5\x2f\xfd"),
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
    """Returns how many bytes of text a byte of a compressed file holds, by its first megabyte.

    Raises:
      UserError: for a damaged file.
    """
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


def decode_line(
    path: str, offset: int, line: bytes, on_bad_line: str, counts: Counter | None
) -> str | None:
    """Returns the text of a UTF-8 line, or None if it is to be left out.

    Raises:
      UserError: as `refuse_line`.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte 0x{line[error.start]:02X} is not UTF-8 ({error.reason})"
        remedy = "convert the file, for example with iconv"
        refuse_line(path, offset, what, remedy, on_bad_line, counts)
        return None
    return text if offset else text.removeprefix("\ufeff")  # the byte order mark


def refuse_line(
    path: str, offset: int, what: str, remedy: str, on_bad_line: str, counts: Counter | None
) -> None:
    """Counts a bad line as "skipped_lines" if such lines are to be skipped.

    Raises:
      UserError: unless `on_bad_line` is "skip"; it states what is wrong with the line.
    """
    if on_bad_line != "skip":
        raise UserError(
            f"{path}:{_line_number(path, offset)}: {what}; {remedy}, or pass --on_bad_line=skip "
            "to leave such lines out"
        )
    if counts is not None:
        counts["skipped_lines"] += 1


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
        if is_compressed(path):
            assert begin == 0, f"{path} is compressed"
            blocks = _checked_blocks(path, _decompressed_blocks(path, file))
        elif begin:
            _check_head(path, file.read(_HEAD_BYTES))
            file.seek(begin)
            blocks = _plain_blocks(file)
        else:
            blocks = _checked_blocks(path, _plain_blocks(file))
        for block in blocks:
            yield block
            if on_read:
                on_read(file.tell())


def _checked_blocks(path: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the blocks of a file from its beginning on, if the first may begin UTF-8 text."""
    first = next(blocks, b"")
    _check_head(path, first[:_HEAD_BYTES])
    if first:
        yield first
    yield from blocks


def _plain_blocks(file: tf.io.gfile.GFile) -> Iterator[bytes]:
    # Of many small files each call counts.
    block = file.read(_BLOCK_BYTES)
    while block:
        yield block
        block = file.read(_BLOCK_BYTES) if len(block) == _BLOCK_BYTES else b""


def _decompressed_blocks(path: str, file: tf.io.gfile.GFile) -> Iterator[bytes]:
    suffix = path[path.rindex(".") :]
    try:
        if suffix == ".zst":
            yield from _zstandard_blocks(file)
        else:
            opener = {".gz": gzip.GzipFile, ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}[suffix]
            stream = opener(fileobj=file) if suffix == ".gz" else opener(file)
            while block := stream.read(_BLOCK_BYTES):
                yield block
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        if getattr(error, "errno", None):
            raise  # of the file system; an error of damaged bytes has no number
        raise UserError(
            f"{path}: not a whole {_COMPRESSIONS[suffix]} file ({error}); if it is another kind "
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
    """Refuses what is surely no UTF-8 text by the first bytes of a file.

    Raises:
      UserError: for UTF-16 text, compressed files without their suffix, Excel, ZIP and Parquet.
    """
    if head.startswith(_UTF16_BOMS) or _looks_like_utf16(head):
        raise UserError(
            f"{path}: this is UTF-16 text; convert the file to UTF-8, for example with "
            "iconv -f UTF-16 -t UTF-8"
        )
    for magic, what in _NO_TEXT.items():
        if head.startswith(magic):
            raise UserError(f"{path}: this is {what}")
    for suffix, (place, magic) in _MAGIC.items():
        if head.startswith(magic, place):
            raise UserError(
                f"{path}: this is a {_COMPRESSIONS[suffix]} file; give it a name that ends in "
                f"{suffix}"
            )


def _looks_like_utf16(head: bytes) -> bool:
    """Returns whether every other byte, or one in ten of them, is NUL, and none of the others."""
    nuls = sorted([head[0::2].count(0), head[1::2].count(0)])
    return nuls[0] == 0 and nuls[1] > 2 and nuls[1] > len(head) / 20
