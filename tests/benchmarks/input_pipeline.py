"""Measures how fast segment records become batches, and what each part of the way costs.

Writes records of random pieces with realistic lengths to a temporary directory and prints one JSON
line per length and part, then a table: median, lowest and highest examples/s over the rounds, and
TensorFlow's best rate of products of two 2048 x 2048 matrices, right before and after them. Parts
are measured alone on records in memory; "records to batches" is the pipeline that training reads.

Example:
  python -m tests.benchmarks.input_pipeline --seq_lengths=128,512 --rounds=5
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import tempfile
import time
from types import SimpleNamespace

import numpy as np
import tensorflow as tf
from absl import flags

from albert_tf.jobs import program
from pipelines.data import pretraining_dataset as pipeline
from pipelines.data.examples import ExampleOptions, example_draws
from pipelines.data.masking import MaskingVocabulary, mask_ngrams
from pipelines.data.records import (
    Manifest,
    SegmentManifest,
    Shard,
    Split,
    parse_segments,
    serialize_segment,
    shard_layout,
)
from pipelines.data.segments import Segment
from pipelines.data.sentence_pairs import choose_pairs, lay_out
from tests.benchmarks.measuring import ceiling, print_table, tensorflow_product
from tests.benchmarks.memory import peak_megabytes

FLAGS = flags.FLAGS

_VOCAB_SIZE = 30_000
_SHARDS = 4
# As measured on English novels with the published vocabulary.
_MEAN_SENTENCE = 32  # pieces
_WORD_STARTS = 0.91  # share of the running pieces that begin a word
_ID_SKEW = 10  # power of a uniform draw; two fifths of the pieces take two bytes or more on disk
_SHORT_SHARE = 0.1

# All that the pipeline takes from a tokenizer: a benchmark needs no vocabulary file.
_TOKENIZER = SimpleNamespace(
    cls_id=2,
    sep_id=3,
    mask_id=4,
    vocab_size=_VOCAB_SIZE,
    word_starts=lambda: np.random.default_rng(1).random(_VOCAB_SIZE) < _WORD_STARTS,
    replacement_ids=lambda: np.arange(5, _VOCAB_SIZE, dtype=np.int32),
)


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_list("seq_lengths", ["128", "512"], "Lengths to measure.")
    flags.DEFINE_integer("batch_size", 512, "Examples in a batch.", lower_bound=1)
    flags.DEFINE_integer("examples", 40_000, "Records in the temporary directory.", lower_bound=1)
    flags.DEFINE_integer("rounds", 5, "Rounds; the median counts.", lower_bound=1)
    flags.DEFINE_float("seconds", 3.0, "Length of a round.", lower_bound=0.1)


def main(_) -> None:
    """Reads the flags."""
    lines = []
    for seq_length in map(int, FLAGS.seq_lengths):
        for line in measure(
            seq_length, FLAGS.batch_size, FLAGS.examples, FLAGS.rounds, FLAGS.seconds
        ):
            print(json.dumps(line), flush=True)
            lines.append(line)
    columns = {"seq_length": "d", "part": "", "examples_per_second": ",d", "lowest": ",d"}
    columns |= {"highest": ",d", "peak_megabytes": "d", "ceiling_gflop_per_second": ".0f"}
    print_table(columns, [[line[name] for name in columns] for line in lines])


def measure(
    seq_length: int, batch_size: int, examples: int, rounds: int, seconds: float
) -> list[dict]:
    """Returns the figures of each part at one length."""
    options = ExampleOptions(max_seq_length=seq_length)
    with tempfile.TemporaryDirectory() as record_dir:
        write_records(record_dir, seq_length, examples)
        parts = make_parts(record_dir, options, batch_size)
        rates = {name: [] for name in parts}
        for part in parts.values():
            part()  # traces the graph, fills buffers
        product = tensorflow_product()
        before = ceiling(product)
        # All parts in each round, so that what else the machine does meets all of them.
        for _ in range(rounds):
            for name, part in parts.items():
                rates[name].append(rate(part, batch_size, seconds))
    ceiling_rate = max(before, ceiling(product))
    lines = []
    for name, values in rates.items():
        figures = {
            "part": name,
            "seq_length": seq_length,
            "batch_size": batch_size,
            "examples_per_second": round(statistics.median(values)),
            "lowest": round(min(values)),
            "highest": round(max(values)),
            "rounds": rounds,
            "cpus": len(os.sched_getaffinity(0)),
            "ceiling_gflop_per_second": round(ceiling_rate, 1),
            "peak_megabytes": peak_megabytes(),
        }
        lines.append(figures)
    return lines


def rate(part, batch_size: int, seconds: float) -> float:
    """Returns examples/s of a part that makes one batch a call."""
    started, batches = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        part()
        batches += 1
    return batches * batch_size / (time.perf_counter() - started)


def make_parts(record_dir: str, options: ExampleOptions, batch_size: int) -> dict:
    """Returns name -> function that makes one batch (of the part's own output)."""
    shards = Manifest.read(record_dir).split("train")
    files = [os.path.join(record_dir, shard.file) for shard in shards]
    raw = tf.data.TFRecordDataset(files).repeat().batch(batch_size, drop_remainder=True)
    records = next(iter(raw))
    draws = example_draws(options, batch_size, tf.constant([options.seed, 0], tf.int64))
    vocabulary = MaskingVocabulary(
        _TOKENIZER.mask_id, _TOKENIZER.word_starts(), _TOKENIZER.replacement_ids()
    )

    @tf.function
    def draw(step):
        seed = tf.stack([tf.constant(options.seed, tf.int64), step])
        return example_draws(options, batch_size, seed)

    parse = tf.function(parse_segments)

    @tf.function
    def pair(segments):
        pairs = choose_pairs(
            segments,
            draws["split"][:, 0],
            draws["change"][:, 0],
            options.objective,
            options.max_seq_length,
        )
        return lay_out(
            pairs, segments, options.max_seq_length, _TOKENIZER.cls_id, _TOKENIZER.sep_id
        )

    @tf.function
    def mask(example):
        return mask_ngrams(
            example,
            vocabulary,
            draws,
            options.max_predictions_per_seq,
            options.masked_lm_prob,
            options.ngram,
        )

    segments = parse(records)
    example = pair(segments)
    raw_iterator = iter(raw)
    sources = pipeline.read_sources(record_dir)
    batches = iter(pipeline.pretraining_dataset(sources, options, _TOKENIZER, batch_size))
    return {
        "records to batches": lambda: next(batches),
        "read": lambda: next(raw_iterator),
        "parse": lambda: parse(records),
        "draw": lambda: draw(tf.constant(0, tf.int64)),
        "sentence order": lambda: pair(segments),
        "mask": lambda: mask(example),
    }


def write_records(record_dir: str, seq_length: int, examples: int) -> None:
    """Writes records of random pieces: full but for a tenth, in sentences of varying lengths."""
    rng = np.random.default_rng(0)
    longest = seq_length - 3
    shards = []
    for index in range(_SHARDS):
        name = f"train-{index:05d}-of-{_SHARDS:05d}.tfrecord"
        pieces, sizes = 0, []
        with tf.io.TFRecordWriter(os.path.join(record_dir, name)) as writer:
            for _ in range(index, examples, _SHARDS):
                low = 2 if rng.random() < _SHORT_SHARE else int(0.9 * longest)
                length = int(rng.integers(low, longest + 1))
                ids = 5 + ((_VOCAB_SIZE - 5) * rng.random(length) ** _ID_SKEW).astype(np.int64)
                ends = np.cumsum(1 + rng.poisson(_MEAN_SENTENCE - 1, length))
                starts = [0, *ends[ends < length].tolist()]
                record = serialize_segment(Segment(ids.tolist(), starts, 0, False), index)
                writer.write(record)
                sizes.append(len(record))
                pieces += length
        shards.append(Shard(name, "random", pieces=pieces, sha256="", **shard_layout(sizes)))
    SegmentManifest(
        max_seq_length=seq_length,
        short_seq_prob=_SHORT_SHARE,
        heldout_fraction=0.0,
        seed=0,
        vocab_sha256=hashlib.sha256(b"").hexdigest(),
        vocab_size=_VOCAB_SIZE,
        do_lower_case=True,
        code_version="",
        documents=0,
        sentences=0,
        segments=sum(shard.examples for shard in shards),
        segments_with_order=0,
        openings_with_order=0,
        pieces=sum(shard.pieces for shard in shards),
        skipped_lines=0,
        splits={"train": Split(tuple(shards)), "heldout": Split(())},
    ).write(record_dir)


if __name__ == "__main__":
    define_flags()
    program.run(main)
