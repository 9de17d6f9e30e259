"""Converts ranges of text files to shards of records. One call processes one unit of the job."""

import dataclasses
import functools
import hashlib
import itertools
import operator
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from absl import flags

from albert_tf.jobs import program
from albert_tf.jobs.settings import setting
from albert_tf.storage import files
from albert_tf.text.settings import TextSettings
from albert_tf.text.tokenization import AlbertTokenizer
from . import duplicates
from .corpus import TextFormat, read_documents
from .records import SPLITS, Shard, serialize_segment, write_records
from .segments import SHORTEST_RUN, Segment, cut_runs, has_order, split_document
from .text_files import is_compressed
from .unit_job import Unit

# The counts in the file of a finished unit.
COUNTS = (
    "documents",
    "duplicate_documents",
    "sentences",
    "segments",
    "segments_with_order",
    "openings_with_order",
    "pieces",
    "skipped_lines",
)

# Maximum number of sentences and approximate maximum number of characters per tokenizer call.
_BATCH_SENTENCES = 512
_BATCH_CHARACTERS = 1 << 18

# Maximum size of a shard, which is kept in memory until it is written. Units of plain text stay
# below this size. A large compressed file is written to several shards.
_MAX_SHARD_BYTES = 64_000_000

# Number of sentences at the start of a document that determine whether it is held out.
_OPENING_SENTENCES = 3

load_tokenizer = functools.lru_cache(maxsize=1)(AlbertTokenizer)  # once per process


@dataclass(frozen=True)
class Settings:
    """Settings of a record job: input, output directory and everything that affects the records."""

    input_file: str
    output_dir: str = setting(flags.DEFINE_string, "Output directory for the records.")
    spm_model_file: str = setting(
        flags.DEFINE_string, "Vocabulary: a SentencePiece model or a WordPiece vocab.txt."
    )
    max_seq_length: int = setting(program.define_max_seq_length, "")
    short_seq_prob: float = setting(
        flags.DEFINE_float,
        "Fraction of segments with a random shorter length.",
        0.1,
        lower_bound=0.0,
        upper_bound=1.0,
    )
    heldout_fraction: float = setting(
        flags.DEFINE_float,
        "Fraction of documents that are held out for evaluation.",
        0.05,
        lower_bound=0.0,
        upper_bound=0.9,
    )
    random_seed: int = setting(
        flags.DEFINE_integer, "Seed for the short segments and the held-out documents.", 12345
    )
    text_format: TextFormat = dataclasses.field(default_factory=TextFormat)
    text_settings: TextSettings = dataclasses.field(default_factory=TextSettings)
    remove_duplicates: bool = setting(
        flags.DEFINE_bool,
        "Skip documents that differ from an earlier document only in case, spacing or punctuation.",
        False,
    )
    max_sentences: int | None = setting(
        flags.DEFINE_integer,
        "Maximum number of sentences per segment. With 2, segments are pairs of sentences.",
        None,
        lower_bound=2,
    )
    shuffle_sentences: bool = setting(
        flags.DEFINE_bool,
        "Shuffle the sentences of each document, which must fit into memory. This is a control "
        "experiment, in which sentence-order accuracy must be at chance.",
        False,
    )
    run_pieces: int | None = setting(
        flags.DEFINE_integer,
        f"Split documents into runs of words instead of sentences. A run has {SHORTEST_RUN} to "
        "this many pieces (Recipes, order).",
        None,
        lower_bound=SHORTEST_RUN,
    )
    shard_bytes: int = setting(
        flags.DEFINE_integer,
        "Maximum number of bytes of text per unit of work. Values below 500 kB also lower the "
        "minimum unit size. Compressed files are never split.",
        64_000_000,
        lower_bound=1000,
    )


class Range(NamedTuple):
    """Bytes [begin, end) of a file; read_documents defines which documents belong to the range."""

    source: str
    begin: int
    end: int


@dataclass(frozen=True)
class TextUnit(Unit):
    """A unit of one or more file ranges. It has number `index` among the job's `count` units."""

    ranges: tuple[Range, ...]
    index: int
    count: int

    @property
    def source(self) -> str:
        """A readable description of the ranges."""
        (first, begin, _), (last, _, end) = self.ranges[0], self.ranges[-1]
        if len(self.ranges) == 1:
            return f"bytes {begin} to {end} of {first}"
        return f"{len(self.ranges)} files, {first} to {last}"


def hash_unit(unit: TextUnit, settings: Settings) -> bytes:
    """Hashes the documents of a unit, in order to find duplicates."""
    sentences = ((document.number, text) for document, text in _read(unit, settings))
    return duplicates.hash_documents(sentences)


