"""What the pieces around a junction tell of the order of two sentences: a linear classifier.

Reads segments of two sentences (create_pretraining_data --max_sentences=2), swaps half of them at
random and trains a logistic regression on hashed features of both orders: pairs of a piece near the
end of what comes first and one near the beginning of what comes second, and pieces in both. Prints
the accuracy on each test set, for several strengths of regularisation. A control has its sentences
shuffled (--shuffle_sentences): there every accuracy must be at chance.

Example (a minute on one core for 134,662 pairs):
  python -m tests.benchmarks.junction --record_dir=pairs --test_dirs=heldout,heldout_shuffled
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse
import tensorflow as tf
from absl import flags
from sklearn.linear_model import SGDClassifier

from albert_tf.jobs import program
from pipelines.data.records import Manifest, parse_segments
from pipelines.data.segments import Segment, has_order

FLAGS = flags.FLAGS

_FEATURES = 1 << 20
_WINDOW = 8  # pieces of each sentence that are paired
_EXACT = 3  # pieces of each sentence whose places count, too
_STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3)

Pair = tuple[list[int], list[int]]


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("record_dir", None, "Records to train on.", required=True)
    flags.DEFINE_list("test_dirs", None, "Records to test on, whatever their split.", required=True)


def main(_) -> None:
    """Trains and prints."""
    rng = np.random.default_rng(1)
    train, labels = _matrix(list(read_pairs(FLAGS.record_dir)), rng)
    tests = {name: _matrix(list(read_pairs(name)), rng) for name in FLAGS.test_dirs}
    print(f"trained on {len(labels):,} pairs")
    for strength in _STRENGTHS:
        classifier = SGDClassifier(
            loss="log_loss", alpha=strength, max_iter=12, tol=None, fit_intercept=False
        ).fit(train, labels)
        for name, (features, expected) in tests.items():
            share = (classifier.predict(features) == expected).mean()
            print(f"  {strength:g}  {name}: {100 * share:.1f} % of {len(expected):,}", flush=True)


def read_pairs(record_dir: str) -> Iterator[Pair]:
    """Yields the two sentences of each segment of the training split that has an order label."""
    paths = Manifest.read(record_dir).paths(record_dir, "train")
    for batch in tf.data.TFRecordDataset(paths).batch(4096):
        parsed = parse_segments(batch)
        rows = zip(
            parsed["input_ids"].to_list(),
            parsed["sentence_starts"].to_list(),
            parsed["room_before"].numpy()[:, 0].tolist(),
        )
        for ids, starts, room in rows:
            if len(starts) == 2 and has_order(Segment(ids, starts, room, False)):
                yield ids[: starts[1]], ids[starts[1] :]


def _features(first: list[int], second: list[int]) -> list[int]:
    keys = [(a, b) for a in set(first[-_WINDOW:]) for b in set(second[:_WINDOW])]
    ends, begins = list(enumerate(reversed(first[-_EXACT:]))), list(enumerate(second[:_EXACT]))
    keys += [(i, a, j, b) for i, a in ends for j, b in begins]
    keys += [(a,) for a in set(first) & set(second)]
    return [hash(key) % _FEATURES for key in keys]  # of numbers: the same in every process


def _matrix(pairs: list[Pair], rng: np.random.Generator):
    """Returns features [pairs, _FEATURES], of one order less those of the other, and labels."""
    labels = rng.integers(0, 2, len(pairs))
    rows, columns, values = [], [], []
    for row, (pair, is_swapped) in enumerate(zip(pairs, labels)):
        first, second = reversed(pair) if is_swapped else pair
        for sign, found in ((1, _features(first, second)), (-1, _features(second, first))):
            rows += [row] * len(found)
            columns += found
            values += [sign] * len(found)
    shape = (len(pairs), _FEATURES)
    return scipy.sparse.csr_matrix((values, (rows, columns)), shape, np.float64), labels


if __name__ == "__main__":
    define_flags()
    program.run(main)
