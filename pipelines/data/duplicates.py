"""Finds near-exact duplicate documents before the text is tokenized.

Two documents are duplicates if they contain the same letters, marks and digits, ignoring case,
spacing and punctuation. Only the first copy is kept: hash_documents hashes the documents of a unit,
find_duplicates compares the hashes of one range in all units, read_duplicates returns the documents
to skip in a unit. Each step runs on any number of workers and keeps only the hashes of one unit or
one range in memory. Beam's shuffle is not used, because DirectRunner keeps all its data in memory.
"""

import functools
import hashlib
import itertools
import operator
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from albert_tf.storage import files
from .unit_job import Unit

# A 16-byte hash as two integers (high half first), and the number of the document.
_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<i8")])
_NUMBER = np.dtype("<i8")
# The most significant byte of a hash is its bucket number. A range consists of consecutive buckets
# with about _RANGE_BYTES of hashes. Comparing the hashes takes about four times this much memory.
_NUM_BUCKETS = 256
_RANGE_BYTES = 32_000_000


def hash_documents(sentences: Iterable[tuple[int, str]]) -> bytes:
    """Returns the sorted hashes of the letters, marks and digits of each document, see `_grouped`.

    `sentences` yields (number of the document in the unit, text of the sentence).
    """
    rows = bytearray()
    for number, document in itertools.groupby(sentences, key=operator.itemgetter(0)):
        digest, signs = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
        has_letters = False
        for _, sentence in document:
            # A Turkish capital I with a dot becomes two characters.
            text = unicodedata.normalize("NFKC", sentence.casefold().replace("i\u0307", "i"))
            letters = "".join(filter(_is_letter, text))
            has_letters |= bool(letters)
            digest.update(letters.encode())
            signs.update(text.encode())
        # A document without letters and digits, for example only emoji, is hashed as a whole.
        digest = digest if has_letters else signs
        rows += digest.digest() + number.to_bytes(8, "little")
    table = np.frombuffer(rows, _ROW)
    table = table[np.lexsort((table["low"], table["high"]))]
    return _grouped(table, table["high"] >> np.uint64(56), _NUM_BUCKETS)


@functools.cache
def _is_letter(character: str) -> bool:
    """Includes vowel signs and other marks, but none that select the form of a character."""
    is_mark = unicodedata.category(character) in ("Mn", "Mc") and character != "\u034f"
    selects = "VARIATION SELECTOR" in unicodedata.name(character, "")
    return character.isalnum() or (is_mark and not selects)


@dataclass(frozen=True)
class HashRange(Unit):
    """A unit of work that compares the hashes of all documents in the buckets [first, end)."""

    first: int
    end: int


def hash_ranges(hash_files: Sequence[str]) -> list[HashRange]:
    """Divides the hashes of all units into ranges that fit into memory."""
    total = sum(files.sizes(hash_files).values())
    count = min(total // _RANGE_BYTES + 1, _NUM_BUCKETS)
    bounds = [_NUM_BUCKETS * i // count for i in range(count + 1)]
    return [
        HashRange(f"{first:03d}-{end:03d}", total * (end - first) // _NUM_BUCKETS, first, end)
        for first, end in itertools.pairwise(bounds)
    ]


def find_duplicates(hashes: HashRange, hash_files: Sequence[str]) -> bytes:
    """Returns the numbers of all documents but the first of each hash, `_grouped` by unit.

    `hash_files` must be in the order of the units. Only the buckets in `hashes` are read.
    """
    tables = [
        _read_grouped(path, hashes.first, hashes.end, _NUM_BUCKETS, _ROW) for path in hash_files
    ]
    units = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    rows = np.concatenate(tables)
    # The sort is stable, so equal hashes stay in the order of the units and of the text.
    order = np.lexsort((rows["low"], rows["high"]))
    high, low = rows["high"][order], rows["low"][order]
    repeats = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    skipped = np.sort(order[1:][repeats])  # sorted by unit again
    return _grouped(rows["document"][skipped], units[skipped], len(hash_files))


def read_duplicates(paths: Sequence[str], unit_index: int, num_units: int) -> set[int]:
    """Reads the numbers of the documents to skip in a unit from the files of all ranges."""
    return {
        number
        for path in paths
        for number in _read_grouped(path, unit_index, unit_index + 1, num_units, _NUMBER).tolist()
    }


def _grouped(rows: np.ndarray, groups: np.ndarray, num_groups: int) -> bytes:
    """Serializes an index of the first row of each group, and the rows, sorted by group."""
    index = np.searchsorted(groups, np.arange(num_groups + 1, dtype=groups.dtype))
    return index.astype("<i8").tobytes() + rows.tobytes()


def _read_grouped(path: str, first: int, end: int, num_groups: int, row: np.dtype) -> np.ndarray:
    """Reads only the rows of the groups [first, end)."""
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(8 * first)
        index = np.frombuffer(file.read(8 * (end - first + 1)), "<i8")
        begin, stop = int(index[0]), int(index[-1])
        file.seek(8 * (num_groups + 1) + row.itemsize * begin)
        return np.frombuffer(file.read(row.itemsize * (stop - begin)), row)
