"""The unit of the record-writing job: ranges of text files become shards of each split."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf import files, program
from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer
from pipelines.data import duplicates
from pipelines.data.corpus import TextFormat, read_documents
from pipelines.data.records import SPLITS, Shard, serialize_segment, shard_layout
from pipelines.data.segments import Segment, has_order, split_document
from pipelines.data.text_files import is_compressed

UNITS_DIR = "units"
ERROR_FILE = os.path.join(UNITS_DIR, "error.txt")

# What a unit counts.
COUNTS = (
    "documents",
    "duplicate_documents",
    "sentences",
    "segments",
    "segments_with_order",
    "pieces",
    "skipped_lines",
)

# Sentences that are tokenized in one call; and their characters, for long lines.
_BATCH_SENTENCES = 512
_BATCH_CHARACTERS = 1 << 18

# A shard is held in memory until it is written: the records of a compressed file of any size become
# several. Of plain text a unit fills less.
_MAX_SHARD_BYTES = 64_000_000

# A document is held out, or not, by its first sentences.
_OPENING_SENTENCES = 3


@dataclass(frozen=True)
class Settings:
    """What the records depend on, beside the text."""

    spm_model_file: str
    do_lower_case: bool
    max_seq_length: int
    short_seq_prob: float
    heldout_fraction: float
    random_seed: int
    text_format: TextFormat = dataclasses.field(default_factory=TextFormat)
    remove_duplicates: bool = False


class Range(NamedTuple):
    """Bytes [begin, end) of a file: the documents that begin there."""

    source: str
    begin: int
    end: int


@dataclass(frozen=True)
class Unit:
    """Ranges of files; number `index` of the `count` units of the job."""

    ranges: tuple[Range, ...]
    index: int
    count: int

    @functools.cached_property  # the progress asks for it every second
    def bytes(self) -> int:
        """The bytes of all ranges."""
        return sum(end - begin for _, begin, end in self.ranges)

    @property
    def source(self) -> str:
        """What the unit is made of, for people."""
        (first, begin, _), (last, _, end) = self.ranges[0], self.ranges[-1]
        if len(self.ranges) == 1:
            return f"bytes {begin} to {end} of {first}"
        return f"{len(self.ranges)} files, {first} to {last}"

    @property
    def name(self) -> str:
        """The unit's part of file names."""
        return f"{self.index:05d}-of-{self.count:05d}"

    def file(self, kind: str) -> str:
        """Returns the name, in the record directory, of a file that says the unit is done.

        Args:
          kind: "json", the marker with the counts of its records, or "hashes" of its documents.
        """
        return os.path.join(UNITS_DIR, f"{self.name}.{kind}")


def hash_unit(unit: Unit, settings: Settings, output_dir: str) -> None:
    """Writes what finding duplicates has to know of a unit.

    Raises:
      ValueError: if the text cannot be read (see corpus.read_documents).
    """
    sentences = ((document.number, text) for document, text in _read(unit, settings))
    duplicates.write_hashes(sentences, os.path.join(output_dir, unit.file("hashes")))


def write_unit(
    unit: Unit, settings: Settings, output_dir: str, duplicates_files: Sequence[str] = ()
) -> None:
    """Writes the shards of a unit and, last, the marker with their counts.

    Shards get their names when all are complete; a split without a record has none. Their records
    are in random order. The bytes depend on nothing but text and settings. Documents that
    `duplicates_files`, the files of duplicates.find_duplicates, name are left out.

    Raises:
      ValueError: if the text cannot be read (see corpus.read_documents).
    """
    tokenizer, word_starts = _load_tokenizer(settings.spm_model_file, settings.do_lower_case)
    counts = Counter(dict.fromkeys(COUNTS, 0))
    left_out = duplicates.read_duplicates(duplicates_files, unit.index, unit.count)
    counts["duplicate_documents"] = len(left_out)
    sentences = (
        sentence for sentence in _read(unit, settings, counts) if sentence[0].number not in left_out
    )
    with contextlib.ExitStack() as stack:
        writers = {
            split: stack.enter_context(
                _ShardWriter(output_dir, f"{split}-{unit.name}", settings.random_seed)
            )
            for split in SPLITS
        }
        for document, tokenized in itertools.groupby(
            _tokenize(sentences, tokenizer, counts), key=operator.itemgetter(0)
        ):
            opening = list(itertools.islice(tokenized, _OPENING_SENTENCES))
            texts = [text for _, text, _ in opening]
            heldout = is_heldout(texts, settings.heldout_fraction, settings.random_seed)
            document_id = opening_hash(texts) >> 1  # into the range of int64
            writer = writers["heldout" if heldout else "train"]
            counts["documents"] += 1
            for segment in split_document(
                (pieces for _, _, pieces in itertools.chain(opening, tokenized)),
                settings.max_seq_length,
                settings.short_seq_prob,
                word_starts,
                document_rng(settings.random_seed, document.source, document.offset),
            ):
                writer.write(segment, document_id)
                counts["segments"] += 1
                counts["segments_with_order"] += has_order(segment)
                counts["pieces"] += len(segment.input_ids)
        for writer in writers.values():
            writer.finish()
    shards = {
        split: [dataclasses.asdict(Shard(source=unit.source, **shard)) for shard in writer.shards]
        for split, writer in writers.items()
    }
    text = json.dumps({**counts, "shards": shards}, ensure_ascii=False)
    files.write_atomically(os.path.join(output_dir, unit.file("json")), text + "\n")


