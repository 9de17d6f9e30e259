"""The pieces of texts and pairs of texts that have room in a sequence."""

from __future__ import annotations

import array
from collections.abc import Iterator, Sequence

from albert_tf.packing import NUM_SPECIAL_PIECES
from albert_tf.tokenization import AlbertTokenizer

# Examples tokenized at a time: as lists of Python numbers pieces take ten times the room.
_BLOCK_EXAMPLES = 10_000


def truncated_pieces(
    examples: Sequence,
    tokenizer: AlbertTokenizer,
    max_seq_length: int,
    full_lengths: array.array,
) -> Iterator[tuple[list[int], list[int] | None]]:
    """Yields the pieces of each example's texts that have room between [CLS] and [SEP].

    Args:
      examples: each with `text` and `text_pair`, which may be None.
      full_lengths: gets what the lengths would be without truncation.
    """
    for begin in range(0, len(examples), _BLOCK_EXAMPLES):
        block = examples[begin : begin + _BLOCK_EXAMPLES]
        firsts = tokenizer.encode_batch([example.text for example in block])
        seconds = tokenizer.encode_batch([example.text_pair or "" for example in block])
        for example, first, second in zip(block, firsts, seconds):
            if example.text_pair is None:
                full_lengths.append(len(first) + 2)
                yield first[: max_seq_length - 2], None
            else:
                full_lengths.append(len(first) + len(second) + NUM_SPECIAL_PIECES)
                yield truncate_pair(first, second, max_seq_length - NUM_SPECIAL_PIECES)


def truncate_pair(
    first: Sequence[int], second: Sequence[int], room: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Takes pieces off the end of the longer one until both fit, of the second where none is.

    Source: the reference's classifier_utils._truncate_seq_pair.
    """
    first = first[: max(room - len(second), (room + 1) // 2)]
    return first, second[: room - len(first)]
