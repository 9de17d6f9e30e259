"""The share of examples' texts that a vocabulary cannot spell, and the unknown characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from albert_tf.text.tokenization import AlbertTokenizer
from ..task import AnyExample, Sequences

_CHARACTERS_SHOWN = 10


def unknown_shares(
    sequences: Sequences, owners: Sequence[int], tokenizer: AlbertTokenizer
) -> np.ndarray:
    """Returns AlbertTokenizer.unknown_shares per example, float32, over all its sequences.

    A piece counts once for each choice or window that shows it. For `owners` see Task.owners; every
    example has a sequence.
    """
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    places = np.append(firsts, len(owners)) * sequences.sequences_per_example
    return tokenizer.unknown_shares(sequences.pieces, sequences.row_splits[places])


def describe_unknown_characters(
    examples: Sequence[AnyExample], tokenizer: AlbertTokenizer
) -> list[str]:
    """Returns a line that names the most frequent characters that are <unk>, with their counts.

    Returns no line if all characters are known. The whole texts count, truncated or not.
    """
    counts: Counter[str] = Counter()
    for example in examples:
        for text in example.texts():
            counts.update(text)
    characters = list(counts)
    for character, pieces in zip(characters, tokenizer.encode_batch(characters)):
        if tokenizer.unk_id not in pieces:
            del counts[character]
    if not counts:
        return []
    shown = counts.most_common(_CHARACTERS_SHOWN)
    line = f"unknown characters: {', '.join(f'{char!r} {count:,}' for char, count in shown)}"
    if rest := len(counts) - len(shown):
        others = sum(counts.values()) - sum(count for _, count in shown)
        line += f" and {rest:,} others with {others:,}"
    return [line]
