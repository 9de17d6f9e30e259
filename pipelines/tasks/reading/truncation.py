"""The pieces of texts and pairs of texts that have room in a sequence."""

from __future__ import annotations

import array
from collections.abc import Iterator, Sequence

from albert_tf.text.packing import NUM_SPECIAL_PIECES
from albert_tf.text.text_limits import CHARS_PER_PIECE, first_chars
from albert_tf.text.tokenization import AlbertTokenizer

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
      tokenizer: of the model that reads the pieces.
      max_seq_length: pieces of a sequence, [CLS] and [SEP] included.
      full_lengths: gets what the lengths would be without truncation, as of encode_first.
    """
    for begin in range(0, len(examples), _BLOCK_EXAMPLES):
        block = examples[begin : begin + _BLOCK_EXAMPLES]
        firsts = encode_first([example.text for example in block], tokenizer, max_seq_length)
        texts = [example.text_pair or "" for example in block]
        seconds = encode_first(texts, tokenizer, max_seq_length)
        for example, (first, of_first), (second, of_second) in zip(block, firsts, seconds):
            if example.text_pair is None:
                full_lengths.append(of_first + 2)
                yield first[: max_seq_length - 2], None
            else:
                full_lengths.append(of_first + of_second + NUM_SPECIAL_PIECES)
                yield truncate_pair(first, second, max_seq_length - NUM_SPECIAL_PIECES)


def encode_first(
    texts: Sequence[str], tokenizer: AlbertTokenizer, max_seq_length: int
) -> list[tuple[list[int], int]]:
    """Returns the pieces of each text as far as they can matter to a sequence, and how many it has.

    White space before a text is dropped first. The number is an estimate for a text that is longer
    than what is read, and then more than the pieces returned.
    """
    texts = [text.strip() for text in texts]
    read = [first_chars(text, max_seq_length * CHARS_PER_PIECE) for text in texts]
    rows = tokenizer.encode_batch(read)
    return [
        (row, len(row) if head == text else max(len(row) + 1, len(row) * len(text) // len(head)))
        for text, head, row in zip(texts, read, rows)
    ]


def truncate_pair(
    first: Sequence[int], second: Sequence[int], room: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Takes pieces off the end of the longer one until both fit, of the second where none is.

    Source: the reference's classifier_utils._truncate_seq_pair.
    """
    first = first[: max(room - len(second), (room + 1) // 2)]
    return first, second[: room - len(first)]
