"""Creates the model's inputs: tokenizes texts in blocks and packs unpadded sequences."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.text.in_graph import on_host
from albert_tf.text.limits import chars_of_sequence
from albert_tf.text.packing import FEATURES, Packer
from albert_tf.text.tokenization import AlbertTokenizer

# Maximum characters in a block of several texts. Tokenizing needs about 200 bytes per character.
_BLOCK_CHARS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Unpadded model inputs: `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`.

    Attributes:
      pieces: int32 [all pieces], the concatenated sequences.
      row_splits: int64 [sequences + 1]. Sequence i is pieces[row_splits[i]:row_splits[i + 1]].
      first_lengths: int32 [sequences], number of pieces of type 0: [CLS], first text and [SEP].
      labels: maps names to arrays [sequences / sequences_per_example, ...]. Only for training.
      sequences_per_example: number of sequences that form an example (options of a question).
      full_lengths: int32 [sequences], lengths before truncation, including [CLS] and [SEP].
      lost_answers: number of examples with the label "no answer" because no sequence contains the
        whole answer.
    """

    pieces: np.ndarray
    row_splits: np.ndarray
    first_lengths: np.ndarray
    labels: dict[str, np.ndarray]
    sequences_per_example: int = 1
    full_lengths: np.ndarray | None = None
    lost_answers: int = 0

    def __len__(self) -> int:
        return (len(self.row_splits) - 1) // self.sequences_per_example

    def lengths(self) -> np.ndarray:
        """Returns the length of the longest sequence of each example, int64 [examples]."""
        rows = np.diff(self.row_splits)
        return rows.reshape(-1, self.sequences_per_example).max(axis=1)

    def has_pairs(self) -> bool:
        """Returns whether any sequence has a second text."""
        return bool(np.any(self.first_lengths < np.diff(self.row_splits)))

    def unknown_shares(self, owners: Sequence[int], tokenizer: AlbertTokenizer) -> np.ndarray:
        """Returns AlbertTokenizer.unknown_shares of each example, float32 [examples].

        A piece is counted once for each option or window that contains it. See Task.owners.
        """
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        places = np.append(firsts, len(owners)) * self.sequences_per_example
        return tokenizer.unknown_shares(self.pieces, self.row_splits[places]).numpy()


class Encoder(Packer):
    """A Packer that also tokenizes texts of any length. For the arguments see Packer."""

    def __init__(self, tokenizer: AlbertTokenizer, max_seq_length: int):
        super().__init__(tokenizer, max_seq_length)
        self.tokenizer = tokenizer

    def tokenize(self, texts: Sequence[str]) -> tuple[tf.RaggedTensor, np.ndarray]:
        """Tokenizes at least the part of each text that fits into a sequence.

        Returns:
          The pieces, int32 [texts, (pieces)], and the full lengths, int64 [texts]. If only a part
          of a text was tokenized, its full length is an estimate that exceeds the number of pieces.
        """
        read = chars_of_sequence(tf.constant(texts), self.max_seq_length)
        pieces = self.tokenizer.in_graph()(read)
        counts = pieces.row_lengths().numpy()
        written = np.array([len(text.strip()) for text in texts], np.int64)
        chars = tf.strings.length(read, "UTF8_CHAR").numpy()
        estimates = np.maximum(counts + 1, counts * written // np.maximum(chars, 1))
        return pieces, np.where(written > chars, estimates, counts)


# The packed sequences of a block of examples, their lengths before truncation (or None if nothing
# was truncated), and the features of Task.pack.
Packed = tuple[dict[str, tf.Tensor], "np.ndarray | None", list]


def in_blocks(
    items: list, size: int, num_chars: Callable[[Any], int] = lambda item: item.num_chars()
) -> Iterator[list]:
    """Yields blocks of at most `size` consecutive items, or fewer if their texts are long."""
    begin, chars = 0, 0
    for place, item in enumerate(items):
        chars_of_item = num_chars(item)
        if place - begin == size or (place > begin and chars + chars_of_item > _BLOCK_CHARS):
            yield items[begin:place]
            begin, chars = place, 0
        chars += chars_of_item
    if begin < len(items):
        yield items[begin:]


def pack_in_blocks(
    examples: list, block_size: int, pack: Callable[[list, int], Packed]
) -> tuple[Sequences, list]:
    """Packs all examples. Returns unpadded sequences without labels, and the features."""
    blocks, features, first = [[np.zeros(0, np.int32)] * 4], [], 0
    with on_host():
        for block in in_blocks(examples, block_size):
            tokens, full_lengths, found = pack(block, first)
            ids, mask, types = (tokens[name].numpy() for name in FEATURES)
            lengths = mask.sum(axis=1)
            full_lengths = lengths if full_lengths is None else full_lengths
            blocks.append([ids[mask == 1], lengths, lengths - types.sum(axis=1), full_lengths])
            features += found
            first += len(block)
    pieces, lengths, first_lengths, full_lengths = (
        np.concatenate(column).astype(np.int32, copy=False) for column in zip(*blocks)
    )
    row_splits = np.cumsum([0, *lengths], dtype=np.int64)
    return Sequences(pieces, row_splits, first_lengths, {}, full_lengths=full_lengths), features
