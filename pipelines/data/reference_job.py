"""Draws static examples in the reference's format from segment records.

They come out of the graph that training runs, for a number of passes; a pass over a segment shard
is a unit of work. Held-out segments get one pass: an evaluation that counts them several times
would take itself for more certain than it is.

Deviation: not every segment gets a sentence label (see sentence_pairs), and the format has no way
to say so. Such a segment is written as `[CLS] A [SEP]`, its label drawn by a coin: whoever learns
from it learns that a single part tells nothing. Our own training gives it no weight.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

import albert_tf
from albert_tf import files
from albert_tf.tokenization import AlbertTokenizer
from pipelines.data.examples import ExampleOptions, example_draws, example_maker
from pipelines.data.records import (
    MANIFEST_FILE,
    SPLITS,
    Manifest,
    ReferenceManifest,
    SegmentManifest,
    Shard,
    Split,
    parse_segments,
    shard_layout,
)
from pipelines.data.reference_examples import serialize_examples
from pipelines.data.shard_writer import UNITS_DIR
from pipelines.data.unit_job import remove_leftovers, run_units, unit_progress

# The directory, in that of the static examples, of the segments they are drawn from.
SEGMENTS_DIR = "segments"

# Draws are made for so many rows at a time.
_ROWS = 256


def draw_examples(
    segments: SegmentManifest,
    options: ExampleOptions,
    dupe_factor: int,
    spm_model_file: str,
    output_dir: str,
    **where,
) -> ReferenceManifest:
    """Writes static examples of the segments in OUTPUT_DIR/segments into `output_dir`.

    What is done is not done again.

    Args:
      dupe_factor: passes over the training segments, each with draws of its own.
      where: `runner`, `num_workers` and `beam_options` of beam_job.run.
    """
    if tf.io.gfile.exists(os.path.join(output_dir, MANIFEST_FILE)):
        manifest = Manifest.read(output_dir)
        print(f"finished before: {_summary(manifest)} in {output_dir}")
        return manifest
    remove_leftovers(output_dir)
    units = plan_passes(segments, dupe_factor)
    work = functools.partial(
        write_pass,
        options=options,
        spm_model_file=spm_model_file,
        do_lower_case=segments.do_lower_case,
        output_dir=output_dir,
    )
    with unit_progress("drawing examples", units, "json", output_dir) as pending:
        run_units(work, pending, output_dir, **where)
    manifest = _collect(units, segments, options, dupe_factor, output_dir)
    manifest.write(output_dir)
    print(f"{_summary(manifest)} in {output_dir}")
    return manifest


@dataclass(frozen=True)
class ReferenceUnit:
    """One pass over a shard of segments.

    Attributes:
      source: file of the shard in the segments' directory.
      bytes: of the shard.
      split: "train" or "heldout".
      first: number of the shard's first segment, counted over all shards of both splits.
      pass_number: which of the passes, from 0 on.
    """

    source: str
    bytes: int
    split: str
    first: int
    pass_number: int

    @property
    def name(self) -> str:
        """The unit's part of file names; begins with the split."""
        return f"{self.source.rsplit('.', 1)[0]}-pass-{self.pass_number:03d}"

    def file(self, kind: str) -> str:
        """Returns the name, in the record directory, of the marker that says it is done."""
        return os.path.join(UNITS_DIR, f"{self.name}.{kind}")


def plan_passes(segments: SegmentManifest, dupe_factor: int) -> list[ReferenceUnit]:
    """Returns the units of `dupe_factor` passes over training segments and one over the others."""
    units, first = [], 0
    for split in SPLITS:
        for shard in segments.split(split):
            units.extend(
                ReferenceUnit(shard.file, shard.bytes, split, first, number)
                for number in range(dupe_factor if split == "train" else 1)
            )
            first += shard.examples
    return sorted(units, key=lambda unit: (unit.split != "train", unit.pass_number, unit.first))


