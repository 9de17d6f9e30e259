"""Creates static examples in the reference's format from segment records.

The training graph computes the examples in several passes over the segments. One pass over one
shard of segments is a unit of work. Held-out segments get only one pass, because repeated examples
would make evaluation results look more certain than they are.

Deviation: some segments have no sentence label (see sentence_pairs), which the format cannot
express. They are written as `[CLS] A [SEP]` with a random label, so that models trained by other
programs learn that a single part has no order. Our own training gives these labels weight 0.
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
from .records import (
    SPLITS,
    SegmentManifest,
    naming_damaged_shards,
    parse_segments,
    write_records,
)
from .reference_examples import serialize_examples
from .shard_writer import Settings, load_tokenizer
from .unit_job import Unit

# Subdirectory of the segment records from which the static examples are drawn.
SEGMENTS_DIR = "segments"

# Number of rows per call of the graph function.
_ROWS = 256


@dataclass(frozen=True)
class PassUnit(Unit):
    """One pass over a shard of segments."""

    source: str  # name of the shard's file in SEGMENTS_DIR
    split: str
    first: int  # index of the shard's first segment, counted over all shards of both splits
    pass_number: int  # starts at 0


def plan_passes(segments: SegmentManifest, dupe_factor: int) -> list[PassUnit]:
    """Returns `dupe_factor` units for each training shard and one unit for each held-out shard."""
    units, first = [], 0
    for split in SPLITS:
        for shard in segments.splits[split].shards:
            for number in range(dupe_factor if split == "train" else 1):
                name = f"{os.path.splitext(shard.file)[0]}-pass-{number:03d}"
                units.append(PassUnit(name, shard.bytes, shard.file, split, first, number))
            first += shard.examples
    return sorted(units, key=lambda unit: (unit.split != "train", unit.pass_number, unit.first))


def write_pass(unit: PassUnit, settings: Settings, options: ExampleOptions) -> dict:
    """Writes the examples of a unit; returns the content of the unit's file.

    The shard is renamed to its final name when it is complete. Its bytes depend only on the
    segments and options, because order and draws are determined by (seed, pass, position).
    """
    tokenizer = load_tokenizer(settings.spm_model_file, *settings.text_settings)
    word_starts, make_examples = tokenizer.word_starts(), _example_graph(options, tokenizer)
    source = os.path.join(SEGMENTS_DIR, unit.source)
    segments = tf.data.TFRecordDataset(os.path.join(settings.output_dir, source))
    with naming_damaged_shards(os.path.join(settings.output_dir, SEGMENTS_DIR)):
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
    """Returns a graph function that converts records to examples; created once per process."""
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
