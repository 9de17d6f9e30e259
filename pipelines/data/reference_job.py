"""Draws static examples in the reference's format from segment records.

The training graph computes the examples, in several passes over the segments. One pass over one
segment shard is a unit of work. Held-out segments get one pass: counting them several times would
make an evaluation look more certain than it is.

Deviation: some segments get no sentence label (see sentence_pairs), which the format cannot
express. They are written as `[CLS] A [SEP]` with a random label, so other programs learn that a
single part has no order. Our own training gives these examples no weight.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from albert_tf.storage import files
from albert_tf.text.tokenization import AlbertTokenizer
from .examples import ExampleOptions, example_draws, example_maker
from .records import SPLITS, SegmentManifest, parse_segments, write_records
from .reference_examples import serialize_examples
from .shard_writer import Settings, load_tokenizer
from .unit_job import Unit

# The subdirectory with the segments from which the static examples are drawn.
SEGMENTS_DIR = "segments"

# Number of rows per call of the graph.
_ROWS = 256


@dataclass(frozen=True)
class PassUnit(Unit):
    """One pass over a shard of segments."""

    source: str  # file of the shard in the segments' directory
    split: str
    first: int  # number of the shard's first segment, counted over all shards of both splits
    pass_number: int  # counted from 0


def plan_passes(segments: SegmentManifest, dupe_factor: int) -> list[PassUnit]:
    """Returns the units: `dupe_factor` passes over training shards, one over held-out shards."""
    units, first = [], 0
    for split in SPLITS:
        for shard in segments.splits[split].shards:
            for number in range(dupe_factor if split == "train" else 1):
                name = f"{os.path.splitext(shard.file)[0]}-pass-{number:03d}"
                units.append(PassUnit(name, shard.bytes, shard.file, split, first, number))
            first += shard.examples
    return sorted(units, key=lambda unit: (unit.split != "train", unit.pass_number, unit.first))


def write_pass(unit: PassUnit, settings: Settings, options: ExampleOptions) -> dict:
    """Writes the examples of a unit; returns the unit's marker with counts of the examples.

    The shard gets its final name when it is complete. Its bytes depend on segments and options
    only, because (seed, pass, position) determine order and draws.
    """
    tokenizer = load_tokenizer(settings.spm_model_file, settings.do_lower_case)
    word_starts, make_examples = tokenizer.word_starts(), _example_graph(options, tokenizer)
    source = os.path.join(SEGMENTS_DIR, unit.source)
    segments = tf.data.TFRecordDataset(os.path.join(settings.output_dir, source))
    segments = segments.batch(tf.int64.max).get_single_element()
    # The 2 in the counter separates this stream from the streams of training_order.
    bits = np.random.Philox(
        key=[options.seed % 2**64, unit.pass_number], counter=[0, 0, 2, unit.first]
    )
    rng = np.random.Generator(bits)
    order = rng.permutation(segments.shape[0])
    counts = Counter(pieces=0, unlabelled=0)

    def examples() -> Iterator[bytes]:
        for row in range(0, len(order), _ROWS):
            batch = make_examples(
                tf.gather(segments, order[row : row + _ROWS]),
                tf.constant([options.seed, unit.pass_number], tf.int64),
                tf.constant(unit.first + row, tf.int64),
            )
            batch = {name: value.numpy() for name, value in batch.items()}
            if options.objective.has_label:
                alone = batch["sentence_order_weights"] == 0
                batch["sentence_order_labels"][alone] = rng.integers(0, 2, alone.sum())
                counts["unlabelled"] += int(alone.sum())
            counts["pieces"] += int(batch["input_mask"].sum())
            yield from serialize_examples(batch, word_starts, tokenizer)

    file = f"{unit.name}.tfrecord"
    with files.whole_files(settings.output_dir) as partial_path:
        written = write_records(partial_path(file), examples())
    source = f"pass {unit.pass_number} over {source}"
    shard = {"file": file, "source": source, "pieces": counts["pieces"], **written}
    return {"unlabelled": counts["unlabelled"], "shard": shard}


@functools.lru_cache(maxsize=1)
def _example_graph(options: ExampleOptions, tokenizer: AlbertTokenizer):
    """Returns a graph (records, seed [2], position of the first) -> examples, once per process."""
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

    return make_examples
