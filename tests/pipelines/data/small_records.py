"""Small directories of records that tests write, and what such directories hold."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.create_pretraining_data import create_pretraining_data
from pipelines.data import records
from pipelines.data.beam_job import Workers
from pipelines.data.segments import Segment
from pipelines.data.shard_writer import Settings

LENGTH, PREDICTIONS = 19, 5  # of static examples
CLS, SEP = 2, 3


def shard(sizes, name="", part_bytes=1 << 16):
    """A shard of records of these sizes, in parts of some `part_bytes`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_MIN_PART_BYTES", part_bytes)
        layout = records.shard_layout(sizes)
    return records.Shard(name, "corpus.txt", pieces=9 * len(sizes), sha256=name, **layout)


def manifest_of(splits, **values):
    """A manifest whose counts are made up."""
    counts = {"documents": 3, "sentences": 9, "segments": 34, "pieces": 99, "skipped_lines": 0}
    orders = {"segments_with_order": 34, "openings_with_order": 0}
    made_with = {"max_seq_length": 24, "short_seq_prob": 0.1, "heldout_fraction": 0.1, "seed": 1}
    made_with.update(do_lower_case=True, code_version="0")
    return records.SegmentManifest(**{**counts, **orders, **made_with, **values}, splits=splits)


def create_records(input_file, output_dir, vocabulary, shard_bytes=64_000_000, **changes):
    """Does a record job; `changes` are those of its settings."""
    where = str(input_file), str(output_dir), str(vocabulary)
    values = {"max_seq_length": 41, "heldout_fraction": 0.2, **changes}
    text_settings = AlbertTokenizer(str(vocabulary)).settings
    settings = Settings(*where, **values, text_settings=text_settings, shard_bytes=shard_bytes)
    return create_pretraining_data(settings, Workers(num_workers=1))


def write_shards(directory, tokenizer, found, part_bytes=1 << 16):
    """Writes the records of each split's shards, in parts; returns the record directory."""
    splits = {}
    for split, shards in found.items():
        written = []
        for number, of_shard in enumerate(shards):
            name = f"{split}-{number}.tfrecord"
            records.write_records(str(directory / name), of_shard)
            written.append(shard([*map(len, of_shard)], name, part_bytes))
        splits[split] = records.Split(tuple(written))
    vocabulary = {"vocab_sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size}
    manifest_of(splits, **vocabulary).write(str(directory))
    return str(directory)


def static_example(number=0, **changes) -> bytes:
    """Returns a record of 11 to 13 pieces whose second piece numbers it."""
    used = 11 + number % 3
    ids = [CLS, 20 + number, 50, 51, SEP, *range(60, 60 + used - 6), SEP]
    features = {
        "input_ids": ids + [0] * (LENGTH - used),
        "input_mask": [1] * used + [0] * (LENGTH - used),
        "segment_ids": [0] * 5 + [1] * (used - 5) + [0] * (LENGTH - used),
        "token_boundary": [1] * used + [0] * (LENGTH - used),
        "masked_lm_positions": [2, 6, 0, 0, 0],
        "masked_lm_ids": [55, 61, 0, 0, 0],
        "masked_lm_weights": [1.0, 1.0, 0.0, 0.0, 0.0],
        "next_sentence_labels": [number % 2],
        **changes,
    }
    example = tf.train.Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        kind = feature.float_list if isinstance(values[0], float) else feature.int64_list
        kind.value.extend(values)
    return example.SerializeToString()


def stand_in_tokenizer(word_starts):
    """What makes examples of a vocabulary whose first five pieces are control pieces."""
    size = len(word_starts)
    return SimpleNamespace(
        **{"unk_id": 1, "cls_id": 2, "sep_id": 3, "mask_id": 4, "vocab_size": size},
        sha256="of nothing",
        word_starts=lambda: word_starts,
        is_wordpiece=False,
        replacement_ids=lambda: np.arange(5, size, dtype=np.int32),
    )


def as_tensors(segments, documents=None, rooms=None, opens=None):
    """Segments as records.parse_segments returns them; each is a list of sentences."""
    rows = range(len(segments))
    nothing = [0] * len(segments)
    starts = [np.cumsum([0, *map(len, segment[:-1])]).tolist() for segment in segments]
    return {
        "input_ids": tf.ragged.constant([sum(s, []) for s in segments], dtype=tf.int32),
        "sentence_starts": tf.ragged.constant(starts, dtype=tf.int32),
        "document_id": tf.constant([[d] for d in documents or rows], tf.int64),
        "room_before": tf.constant([[room] for room in rooms or nothing], tf.int64),
        "opens_document": tf.constant([[o] for o in opens or nothing], tf.int64),
    }


def contents(directory) -> dict[str, bytes]:
    """Returns path -> bytes of every file below a directory."""
    paths = [path for path in Path(directory).rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def read_segments(paths) -> list[tuple[Segment, int]]:
    """Returns the segments of files with the hash of their documents."""
    found = []
    for record in tf.data.TFRecordDataset([str(path) for path in paths]):
        parsed = tf.io.parse_single_example(record, records.SEGMENT_FEATURES)
        values = {name: value.numpy().tolist() for name, value in parsed.items()}
        pieces, starts = values["input_ids"], values["sentence_starts"]
        segment = Segment(pieces, starts, *values["room_before"], bool(*values["opens_document"]))
        found.append((segment, *values["document_id"]))
    return found


def reference_manifest(manifest):
    """Returns the manifest of static examples with what another manifest says of both formats."""
    common = {f.name: getattr(manifest, f.name) for f in dataclasses.fields(records.Manifest)}
    own = {"max_predictions_per_seq": 4, "sentence_objective": "nsp"}
    return records.ReferenceManifest(**common, **own)
