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
from .unit_job import Unit, progress_note

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
        "Maximum number of sentences per segment. With 2, segments are pairs of sentences. Most of "
        "these have an order label if two sentences fit into --max_seq_length. Default: no limit.",
        None,
        lower_bound=2,
    )
    shuffle_sentences: bool = setting(
        flags.DEFINE_bool,
        "Shuffle the sentences of each document. This is a control experiment, in which "
        "sentence-order accuracy must be at chance. The same documents are held out as without "
        "shuffling. Each document must fit into memory.",
        False,
    )
    run_pieces: int | None = setting(
        flags.DEFINE_integer,
        f"Split documents into runs of words instead of sentences. A run has {SHORTEST_RUN} to "
        "this many pieces. With --max_sentences=2 a model learns to compare the words at the "
        "junction of two runs (Recipes, order).",
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
    shard. Records are in random order. The bytes depend only on the text and the settings.
    Documents listed in `duplicates_files` are skipped.
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
        for document, tokenized in itertools.groupby(
            _tokenize(sentences, tokenizer, counts), key=operator.itemgetter(0)
        ):
            # Only the first sentences determine the split, so the others can be streamed.
            opening = list(itertools.islice(tokenized, _OPENING_SENTENCES))
            texts = [text for _, text, _ in opening]
            heldout = is_heldout(texts, settings.heldout_fraction, settings.random_seed)
            document_id = opening_hash(texts) >> 1  # to fit into int64
            counts["documents"] += 1
            # The seed omits the directory, so that moving a corpus does not change the records.
            place = f"{os.path.basename(document.source)}/{document.offset}"
            rng = random.Random(f"{settings.random_seed}/{place}")
            pieces: Iterable[list[int]] = (
                pieces for _, _, pieces in itertools.chain(opening, tokenized)
            )
            if settings.shuffle_sentences:
                shuffled = list(pieces)
                rng.shuffle(shuffled)
                pieces = shuffled
            if settings.run_pieces:
                pieces = cut_runs(pieces, settings.run_pieces, word_starts, rng)
            for segment in split_document(
                pieces,
                settings.max_seq_length,
                settings.short_seq_prob,
                word_starts,
                rng,
                settings.max_sentences,
            ):
                writers["heldout" if heldout else "train"].write(segment, document_id)
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


def is_heldout(opening: Sequence[str], heldout_fraction: float, seed: int) -> bool:
    """Decides whether a document is held out, based on a hash of its first sentences.

    Copies of a document are in the same split, even if case, spacing or later sentences differ.
    """
    return opening_hash(opening, str(seed)) < heldout_fraction * 2**64


def opening_hash(opening: Sequence[str], salt: str = "") -> int:
    """Hashes sentences to an integer below 2**64, ignoring case and spacing."""
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
    """Yields the sentences of a unit, each with its document.

    Reports the number of bytes read with progress_note. This number exceeds the unit's size if the
    last document ends in the range of another unit.
    """
    note = progress_note(unit, settings.output_dir)
    numbers = itertools.count()
    before = 0
    for source, begin, end in unit.ranges:

        def on_read(position: int, first: int = begin - before) -> None:
            note(position - first)

        sentences = read_documents(
            source,
            settings.text_format,
            begin,
            None if is_compressed(source) else end,
            counts,
            on_read,
        )
        for offset, document in itertools.groupby(sentences, key=operator.itemgetter(0)):
            where = _Document(next(numbers), source, offset)
            yield from ((where, text) for _, text in document)
        before += end - begin


def _tokenize(
    sentences: Iterator[tuple[_Document, str]], tokenizer: AlbertTokenizer, counts: Counter
) -> Iterator[tuple[_Document, str, list[int]]]:
    """Yields each sentence with its pieces. A tokenizer batch can span several documents."""
    while batch := _next_batch(sentences):
        counts["sentences"] += len(batch)
        pieces = tokenizer.encode_batch([text for _, text in batch])
        yield from ((*sentence, ids) for sentence, ids in zip(batch, pieces))


def _next_batch(sentences: Iterator[tuple[_Document, str]]) -> list[tuple[_Document, str]]:
    batch: list[tuple[_Document, str]] = []
    characters = 0
    for sentence in itertools.islice(sentences, _BATCH_SENTENCES):
        batch.append(sentence)
        characters += len(sentence[1])
        if characters > _BATCH_CHARACTERS:
            break
    return batch


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
