"""What a seed draws stays the same until DRAWS says otherwise."""

import hashlib
import random

import numpy as np
import tensorflow as tf

from pipelines.data import records
from pipelines.data.examples import (
    DRAWS,
    SENTENCE_OBJECTIVES,
    ExampleOptions,
    example_draws,
    example_maker,
)
from pipelines.data.pretraining_dataset import pretraining_dataset, read_sources
from pipelines.data.segments import split_document
from tests.pipelines.data.small_records import stand_in_tokenizer, write_shards

# What follows from each version of DRAWS. Add a row, never change one.
DRAWN = {
    2: {
        "segments": "aaff66b9ef2fc73b",
        "training": "0e6806ebfc7aae18",
        "sop": "39bd84e0521b504d",
        "nsp": "d346fa3144ca62e3",
        "none": "84cbb3b9dc57a849",
    }
}

WORD_STARTS = np.arange(100) % 3 > 0
TOKENIZER = stand_in_tokenizer(WORD_STARTS)


def digest(batches):
    found = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            found.update(batch[name].numpy().tobytes())
    return found.hexdigest()[:16]


def test_the_same_seed_draws_the_same(tmp_path):
    rng, starts, written = random.Random(4), WORD_STARTS.tolist(), []
    for number in range(40):
        document = [
            [rng.randrange(5, 100) for _ in range(rng.randint(1, 9))]
            for _ in range(rng.randint(1, 12))
        ]
        for segment in split_document(document, 24, 0.3, starts, random.Random(number)):
            written.append(records.serialize_segment(segment, number))
    found = {"segments": hashlib.sha256(b"".join(written)).hexdigest()[:16]}
    sources = read_sources(write_shards(tmp_path, TOKENIZER, {"train": [written], "heldout": []}))
    dataset = pretraining_dataset(sources, ExampleOptions(24, seed=5), TOKENIZER, 8)
    found["training"] = digest(dataset.take(20))
    segments = records.parse_segments(tf.constant(written))
    for objective in SENTENCE_OBJECTIVES:
        options = ExampleOptions(24, sentence_objective=objective)
        draws = example_draws(options, len(written), tf.constant([5, 1], tf.int64))
        found[objective] = digest([example_maker(options, TOKENIZER)(segments, draws)])
    assert found == DRAWN[DRAWS], "what is drawn has changed: raise examples.DRAWS by one"
