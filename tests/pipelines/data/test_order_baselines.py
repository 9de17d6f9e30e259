import numpy as np
import pytest

from pipelines.data import records
from pipelines.data.examples import ExampleOptions
from pipelines.data.order_baselines import order_baselines
from pipelines.data.segments import Segment
from tests.pipelines.data.small_records import write_shards


@pytest.mark.slow
def test_words_that_tell_the_label_are_found(tmp_path, tokenizer):
    # Two sentences, each of a word of its own.
    rng, written = np.random.default_rng(3), {}
    for split, count in (("train", 600), ("heldout", 300)):
        lengths = rng.integers(5, 9, count)
        segments = [
            Segment([20] * 5 + [21] * n, [0, 5], 3, i % 3 == 0) for i, n in enumerate(lengths)
        ]
        written[split] = [[records.serialize_segment(*pair[::-1]) for pair in enumerate(segments)]]
    record_dir = write_shards(tmp_path, tokenizer, written)
    found = order_baselines(record_dir, "heldout", ExampleOptions(24), tokenizer)
    assert found.keys() == {"openings", "inside"}
    # The word of the first sentence comes second, if the parts are swapped.
    for kind, least in (("openings", 40), ("inside", 80)):
        correct, total = found[kind]["words"]
        assert correct == total > least
        # No part shares a word with the other.
        assert abs(found[kind]["overlap"][0] / found[kind]["overlap"][1] - 0.5) < 0.15
