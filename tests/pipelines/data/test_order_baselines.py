import random

import numpy as np
import pytest

from pipelines.data import records
from pipelines.data.examples import ExampleOptions
from pipelines.data.order_baselines import order_baselines
from pipelines.data.segments import Segment, split_document
from tests.pipelines.data.small_records import write_shards


@pytest.mark.slow
def test_lengths_do_not_tell_the_label(tmp_path, tokenizer):
    """Of sop; that nsp's labels have the same lengths is exact: test_sentence_pairs.py."""
    # Documents of sentences as long as those of novels; their order means nothing.
    rng, written = random.Random(1), {"train": [[]], "heldout": [[]]}
    for number in range(150):
        count = rng.randint(60, 160)
        document = [[20] * max(1, round(rng.lognormvariate(2.9, 0.75))) for _ in range(count)]
        for segment in split_document(document, 64, 0.1, [True] * tokenizer.vocab_size, rng):
            record = records.serialize_segment(segment, number)
            written["train" if number % 2 else "heldout"][0].append(record)
    record_dir = write_shards(tmp_path, tokenizer, written)
    found = order_baselines(record_dir, "heldout", ExampleOptions(64), tokenizer)
    correct, total = found["inside"]["lengths"]
    assert total > 1_500 and correct / total < 0.5 + 3 * 0.5 / total**0.5


@pytest.mark.slow
def test_lengths_that_tell_the_label_are_found(tmp_path, tokenizer):
    # Two sentences, the longer one always first.
    rng, written = np.random.default_rng(3), {}
    for split, count in (("train", 2_000), ("heldout", 1_000)):
        lengths = 9 + rng.integers(5, 9, count)
        segments = [Segment([20] * n, [0, 9], 3, i % 6 == 0) for i, n in enumerate(lengths)]
        written[split] = [[records.serialize_segment(*pair[::-1]) for pair in enumerate(segments)]]
    record_dir = write_shards(tmp_path, tokenizer, written)
    found = order_baselines(record_dir, "heldout", ExampleOptions(24), tokenizer)
    assert found.keys() == {"openings", "inside"}
    # The shorter sentence comes second, unless the parts are swapped.
    for kind, least in (("openings", 70), ("inside", 400)):
        correct, total = found[kind]["lengths"]
        assert correct == total > least
        # All pieces are the same.
        for name in ("words", "overlap"):
            assert abs(found[kind][name][0] / found[kind][name][1] - 0.5) < 0.15
