"""What a seed draws stays the same until DRAWS says otherwise."""

import hashlib
import random
from types import SimpleNamespace

import numpy as np
import pytest

from pipelines.data import records
from pipelines.data.examples import DRAWS, SENTENCE_OBJECTIVES, ExampleOptions
from pipelines.data.pretraining_dataset import evaluation_dataset, pretraining_dataset, read_sources
from pipelines.data.segments import split_document
from tests.pipelines.data.small_records import write_shards

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
TOKENIZER = SimpleNamespace(
    cls_id=2,
    sep_id=3,
    mask_id=4,
    vocab_size=100,
    sha256="of nothing",
    word_starts=lambda: WORD_STARTS,
    replacement_ids=lambda: np.arange(5, 100, dtype=np.int32),
)


@pytest.fixture(scope="module")
def segments() -> list[tuple[bytes, int]]:
    """Records of 40 documents, with the number of the document."""
    rng = random.Random(4)
    found = []
    starts = WORD_STARTS.tolist()
    for number in range(40):
        document = [
            [rng.randrange(5, 100) for _ in range(rng.randint(1, 9))]
            for _ in range(rng.randint(1, 12))
        ]
        for segment in split_document(document, 24, 0.3, starts, random.Random(number)):
            found.append((records.serialize_segment(segment, number), number))
    return found


@pytest.fixture(scope="module")
def record_dir(segments, tmp_path_factory) -> str:
    found = {"train": [], "heldout": []}
    for record, number in segments:
        found["train" if number % 4 else "heldout"].append(record)
    return write_shards(tmp_path_factory.mktemp("records"), TOKENIZER, found)


def test_the_same_seed_draws_the_same(segments, record_dir):
    found = {"segments": hashlib.sha256(b"".join(record for record, _ in segments))}
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