def write_pass(
    unit: ReferenceUnit,
    options: ExampleOptions,
    spm_model_file: str,
    do_lower_case: bool,
    output_dir: str,
) -> None:
    """Writes the examples of a unit and, last, the marker with their counts.

    The shard gets its name when it is complete. Its bytes are a function of segments and options:
    order and draws come from (seed, pass, position).
    """
    tokenizer, word_starts, make_examples = _load(options, spm_model_file, do_lower_case)
    source = os.path.join(output_dir, SEGMENTS_DIR, unit.source)
    segments = tf.data.TFRecordDataset(source).batch(tf.int64.max).get_single_element()
    # The third number keeps this stream apart from those of training_order.
    bits = np.random.Philox(
        key=[options.seed % 2**64, unit.pass_number], counter=[0, 0, 2, unit.first]
    )
    rng = np.random.Generator(bits)
    order = rng.permutation(segments.shape[0])
    path = os.path.join(output_dir, f"{unit.name}.tfrecord")
    partial = files.partial_name(path)
    pieces = unlabelled = 0
    record_bytes: list[int] = []
    try:
        with tf.io.TFRecordWriter(partial) as writer:
            for row in range(0, len(order), _ROWS):
                batch = make_examples(
                    tf.gather(segments, order[row : row + _ROWS]),
                    tf.constant([options.seed, unit.pass_number], tf.int64),
                    tf.constant(unit.first + row, tf.int64),
                )
                batch = {name: value.numpy() for name, value in batch.items()}
                if options.sentence_objective != "none":
                    alone = batch["sentence_order_weights"] == 0
                    batch["sentence_order_labels"][alone] = rng.integers(0, 2, alone.sum())
                    unlabelled += int(alone.sum())
                for record in serialize_examples(batch, word_starts, tokenizer):
                    writer.write(record)
                    record_bytes.append(len(record))
                pieces += int(batch["input_mask"].sum())
        shard = {
            "file": os.path.basename(path),
            "source": f"pass {unit.pass_number} over {os.path.join(SEGMENTS_DIR, unit.source)}",
            "pieces": pieces,
            "sha256": files.sha256(partial),
            **shard_layout(record_bytes),
        }
        tf.io.gfile.rename(partial, path, overwrite=True)
    finally:
        if tf.io.gfile.exists(partial):
            tf.io.gfile.remove(partial)
    marker = {"unlabelled": unlabelled, "shard": shard}
    files.write_atomically(os.path.join(output_dir, unit.file("json")), json.dumps(marker) + "\n")


def _collect(
    units: Sequence[ReferenceUnit],
    segments: SegmentManifest,
    options: ExampleOptions,
    dupe_factor: int,
    output_dir: str,
) -> ReferenceManifest:
    """Makes the manifest of all units from their markers."""
    unlabelled = 0
    shards: dict[str, list[Shard]] = {split: [] for split in SPLITS}
    for unit in units:
        marker = files.read_json(os.path.join(output_dir, unit.file("json")))
        shards[unit.split].append(Shard(**marker["shard"]))
        unlabelled += marker["unlabelled"]
    drawn_with = {
        "masked_lm_prob": options.masked_lm_prob,
        "ngram": options.ngram,
        "seed": options.seed,
        "dupe_factor": dupe_factor,
        "segments": segments.fingerprint(),
        "unlabelled": unlabelled,
    }
    return ReferenceManifest(
        max_seq_length=options.max_seq_length,
        max_predictions_per_seq=options.max_predictions_per_seq,
        sentence_objective=options.sentence_objective,
        vocab_sha256=segments.vocab_sha256,
        vocab_size=segments.vocab_size,
        do_lower_case=segments.do_lower_case,
        code_version=albert_tf.__version__,
        drawn_with=drawn_with,
        splits={split: Split(tuple(shards[split])) for split in SPLITS},
    )


@functools.lru_cache(maxsize=1)
def _load(options: ExampleOptions, spm_model_file: str, do_lower_case: bool):
    """Returns tokenizer, word_starts and the graph, once for all units of a process."""
    tokenizer = AlbertTokenizer(spm_model_file, do_lower_case)
    make = example_maker(options, tokenizer)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string),
            tf.TensorSpec([2], tf.int64),
            tf.TensorSpec([], tf.int64),
        ]
    )
    def make_examples(records, seed, position):
        seed = tf.random.experimental.stateless_fold_in(seed, position)
        return make(parse_segments(records), example_draws(options, tf.shape(records)[0], seed))

    return tokenizer, tokenizer.word_starts(), make_examples


def _summary(manifest: ReferenceManifest) -> str:
    splits = [f"{manifest.splits[name].examples:,} {name}" for name in SPLITS]
    unlabelled = manifest.drawn_with["unlabelled"]
    return f"{' and '.join(splits)} static examples" + (
        f" ({unlabelled:,} of a single part, whose label is drawn by a coin)" if unlabelled else ""
    )
