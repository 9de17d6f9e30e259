"""What a seed draws stays the same until DRAWS says otherwise."""

import hashlib
import random

import numpy as np

from pipelines.data import records
from pipelines.data.examples import DRAWS, SENTENCE_OBJECTIVES, ExampleOptions
from pipelines.data.pretraining_dataset import evaluation_dataset, pretraining_dataset, read_sources
from pipelines.data.segments import split_document
from tests.pipelines.data.small_records import stand_in_tokenizer, write_shards

# What follows from each version of DRAWS. Add a row, never change one.
DRAWN = {
    2: {
        "segments": "aaff66b9ef2fc73b",
        "sop": "cd25c83ed7364230",
        "nsp": "e8cd7c4f4220576e",
        "none": "e706965c9b41daee",
    }
}

WORD_STARTS = np.arange(100) % 3 > 0
TOKENIZER = stand_in_tokenizer(WORD_STARTS)


def test_the_same_seed_draws_the_same(tmp_path):
    rng, starts = random.Random(4), WORD_STARTS.tolist()
    found, of_split = {"segments": hashlib.sha256()}, {"train": [], "heldout": []}
    for number in range(40):
        document = [
            [rng.randrange(5, 100) for _ in range(rng.randint(1, 9))]
            for _ in range(rng.randint(1, 12))
        ]
        for segment in split_document(document, 24, 0.3, starts, random.Random(number)):
            record = records.serialize_segment(segment, number)
            found["segments"].update(record)
            of_split["train" if number % 4 else "heldout"].append(record)
    record_dir = write_shards(tmp_path, TOKENIZER, of_split)
    for objective in SENTENCE_OBJECTIVES:
        options = ExampleOptions(24, sentence_objective=objective, seed=5)
        trained = pretraining_dataset(read_sources(record_dir), options, TOKENIZER, 8)
        evaluated = evaluation_dataset(record_dir, "heldout", options, TOKENIZER, 8)
        found[objective] = hashlib.sha256()
        for batch in [*trained.take(20), *evaluated]:
            for name in sorted(batch):
                found[objective].update(batch[name].numpy().tobytes())
    digests = {name: digest.hexdigest()[:16] for name, digest in found.items()}
    assert digests == DRAWN[DRAWS], "what is drawn has changed: raise examples.DRAWS by one"
