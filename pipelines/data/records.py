"""Defines the manifest of a record directory and the format of segment records.

Training draws new examples from segment records at every epoch. The other format contains the
reference's static examples (see reference_examples.py).

A directory of segment records contains files such as `train-00003-of-00012.tfrecord` and
`heldout-00003-of-00012.tfrecord` (uncompressed tf.train.Example, in random order) and
`manifest.json`, which is written last. Each record is one contiguous chunk of one document. It is
already tokenized, not padded, and contains no special pieces:

  input_ids        int64 [n], 1 <= n <= max_seq_length - 3: pieces
  sentence_starts  int64 [m], starts with 0, increasing, < n: indices of sentences' first pieces
  room_before      int64 [1]: number of unused pieces in the previous segment; see segments.Segment
  opens_document   int64 [1]: 1 = first segment of the document
  document_id      int64 [1]: hash of the document's first sentences
"""

import array
import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

import albert_tf
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.packing import NUM_SPECIAL_PIECES
from albert_tf.text.settings import TextSettings
from albert_tf.text.tokenization import AlbertTokenizer
from .examples import ExampleOptions
from .segments import Segment

MANIFEST_FILE = "manifest.json"
SPLITS = ("train", "heldout")

# Maximum number of parts of a shard. Training reads one part of each of many shards at a time.
MAX_PARTS = 256
_MIN_PART_BYTES = 1 << 16
_TFRECORD_FRAME_BYTES = 16

# The specification for tf.io.parse_example.
SEGMENT_FEATURES = {
    "input_ids": tf.io.RaggedFeature(tf.int64),
    "sentence_starts": tf.io.RaggedFeature(tf.int64),
    "room_before": tf.io.FixedLenFeature([1], tf.int64),
    "opens_document": tf.io.FixedLenFeature([1], tf.int64),
    "document_id": tf.io.FixedLenFeature([1], tf.int64),
}


def serialize_segment(segment: Segment, document_id: int) -> bytes:
    """Serializes a segment to a record."""
    example = tf.train.Example()
    for name, values in (
        ("input_ids", segment.input_ids),
        ("sentence_starts", segment.sentence_starts),
        ("room_before", [segment.room_before]),
        ("opens_document", [segment.opens_document]),
        ("document_id", [document_id]),
    ):
        example.features.feature[name].int64_list.value.extend(values)
    # Otherwise the order of the features, and therefore the shard's checksum, could vary.
    return example.SerializeToString(deterministic=True)


