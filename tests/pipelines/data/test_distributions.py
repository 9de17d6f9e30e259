"""What 60,000 examples look like, beside the paper's definitions.

Every figure is held to 3 standard errors of its definition, with a fixed seed. The masked pieces of
an example are not independent (they share spans and a budget): standard errors come from the
figures of whole examples. Where a definition cannot be met exactly, DEFINITIONS has the bias.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.examples import ExampleOptions, example_draws, example_maker
from tests.pipelines.data.small_records import stand_in_tokenizer

EXAMPLES, ROWS, LENGTH = 60_000, 2_000, 128
VOCAB = 3_001
WORD_STARTS = np.arange(VOCAB) % 5 != 0  # every fifth piece continues a word
SENTENCES = 4  # in each segment but the first of a batch


def segments(rng):
    """Returns segments of 4 sentences, every tenth of any length, the rest almost full."""
    longest = LENGTH - 3
    lengths = rng.integers(np.where(rng.random(ROWS) < 0.1, 2 * SENTENCES, 100), longest + 1)
    # Distinct places for the sentences to begin; each is 2 pieces at least.
    gaps = rng.random((ROWS, SENTENCES)) + 0.2
    ends = np.cumsum(gaps / gaps.sum(axis=1, keepdims=True), axis=1)
    begins = (ends[:, :-1] * (lengths[:, None] - 2 * SENTENCES)).astype(np.int64)
    begins += 2 * np.arange(1, SENTENCES)
    starts = np.concatenate([np.zeros([ROWS, 1], np.int64), begins], axis=1)
    pieces, ragged = rng.integers(5, VOCAB, lengths.sum()), tf.RaggedTensor.from_row_lengths
    return {
        "input_ids": ragged(tf.constant(pieces, tf.int32), lengths),
        "sentence_starts": ragged(tf.constant(starts.ravel(), tf.int32), np.full(ROWS, SENTENCES)),
        "room_before": tf.zeros([ROWS, 1], tf.int64),  # any sentence can open B
        "opens_document": tf.zeros([ROWS, 1], tf.int64),
        "document_id": tf.constant(np.arange(ROWS)[:, None], tf.int64),
    }


class Mean:
    """Mean and its standard error of per-example numerators over per-example denominators."""

    def __init__(self):
        self.parts = []

    def add(self, numerators, denominators):
        self.parts.append(np.stack([numerators, denominators]).astype(np.float64))

    def check(self, expected, bias):
        """Holds the ratio to `expected`, give or take a known relative bias and 3 sigma."""
        numerators, denominators = np.concatenate(self.parts, axis=1)
        ratio = numerators.sum() / denominators.sum()
        # Of a ratio of sums: the spread of what each example has beyond its part.
        rest = numerators - ratio * denominators
        error = rest.std() * np.sqrt(len(rest)) / denominators.sum()
        assert error < 0.02 * expected, f"{error} is no test of {expected}"
        assert abs(ratio - expected) <= 3 * error + bias * expected, (ratio, expected, error)


@pytest.fixture(scope="module")
def figures():
    options = ExampleOptions(max_seq_length=LENGTH)
    make = example_maker(options, stand_in_tokenizer(WORD_STARTS))

    @tf.function
    def examples(pieces, step):
        draws = example_draws(options, ROWS, tf.stack([tf.constant(2020, tf.int64), step]))
        return make(pieces, draws), draws["span_length"]

    rng = np.random.default_rng(11)
    means = collections.defaultdict(Mean)
    for step in range(EXAMPLES // ROWS):
        batch, draws = examples(segments(rng), tf.constant(step, tf.int64))
        batch = {name: values.numpy() for name, values in batch.items()}
        measure(means, batch, draws.numpy())
    return means


def measure(means, batch, draws):
    """Adds what a batch shows; words and spans by a plain copy of the rules."""
    rows = np.arange(ROWS)[:, None]
    real = batch["masked_lm_weights"] > 0
    ids = batch["input_word_ids"].copy()
    where = np.broadcast_to(rows, real.shape)[real], batch["masked_lm_positions"][real]
    ids[where] = batch["masked_lm_ids"][real]
    hit = np.zeros(ids.shape, bool)
    hit[where] = True

    count = real.sum(axis=1)
    length = batch["input_mask"].sum(axis=1)
    types = batch["input_type_ids"]
    budget = np.array([round(0.15 * int(n)) for n in length])
    assert (count <= budget).all()
    means["full budget"].add(count == budget, np.ones(ROWS))
    means["predictions"].add(count, 0.15 * length)

    position = np.arange(LENGTH)
    first_sep = (length - types.sum(axis=1) - 1)[:, None]
    text = (position > 0) & (position < length[:, None] - 1) & (position != first_sep)
    opens = text & ((position == 1) | (position == first_sep + 1) | WORD_STARTS[ids])
    word = np.cumsum(opens, axis=1) - 1
    # By words of so many pieces; a word counts with its row's expectation, budget / pieces.
    chance = (budget / text.sum(axis=1))[:, None]
    flat_word = (word + rows * LENGTH)[text]
    pieces = np.bincount(flat_word, minlength=ROWS * LENGTH).reshape(ROWS, LENGTH)
    pieces_hit = np.bincount(flat_word, hit[text], ROWS * LENGTH).reshape(ROWS, LENGTH)
    for n in range(1, 5):
        words_hit = pieces_hit.sum(axis=1, where=pieces == n) / n
        means[f"word of {n}"].add(words_hit, chance[:, 0] * (pieces == n).sum(axis=1))
    # By position: next to a special piece, the five after that, the rest.
    special = np.stack([0 * first_sep, first_sep, length[:, None] - 1])
    distance = np.abs(position - special).min(axis=0)
    for name, place in {
        "first": position == 1,
        "last": position == length[:, None] - 2,
        "next to [SEP]": np.abs(position - first_sep) == 1,
        "near": (distance > 1) & (distance < 7),
        "far": distance > 6,
    }.items():
        place = place & text
        means[f"position {name}"].add((hit & place).sum(axis=1), (chance * place).sum(axis=1))

    # The tiling: span k of a row ends before the word ends[k].
    drawn = 1 + (draws >= 6 / 11).astype(int) + (draws >= 9 / 11)
    # All rows at once: those below lie beyond any word of those above.
    far = 4 * LENGTH * rows
    ends = (np.cumsum(drawn, axis=1) + far).ravel()
    span = np.searchsorted(ends, (np.maximum(word, 0) + far).ravel(), side="right")
    span = span.reshape(word.shape) - (LENGTH + 1) * rows
    last = np.where(opens, span, 0).max(axis=1)[:, None]
    tiles = np.arange(LENGTH + 1) <= last
    flat_span = (span + types + rows * (LENGTH + 2))[opens]
    shape = ROWS, LENGTH + 2
    words_of_span = np.bincount(flat_span, minlength=np.prod(shape)).reshape(shape)
    words_hit = np.bincount(flat_span, hit[opens], np.prod(shape)).reshape(shape)
    touched, whole = words_hit > 0, (words_hit > 0) & (words_hit == words_of_span)
    means["whole spans"].add(whole.sum(axis=1), touched.sum(axis=1))
    for n in (1, 2, 3):
        means[f"drawn {n}"].add((tiles & (drawn == n)).sum(axis=1), tiles.sum(axis=1))
        there = (words_of_span == n).sum(axis=1)
        means[f"taken {n}"].add((words_hit == n).sum(axis=1), chance[:, 0] * there)


# What each figure is by its definition, and its bias.
DEFINITIONS = {
    **{f"drawn {n}": (share, 0) for n, share in zip((1, 2, 3), (6 / 11, 3 / 11, 2 / 11))},
    # A budget cuts what does not fit: more spans of one word are taken and fewer of three.
    "whole spans": (1, 0.013),
    **{f"taken {n}": (1, 0.018) for n in (1, 2, 3)},
    # Of the two pieces next to a [SEP] one is the first of B.
    **{f"position {place}": (1, 0) for place in ("last", "near", "far")},
    "position first": (1, 0.01),  # it opens a span, which is more often one of one word
    "position next to [SEP]": (1, 0.005),
    **{f"word of {pieces}": (1, 0.01 * (pieces - 1)) for pieces in range(1, 5)},
    "predictions": (1, 0.001),
    "full budget": (1, 0.001),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_shares_are_as_defined(figures, name):
    figures[name].check(*DEFINITIONS[name])
