"""Validates files of the reference's static examples for pipelines.index_records."""

import array
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from .records import shard_layout
from .reference_examples import check_examples, example_lengths
from .shard_writer import load_tokenizer
from .unit_job import Unit


@dataclass(frozen=True)
class FileUnit(Unit):
    """A unit of work: one TFRecord file."""

    path: str


def first_lengths(paths: Sequence[str]) -> tuple[int, int]:
    """Returns L and P (see reference_examples) of the first record, or zeros if there is none."""
    first = next(itertools.chain.from_iterable(map(_records, paths)), None)
    return example_lengths(first or b"")


def check_file(unit: FileUnit, lengths: tuple[int, int], vocabulary: tuple) -> dict:
    """Validates a file of records with `lengths` (L, P); returns the content of the unit's file.

    `vocabulary` has the path of the vocabulary and its TextSettings.
    """
    tokenizer = load_tokenizer(*vocabulary)
    pieces = 0
    record_bytes = array.array("q")
    records = _records(unit.path)
    while batch := list(itertools.islice(records, 256)):
        batch_pieces, fault = check_examples(batch, lengths, tokenizer)
        if fault:
            index, problem = fault
            raise UserError(
                f"{unit.path}: record {len(record_bytes) + index + 1}: {problem}; expected static "
                "examples of the reference's create_pretraining_data.py, all of one length, made "
                "with this vocabulary: omit the file, or write it again"
            )
        pieces += batch_pieces
        record_bytes.extend(map(len, batch))
    if not record_bytes:
        return {"shards": {}}
    shard = {
        "file": files.absolute(unit.path),
        "source": os.path.basename(unit.path),
        "pieces": pieces,
        "sha256": files.sha256(unit.path),
        **shard_layout(record_bytes),
    }
    return {"shards": {"train": [shard]}}


def _records(path: str) -> Iterator[bytes]:
    """Yields the records; raises a UserError if the file is damaged or not a TFRecord file."""
    number = 0
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            number += 1
            yield record
    except tf.errors.DataLossError as error:
        reason = str(error).split("{{")[-1].split("}}")[-1].strip() or str(error)
        raise UserError(
            f"{path}: record {number + 1}: cut or damaged, or no uncompressed TFRecord "
            f"({reason.split(' [Op:')[0]}): fetch the file again, or omit it"
        ) from None
