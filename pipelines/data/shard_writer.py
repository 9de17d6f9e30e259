"""The unit of the record-writing job: a byte range of a text file becomes one shard per split."""

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from albert_tf import files, program
from albert_tf.tokenization import AlbertTokenizer
from pipelines.data.corpus import Sentence, is_compressed, read_documents
from pipelines.data.records import SPLITS, Shard, serialize_segment
from pipelines.data.segments import Segment, split_document

UNITS_DIR = "units"
ERROR_FILE = os.path.join(UNITS_DIR, "error.txt")

# Sentences that are tokenized in one call; and their characters, for long lines.
_BATCH_SENTENCES = 512
_BATCH_CHARACTERS = 1 << 18

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
    on_decode_error: str


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

    @property
    def marker(self) -> str:
        """Name, in the record directory, of the file that says this unit is done."""
        return os.path.join(UNITS_DIR, f"{self.name}.json")


def write_unit(unit: Unit, settings: Settings, output_dir: str) -> None:
    """Writes the shards of a unit and, last, the marker with their counts.

    Shards get their names when they are complete; a split without a record gets none. The bytes
    depend on nothing but text and settings.

    Raises:
      ValueError: if the text cannot be read (see corpus.read_documents).
    """
    tokenizer, word_starts = _load_tokenizer(settings.spm_model_file, settings.do_lower_case)
    counts = Counter(documents=0, sentences=0, pieces=0, skipped_lines=0)
    sentences = read_documents(
        unit.source,
        unit.begin,
        None if is_compressed(unit.source) else unit.end,
        settings.on_decode_error,
        counts,
    )
    with contextlib.ExitStack() as stack:
        writers = {
            split: stack.enter_context(_ShardWriter(output_dir, f"{split}-{unit.name}.tfrecord"))
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
        split: dataclasses.asdict(
            Shard(source=unit.source, begin=unit.begin, end=unit.end, **writer.result)
        )
        for split, writer in writers.items()
        if writer.result
    }
    text = json.dumps({**counts, "shards": shards}, ensure_ascii=False)
    files.write_atomically(os.path.join(output_dir, unit.marker), text + "\n")


def write_unit_or_error(unit: Unit, settings: Settings, output_dir: str) -> None:
    """Does `write_unit`; a user's error goes into a file, and the units to come end at once.

    An exception would come out of a runner late, retried and wrapped in its own traceback.
    """
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        return
    try:
        write_unit(unit, settings, output_dir)
    except Exception as error:
        if not program.is_user_error(error):
            raise
        try:
            files.write_atomically(error_file, str(error))
        except (OSError, tf.errors.OpError):  # where the disk is full this does not fit either
            raise error from None


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
    """A file of records that has no name before it is whole, and none if it is empty."""

    def __init__(self, output_dir: str, name: str):
        self._name = name
        self._path = os.path.join(output_dir, name)
        self._partial = files.partial_name(self._path)
        self._examples = self._pieces = 0
        self.result: dict | None = None  # the fields of a Shard, when it is done

    def write(self, segment: Segment, document_offset: int, document_id: int) -> None:
        """Adds a record."""
        self._writer.write(serialize_segment(*segment, document_offset, document_id))
        self._examples += 1
        self._pieces += len(segment.input_ids)

    def __enter__(self) -> _ShardWriter:
        self._writer = tf.io.TFRecordWriter(self._partial)
        return self

    def __exit__(self, error_type, *_) -> None:
        try:
            self._writer.close()
            if error_type is None and self._examples:
                self.result = {
                    "file": self._name,
                    "examples": self._examples,
                    "pieces": self._pieces,
                    "bytes": tf.io.gfile.stat(self._partial).length,
                    "sha256": files.sha256(self._partial),
                }
                tf.io.gfile.rename(self._partial, self._path, overwrite=True)
        finally:
            if tf.io.gfile.exists(self._partial):
                tf.io.gfile.remove(self._partial)
