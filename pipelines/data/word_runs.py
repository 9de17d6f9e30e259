"""Documents as runs of words in place of sentences: the first lesson of sentence order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

SHORTEST = 3  # pieces


def cut_runs(
    sentences: Iterable[Sequence[int]],
    longest: int,
    word_starts: Sequence[bool],
    rng: random.Random,
) -> Iterator[list[int]]:
    """Yields the pieces of a document in runs, which begin and end anywhere in its sentences.

    The words on both sides of a cut show which run comes first, so a small model learns to compare
    them within some 50,000 pairs. Two sentences show their order less often.

    Args:
      sentences: the pieces of each sentence, in order. Read as needed.
      longest: a run has SHORTEST to `longest` pieces, and those up to the end of its last word.
      word_starts: [vocab_size], true for pieces that begin a word.
      rng: source of the lengths.
    """
    run: list[int] = []
    size = rng.randint(SHORTEST, longest)
    for sentence in sentences:
        for piece in sentence:
            if len(run) >= size and word_starts[piece]:
                yield run
                run, size = [], rng.randint(SHORTEST, longest)
            run.append(piece)
    if run:
        yield run