def work_or_error(work: Callable[[Any], None], output_dir: str, unit: Any) -> None:
    """Does `work(unit)`; a user's error goes into a file, and the units to come end at once.

    An exception would come out of a runner late, retried and wrapped in its own traceback.
    """
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        return
    try:
        work(unit)
    except Exception as error:
        if not program.is_user_error(error):
            raise
        if ".partial-" in str(error) and "No such file" in str(error):
            return  # this job was killed, and the one that goes on has tidied up after it
        try:
            files.write_atomically(error_file, str(error))
        except (OSError, tf.errors.OpError):
            # Where the disk is full, a file without content still fits and says just that.
            with tf.io.gfile.GFile(error_file, "w") as file:
                file.write("")  # without it there is no file


def raise_noted_error(output_dir: str) -> None:
    """Raises, in the process that the user looks at, the error that `work_or_error` noted.

    Raises:
      ValueError: if there was one.
    """
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        with tf.io.gfile.GFile(error_file) as file:
            raise UserError(
                file.read()
                or f"no space left in {output_dir!r}: make room, then run the same command again"
            )


def is_heldout(opening: Sequence[str], heldout_fraction: float, seed: int) -> bool:
    """Tells whether a document is held out, by a hash of its first sentences.

    So copies of a document, also with another end, case or spacing, fall on the same side.
    """
    return opening_hash(opening, str(seed)) < heldout_fraction * 2**64


def opening_hash(opening: Sequence[str], salt: str = "") -> int:
    """Returns a hash, below 2**64, of a document's first sentences in any case and spacing."""
    text = " ".join(" ".join(opening).casefold().split())
    digest = hashlib.blake2b(f"{salt}\n{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def document_rng(seed: int, source: str, document_offset: int) -> random.Random:
    """Returns the source of a document's random choices: the same wherever its file lies."""
    return random.Random(f"{seed}/{os.path.basename(source)}/{document_offset}")


class _Document(NamedTuple):
    """Where a document lies; `number` counts those of its unit."""

    number: int
    source: str
    offset: int


def _read(
    unit: Unit, settings: Settings, counts: Counter | None = None
) -> Iterator[tuple[_Document, str]]:
    """Yields the sentences of a unit, each with its document."""
    numbers = itertools.count()
    for source, begin, end in unit.ranges:
        sentences = read_documents(
            source, settings.text_format, begin, None if is_compressed(source) else end, counts
        )
        for offset, document in itertools.groupby(sentences, key=operator.itemgetter(0)):
            where = _Document(next(numbers), source, offset)
            yield from ((where, text) for _, text in document)


@functools.lru_cache(maxsize=1)
def _load_tokenizer(spm_model_file: str, do_lower_case: bool) -> tuple[AlbertTokenizer, list[bool]]:
    """Returns the tokenizer and its word_starts, once for all units of a process."""
    tokenizer = AlbertTokenizer(spm_model_file, do_lower_case)
    return tokenizer, tokenizer.word_starts().tolist()


def _tokenize(
    sentences: Iterable[tuple[_Document, str]], tokenizer: AlbertTokenizer, counts: Counter
) -> Iterator[tuple[_Document, str, list[int]]]:
    """Yields each sentence with its pieces, tokenized in batches across documents."""
    for batch in _batches(sentences):
        counts["sentences"] += len(batch)
        pieces = tokenizer.encode_batch([text for _, text in batch])
        yield from ((*sentence, ids) for sentence, ids in zip(batch, pieces))


def _batches(
    sentences: Iterable[tuple[_Document, str]],
) -> Iterator[list[tuple[_Document, str]]]:
    batch: list[tuple[_Document, str]] = []
    characters = 0
    for sentence in sentences:
        batch.append(sentence)
        characters += len(sentence[1])
        if len(batch) == _BATCH_SENTENCES or characters > _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch


class _ShardWriter:
    """A split's shards of a unit, none of which has its name before all are whole.

    A shard is held in memory until it is full, and its records are shuffled before they are
    written: so any part of it is a sample of the whole.
    """

    def __init__(self, output_dir: str, name: str, seed: int):
        self._output_dir = output_dir
        self._name = name
        self._seed = seed
        self._records: list[bytes] = []
        self._bytes = self._pieces = 0
        self.shards: list[dict] = []  # the fields of a Shard that are known here

    def write(self, segment: Segment, document_id: int) -> None:
        """Adds a record."""
        record = serialize_segment(segment, document_id)
        if self._bytes + len(record) > _MAX_SHARD_BYTES:
            self.finish()
        self._records.append(record)
        self._bytes += len(record)
        self._pieces += len(segment.input_ids)

    def finish(self) -> None:
        """Writes what is held in memory."""
        if not self._records:
            return
        number = f"-{len(self.shards):04d}" if self.shards else ""
        file = f"{self._name}{number}.tfrecord"
        random.Random(f"{self._seed}/{file}").shuffle(self._records)
        shard = {
            "file": file,
            "pieces": self._pieces,
            **shard_layout([len(record) for record in self._records]),
        }
        self.shards.append(shard)
        partial = self._partial(file)
        with tf.io.TFRecordWriter(partial) as writer:
            for record in self._records:
                writer.write(record)
        shard["sha256"] = files.sha256(partial)
        self._records, self._bytes, self._pieces = [], 0, 0

    def __enter__(self) -> _ShardWriter:
        return self

    def __exit__(self, error_type, *_) -> None:
        try:
            if error_type is None:
                for shard in self.shards:
                    path = os.path.join(self._output_dir, shard["file"])
                    tf.io.gfile.rename(self._partial(shard["file"]), path, overwrite=True)
        finally:
            for shard in self.shards:
                if tf.io.gfile.exists(partial := self._partial(shard["file"])):
                    tf.io.gfile.remove(partial)

    def _partial(self, file: str) -> str:
        return files.partial_name(os.path.join(self._output_dir, file))