def parse_segments(records: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses serialized records, string [b]. Pieces and sentence starts become ragged int32."""
    segments = tf.io.parse_example(records, SEGMENT_FEATURES)
    for name in ("input_ids", "sentence_starts"):
        segments[name] = tf.cast(segments[name], tf.int32)
    return segments


def write_records(path: str, records: Iterable[bytes]) -> dict[str, Any]:
    """Writes a TFRecord file and returns the fields of its Shard that depend on the content."""
    record_bytes = array.array("q")
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
            record_bytes.append(len(record))
    return {"sha256": files.sha256(path), **shard_layout(record_bytes)}


def shard_layout(record_bytes: Sequence[int]) -> dict[str, Any]:
    """Returns the fields of a Shard that depend on the sizes of its serialized records."""
    ends = np.cumsum(np.asarray(record_bytes, np.int64) + _TFRECORD_FRAME_BYTES)
    size = int(ends[-1]) if len(ends) else 0
    count = max(1, min(MAX_PARTS, size // _MIN_PART_BYTES, len(ends)))
    first = len(ends) * np.arange(1, count) // count
    return {
        "examples": len(ends),
        "bytes": size,
        "part_offsets": [0, *ends[first - 1].tolist()],
    }


@dataclass(frozen=True)
class Shard:
    """One file of records."""

    file: str  # name in the record directory, or a full path
    source: str  # readable description of the input
    examples: int
    pieces: int  # in static examples, including special pieces
    bytes: int
    sha256: str
    # Byte offset of each part. Part i starts at record examples * i // len(part_offsets).
    part_offsets: Sequence[int]


@dataclass(frozen=True)
class Split:
    """The shards of one split, in order. No shard is empty."""

    shards: tuple[Shard, ...]

    @property
    def examples(self) -> int:
        """Number of records in all shards."""
        return sum(shard.examples for shard in self.shards)

    @property
    def pieces(self) -> int:
        """Number of pieces in all records."""
        return sum(shard.pieces for shard in self.shards)


def make_splits(units: Iterable[dict[str, Sequence[dict]]]) -> dict[str, Split]:
    """Collects the shards of both splits. Each unit maps a split to the fields of its shards."""
    units = list(units)
    shards = {name: [Shard(**s) for unit in units for s in unit.get(name, ())] for name in SPLITS}
    return {name: Split(tuple(shards[name])) for name in SPLITS}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Describes a record directory for training. Base class of both formats."""

    format: ClassVar[str]
    special_pieces: ClassVar[int]  # number of special pieces that are added to each record

    max_seq_length: int
    vocab_sha256: str
    vocab_size: int
    do_lower_case: bool
    keep_accents: bool = False
    latex_quotes: bool = False
    code_version: str
    splits: dict[str, Split]

    @property
    def heldout_split(self) -> dict[str, Any] | None:
        """The settings that select the held-out documents. None: unknown."""
        return None

    @property
    def share_with_order(self) -> float | None:
        """Ratio of segments that can have a sentence-order label. None: static examples."""
        return None

    @property
    def text_settings(self) -> TextSettings:
        """How the text was prepared."""
        return TextSettings(*(getattr(self, name) for name in TextSettings._fields))

    @classmethod
    def read(cls, record_dir: str) -> "Manifest":
        """Reads the manifest of a record directory; raises a UserError if it is not valid."""
        path = os.path.join(record_dir, MANIFEST_FILE)
        if not tf.io.gfile.exists(path):
            raise UserError(
                f"no {MANIFEST_FILE} in {record_dir!r}: not a directory of finished records; "
                "pipelines.create_pretraining_data writes it at its end, and "
                "pipelines.index_records for records of the reference"
            )
        values = files.read_json(path)
        formats = {kind.format: kind for kind in Manifest.__subclasses__()}
        try:
            fields = {name: value for name, value in values.items() if name != "format"}
            shards = {name: values["splits"][name]["shards"] for name in SPLITS}
            return formats[values["format"]](**{**fields, "splits": make_splits([shards])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{path}: damaged, or of another version ({values.get('code_version')}; this code "
                f"is {albert_tf.__version__}): {error}. Write the records again and train on them "
                "in a new directory, or use the version that wrote them"
            ) from error

    @classmethod
    def read_finished(cls, output_dir: str) -> "Manifest | None":
        """Reads the manifest and prints a summary; returns None if the job is not finished."""
        if not tf.io.gfile.exists(os.path.join(output_dir, MANIFEST_FILE)):
            return None
        manifest = cls.read(output_dir)
        print(f"finished before: {manifest.summary()} in {output_dir}")
        return manifest

    def summary(self) -> str:
        """Returns a readable summary of the records."""
        return " and ".join(f"{self.splits[name].examples:,} {name}" for name in SPLITS)

    def write(self, record_dir: str) -> None:
        """Writes manifest.json, which marks the record directory as finished."""
        values = {"format": self.format, **dataclasses.asdict(self)}
        values["splits"] = {
            name: {
                "examples": split.examples,
                "pieces": split.pieces,
                "shards": [dataclasses.asdict(shard) for shard in split.shards],
            }
            for name, split in self.splits.items()
        }
        files.write_json(os.path.join(record_dir, MANIFEST_FILE), values, indent=1)

    def paths(self, record_dir: str, split: str) -> list[str]:
        """Returns the paths of the shards of a split."""
        return [
            shard.file if "://" in shard.file else os.path.join(record_dir, shard.file)
            for shard in self.splits[split].shards
        ]

    @property
    def mean_length(self) -> float:
        """Mean number of pieces in a training example, including special pieces."""
        return self.splits["train"].pieces / self.splits["train"].examples + self.special_pieces

    def fingerprint(self) -> str:
        """Returns a hash of the records that is independent of the directory and input paths."""
        shards = [
            (name, os.path.basename(shard.file), shard.sha256)
            for name in SPLITS
            for shard in self.splits[name].shards
        ]
        return hashlib.sha256(json.dumps(shards).encode()).hexdigest()

    def files(self, record_dir: str) -> list[tuple[str, Shard]]:
        """Returns the path of each shard of both splits, and the shard."""
        return [
            found
            for name in SPLITS
            for found in zip(self.paths(record_dir, name), self.splits[name].shards)
        ]

    def check(self, record_dir: str, tokenizer: AlbertTokenizer, options: ExampleOptions) -> None:
        """Raises a UserError if the records, or their sizes, do not match the arguments."""
        records = f"the records in {record_dir!r}"
        if tokenizer.sha256 != self.vocab_sha256:
            raise UserError(
                f"{records} were made with another vocabulary (of {self.vocab_size} pieces, "
                f"SHA-256 {self.vocab_sha256[:12]}…) than the one given (of "
                f"{tokenizer.vocab_size}, {tokenizer.sha256[:12]}…): pass the first one, or make "
                "records again with pipelines.create_pretraining_data"
            )
        if tokenizer.settings != self.text_settings:
            raise UserError(
                f"{records} were made with {self.text_settings}, but the tokenizer has "
                f"{tokenizer.settings}"
            )
        self._check_options(records, options)
        shards = self.files(record_dir)
        sizes = files.sizes([path for path, _ in shards])
        for path, shard in shards:
            if sizes[path] != shard.bytes:
                raise UserError(
                    f"{path} has {sizes[path]:,} bytes, but {shard.bytes:,} by {MANIFEST_FILE}: it "
                    "is damaged; copy it again, or write the records again"
                )

    def _check_options(self, records: str, options: ExampleOptions) -> None:
        raise NotImplementedError


@contextlib.contextmanager
def naming_damaged_shards(*record_dirs: str) -> Iterator[None]:
    """Replaces TensorFlow's error about unreadable records with a UserError that names the file.

    If all shards have the hashes in their manifests, the error is re-raised.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        # A model raises InvalidArgumentError, too, and hashing hundreds of GB takes long.
        if isinstance(error, tf.errors.InvalidArgumentError) and "ParseExample" not in str(error):
            raise
        print("unreadable records: comparing the shards with manifest.json", file=sys.stderr)
        for record_dir in record_dirs:
            for path, shard in Manifest.read(record_dir).files(record_dir):
                if files.sha256(path) != shard.sha256:
                    raise UserError(
                        f"{path} is damaged: its SHA-256 differs from {MANIFEST_FILE}; copy it "
                        "again, or write the records again"
                    ) from error
        raise


@dataclass(frozen=True, kw_only=True)
class SegmentManifest(Manifest):
    """Settings and content of a directory of segments. Counts are totals over both splits."""

    format: ClassVar[str] = "segments"
    special_pieces: ClassVar[int] = NUM_SPECIAL_PIECES

    short_seq_prob: float
    heldout_fraction: float
    seed: int
    documents: int
    sentences: int
    segments: int
    segments_with_order: int  # see segments.has_order
    openings_with_order: int  # like segments_with_order, but only first segments of documents
    pieces: int
    skipped_lines: int
    duplicate_documents: int = 0  # skipped, not included in any other count

    @property
    def share_with_order(self) -> float:
        """See Manifest and segments.has_order."""
        return self.segments_with_order / max(self.segments, 1)

    @property
    def heldout_split(self) -> dict[str, Any]:
        """See Manifest."""
        return {"random_seed": self.seed, "heldout_fraction": self.heldout_fraction}

    def summary(self) -> str:
        """See Manifest."""
        skipped, repeated = self.skipped_lines, self.duplicate_documents
        return (
            f"{super().summary()} segments of {self.documents:,} documents, {self.pieces:,} "
            f"pieces; {100 * self.share_with_order:.0f} % of the segments can have a "
            f"sentence-order label, {self.openings_with_order:,} of them open a document"
            + (f" ({repeated:,} duplicates skipped)" if repeated else "")
            + (f" ({skipped:,} bad lines skipped)" if skipped else "")
        )

    def _check_options(self, records: str, options: ExampleOptions) -> None:
        if self.max_seq_length > options.max_seq_length:
            raise UserError(
                f"{records} were made for max_seq_length {self.max_seq_length} and do not fit "
                f"into {options.max_seq_length}: raise it, or make shorter records with "
                "pipelines.create_pretraining_data"
            )


@dataclass(frozen=True, kw_only=True)
class ReferenceManifest(Manifest):
    """Settings and content of static examples that the reference wrote."""

    format: ClassVar[str] = "reference"
    special_pieces: ClassVar[int] = 0

    max_predictions_per_seq: int
    sentence_objective: str  # meaning of next_sentence_labels

    def summary(self) -> str:
        """See Manifest."""
        return f"{super().summary()} static examples"

    def _check_options(self, records: str, options: ExampleOptions) -> None:
        names = ["max_seq_length", "max_predictions_per_seq"]
        names += ["sentence_objective"] * options.objective.has_label
        for name in names:
            theirs, ours = getattr(self, name), getattr(options, name)
            if theirs != ours:
                raise UserError(
                    f"{records} are static examples of {name} {theirs}, not {ours}: give "
                    f"--{name}={theirs}"
                )
        for name in ("masked_lm_prob", "ngram", "mask_token_rate"):
            if (ours := getattr(options, name)) != getattr(ExampleOptions, name):
                raise UserError(
                    f"{records} are static examples, whose masks are fixed, so --{name}={ours:g} "
                    "has no effect: omit it"
                )
