"""The unit of the record-writing job: a byte range of a text file becomes shards of each split."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from albert_tf import files, program
from albert_tf.tokenization import AlbertTokenizer
from pipelines.data import duplicates
from pipelines.data.corpus import Sentence, TextFormat, read_documents
from pipelines.data.records import SPLITS, Shard, serialize_segment
from pipelines.data.segments import Segment, split_document
from pipelines.data.text_files import is_compressed

UNITS_DIR = "units"
ERROR_FILE = os.path.join(UNITS_DIR, "error.txt")

# What a unit counts.
COUNTS = ("documents", "duplicate_documents", "sentences", "pieces", "skipped_lines")

# Sentences that are tokenized in one call; and their characters, for long lines.
_BATCH_SENTENCES = 512
_BATCH_CHARACTERS = 1 << 18

# Training reads whole shards into memory: the records of a compressed file of any size become
# several. Of plain text a unit fills less.
_MAX_SHARD_BYTES = 64_000_000
_TFRECORD_FRAME_BYTES = 16

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


@dataclass(frozen=True)
class Unit:
    """Bytes [begin, end) of a file; number `index` of the `count` units of the job."""

    source: str
    begin: int
    end: int
    index: int
    count: int

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
    duplicates.write_hashes(_read(unit, settings), os.path.join(output_dir, unit.file("hashes")))


def write_unit(
    unit: Unit, settings: Settings, output_dir: str, duplicates_files: Sequence[str] = ()
) -> None:
    """Writes the shards of a unit and, last, the marker with their counts.

    Shards get their names when all are complete; a split without a record has none. The bytes
    depend on nothing but text and settings. Documents that `duplicates_files`, the files of
    duplicates.find_duplicates, name are left out.

    Raises:
      ValueError: if the text cannot be read (see corpus.read_documents).
    """
    tokenizer, word_starts = _load_tokenizer(settings.spm_model_file, settings.do_lower_case)
    counts = Counter(dict.fromkeys(COUNTS, 0))
    sentences = _read(unit, settings, counts)
    left_out = duplicates.read_duplicates(duplicates_files, unit.index, unit.count)
    counts["duplicate_documents"] = len(left_out)
    sentences = (s for s in sentences if s.document_offset not in left_out)
    with contextlib.ExitStack() as stack:
        writers = {
            split: stack.enter_context(_ShardWriter(output_dir, f"{split}-{unit.name}"))
            for split in SPLITS
        }
        for offset, document in itertools.groupby(
            _tokenize(sentences, tokenizer, counts), key=lambda pair: pair[0].document_offset
        ):
            opening = list(itertools.islice(document, _OPENING_SENTENCES))
            texts = [sentence.text for sentence, _ in opening]
            heldout = is_heldout(texts, settings.heldout_fraction, settings.random_seed)
            document_id = opening_hash(texts) >> 1  # into the range of int64
            writer = writers["heldout" if heldout else "train"]
            counts["documents"] += 1
            for segment in split_document(
                (pieces for _, pieces in itertools.chain(opening, document)),
                settings.max_seq_length,
                settings.short_seq_prob,
                word_starts,
                document_rng(settings.random_seed, unit.source, offset),
            ):
                writer.write(segment, offset, document_id)
                counts["pieces"] += len(segment.input_ids)
    shards = {
        split: [
            dataclasses.asdict(Shard(source=unit.source, begin=unit.begin, end=unit.end, **shard))
            for shard in writer.shards
        ]
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
            raise ValueError(
                file.read()
                or f"no space left in {output_dir!r}: make room, then the same command goes on"
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


def _read(unit: Unit, settings: Settings, counts: Counter | None = None) -> Iterator[Sentence]:
    """Yields the sentences of a unit."""
    return read_documents(
        unit.source,
        settings.text_format,
        unit.begin,
        None if is_compressed(unit.source) else unit.end,
        counts,
    )


@functools.lru_cache(maxsize=1)
def _load_tokenizer(spm_model_file: str, do_lower_case: bool) -> tuple[AlbertTokenizer, list[bool]]:
    """Returns the tokenizer and its word_starts, once for all units of a process."""
    tokenizer = AlbertTokenizer(spm_model_file, do_lower_case)
    return tokenizer, tokenizer.word_starts().tolist()


def _tokenize(
    sentences: Iterable[Sentence], tokenizer: AlbertTokenizer, counts: Counter
) -> Iterator[tuple[Sentence, list[int]]]:
    """Yields each sentence with its pieces, tokenized in batches across documents."""
    for batch in _batches(sentences):
        counts["sentences"] += len(batch)
        yield from zip(batch, tokenizer.encode_batch([sentence.text for sentence in batch]))


def _batches(sentences: Iterable[Sentence]) -> Iterator[list[Sentence]]:
    batch: list[Sentence] = []
    characters = 0
    for sentence in sentences:
        batch.append(sentence)
        characters += len(sentence.text)
        if len(batch) == _BATCH_SENTENCES or characters > _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch


class _ShardWriter:
    """A split's shards of a unit, none of which has its name before all are whole."""

    def __init__(self, output_dir: str, name: str):
        self._output_dir = output_dir
        self._name = name
        self._writer: tf.io.TFRecordWriter | None = None
        self.shards: list[dict] = []  # the fields of a Shard that are known here

    def write(self, segment: Segment, document_offset: int, document_id: int) -> None:
        """Adds a record."""
        record = serialize_segment(*segment, document_offset, document_id)
        size = len(record) + _TFRECORD_FRAME_BYTES
        if not self.shards or self.shards[-1]["bytes"] + size > _MAX_SHARD_BYTES:
            self._begin_shard()
        self._writer.write(record)
        self.shards[-1]["examples"] += 1
        self.shards[-1]["pieces"] += len(segment.input_ids)
        self.shards[-1]["bytes"] += size

    def __enter__(self) -> _ShardWriter:
        return self

    def __exit__(self, error_type, *_) -> None:
        try:
            self._end_shard()
            if error_type is None:
                for shard in self.shards:
                    path = os.path.join(self._output_dir, shard["file"])
                    tf.io.gfile.rename(self._partial(shard), path, overwrite=True)
        finally:
            for shard in self.shards:
                if tf.io.gfile.exists(partial := self._partial(shard)):
                    tf.io.gfile.remove(partial)

    def _begin_shard(self) -> None:
        self._end_shard()
        number = f"-{len(self.shards):04d}" if self.shards else ""
        shard = {"file": f"{self._name}{number}.tfrecord", "examples": 0, "pieces": 0, "bytes": 0}
        self.shards.append(shard)
        self._writer = tf.io.TFRecordWriter(self._partial(shard))

    def _end_shard(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self.shards[-1]["sha256"] = files.sha256(self._partial(self.shards[-1]))
            self._writer = None

    def _partial(self, shard: dict) -> str:
        return files.partial_name(os.path.join(self._output_dir, shard["file"]))