def write_unit(unit: TextUnit, settings: Settings, duplicates_files: Sequence[str] = ()) -> dict:
    """Writes the shards of a unit; returns the content of the unit's file: counts and shards.

    Shards are renamed to their final names when all are complete. A split without records has no
    shard. Documents listed in `duplicates_files` are skipped.
    """
    tokenizer = load_tokenizer(settings.spm_model_file, *settings.text_settings)
    word_starts = tokenizer.word_starts().tolist()
    counts = Counter(dict.fromkeys(COUNTS, 0))
    skipped = duplicates.read_duplicates(duplicates_files, unit.index, unit.count)
    counts["duplicate_documents"] = len(skipped)
    sentences = (s for s in _read(unit, settings, counts) if s[0].number not in skipped)
    with files.whole_files(settings.output_dir) as partial_path:
        writers = {
            split: _ShardWriter(unit, split, settings.random_seed, partial_path) for split in SPLITS
        }
        of_documents = _tokenize(sentences, tokenizer, counts)
        for document, tokenized in itertools.groupby(of_documents, key=operator.itemgetter(0)):
            # Only the first sentences determine the split, so the others can be streamed.
            opening = list(itertools.islice(tokenized, _OPENING_SENTENCES))
            texts = [text for _, text, _ in opening]
            drawn = opening_hash(texts, str(settings.random_seed))
            split = "heldout" if drawn < settings.heldout_fraction * 2**64 else "train"
            document_id = opening_hash(texts) >> 1  # to fit into int64
            counts["documents"] += 1
            # The seed omits the directory, so that moving a corpus does not change the records.
            place = f"{os.path.basename(document.source)}/{document.offset}"
            rng = random.Random(f"{settings.random_seed}/{place}")
            pieces: Iterable[list[int]] = (ids for *_, ids in itertools.chain(opening, tokenized))
            if settings.shuffle_sentences:
                pieces = list(pieces)
                rng.shuffle(pieces)
            if settings.run_pieces:
                pieces = cut_runs(pieces, settings.run_pieces, word_starts, rng)
            lengths = settings.max_seq_length, settings.short_seq_prob
            most = settings.max_sentences
            for segment in split_document(pieces, *lengths, word_starts, rng, most):
                writers[split].write(segment, document_id)
                order = has_order(segment)
                counts.update(
                    segments=1,
                    segments_with_order=order,
                    openings_with_order=order and segment.opens_document,
                    pieces=len(segment.input_ids),
                )
        for writer in writers.values():
            writer.finish()
    shards = {split: list(map(dataclasses.asdict, writers[split].shards)) for split in SPLITS}
    return {**counts, "shards": shards}


def opening_hash(opening: Sequence[str], salt: str = "") -> int:
    """Hashes sentences to an integer below 2**64, ignoring case and spacing.

    Copies of a document are in the same split, even if case, spacing or later sentences differ.
    """
    text = " ".join(" ".join(opening).casefold().split())
    digest = hashlib.blake2b(f"{salt}\n{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


class _Document(NamedTuple):
    """The location of a document. `number` is its index in the unit."""

    number: int
    source: str
    offset: int


def _read(
    unit: TextUnit, settings: Settings, counts: Counter | None = None
) -> Iterator[tuple[_Document, str]]:
    """Yields the sentences of a unit, each with its document."""
    numbers = itertools.count()
    for source, begin, end in unit.ranges:
        stop = None if is_compressed(source) else end
        sentences = read_documents(source, settings.text_format, begin, stop, counts)
        for offset, document in itertools.groupby(sentences, key=operator.itemgetter(0)):
            where = _Document(next(numbers), source, offset)
            yield from ((where, text) for _, text in document)


def _tokenize(
    sentences: Iterator[tuple[_Document, str]], tokenizer: AlbertTokenizer, counts: Counter
) -> Iterator[tuple[_Document, str, list[int]]]:
    """Yields each sentence with its pieces. A tokenizer batch can span several documents."""
    for first in sentences:
        batch, characters = [first], len(first[1])
        while len(batch) < _BATCH_SENTENCES and characters <= _BATCH_CHARACTERS:
            if (sentence := next(sentences, None)) is None:
                break
            batch.append(sentence)
            characters += len(sentence[1])
        counts["sentences"] += len(batch)
        pieces = tokenizer.encode_batch([text for _, text in batch])
        yield from ((*sentence, ids) for sentence, ids in zip(batch, pieces))


class _ShardWriter:
    """Writes the shards of a unit for one split.

    A shard is kept in memory until it is full. Its records are shuffled before they are written, so
    that any part of the shard is a random sample of it.
    """

    def __init__(self, unit: TextUnit, split: str, seed: int, partial_path: Callable[[str], str]):
        self._unit, self._split, self._seed = unit, split, seed
        self._partial_path = partial_path
        self._records: list[bytes] = []
        self._bytes = self._pieces = 0
        self.shards: list[Shard] = []

    def write(self, segment: Segment, document_id: int) -> None:
        """Adds a segment to the current shard."""
        record = serialize_segment(segment, document_id)
        if self._bytes + len(record) > _MAX_SHARD_BYTES:
            self.finish()
        self._records.append(record)
        self._bytes += len(record)
        self._pieces += len(segment.input_ids)

    def finish(self) -> None:
        """Writes the records in memory, if any, to a shard."""
        if not self._records:
            return
        number = f"-{len(self.shards):04d}" if self.shards else ""
        file = f"{self._split}-{self._unit.name}{number}.tfrecord"
        random.Random(f"{self._seed}/{file}").shuffle(self._records)
        written = write_records(self._partial_path(file), self._records)
        self.shards.append(Shard(file, self._unit.source, pieces=self._pieces, **written))
        self._records, self._bytes, self._pieces = [], 0, 0
