"""Makes the model's inputs: tokenizes texts in blocks and packs sequences without padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.text.in_graph import on_host
from albert_tf.text.limits import chars_of_sequence
from albert_tf.text.packing import FEATURES, Packer
from albert_tf.text.tokenization import AlbertTokenizer

# Maximum number of characters in a block of several texts; each takes some 200 bytes in tokenizing.
_BLOCK_CHARS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Sequences:
    """The model's inputs: `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, unpadded.

    Attributes:
      pieces: int32 [all pieces], one sequence after the other.
      row_splits: int64 [sequences + 1]: sequence i is pieces[row_splits[i]:row_splits[i + 1]].
      first_lengths: int32 [sequences]: number of pieces of type 0: [CLS], first text and [SEP].
      labels: name -> array [sequences / sequences_per_example]; only for training.
      sequences_per_example: sequences that are scored together, such as the choices of a question.
      full_lengths: int32 [sequences]: lengths before truncation, [CLS] and [SEP] included.
      lost_answers: number of examples whose label is "no answer" because no sequence has the whole
        answer.
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
        """Returns each example's length, int64: the length of its longest sequence."""
        rows = np.diff(self.row_splits)
        return rows.reshape(-1, self.sequences_per_example).max(axis=1)

    def unknown_shares(self, owners: Sequence[int], tokenizer: AlbertTokenizer) -> np.ndarray:
        """Returns AlbertTokenizer.unknown_shares per example, float32, over all its sequences.

        A piece counts once for each choice or window that contains it. For `owners` see
        Task.owners; every example must have a sequence.
        """
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        places = np.append(firsts, len(owners)) * self.sequences_per_example
        return tokenizer.unknown_shares(self.pieces, self.row_splits[places])


class Encoder(Packer):
    """Packs texts, and tokenizes texts of any length; see Packer for the arguments."""

    def __init__(self, tokenizer: AlbertTokenizer, max_seq_length: int):
        super().__init__(tokenizer, max_seq_length)
        self.tokenizer = tokenizer

    def tokenize(self, texts: Sequence[str]) -> tuple[tf.RaggedTensor, np.ndarray]:
        """Tokenizes at least the part of each text that fits into a sequence; returns full lengths.

        If a text was not read to its end, its full length is an estimate above the returned length.

        Returns:
          int32 [texts, (pieces)] and int64 [texts].
        """
        read = chars_of_sequence(tf.constant(texts), self.max_seq_length)
        pieces = self.tokenizer.in_graph()(read)
        counts = pieces.row_lengths().numpy()
        written = np.array([len(text.strip()) for text in texts], np.int64)
        chars = tf.strings.length(read, "UTF8_CHAR").numpy()
        estimates = np.maximum(counts + 1, counts * written // np.maximum(chars, 1))
        return pieces, np.where(written > chars, estimates, counts)


# For a block of examples: the packed sequences; their lengths before truncation, or None if nothing
# was truncated; the features of Task.pack.
Packed = tuple[dict[str, tf.Tensor], "np.ndarray | None", list]


def in_blocks(
    items: Sequence, size: int, num_chars: Callable[[Any], int] = lambda item: item.num_chars()
) -> Iterator[Sequence]:
    """Yields blocks of successive items: at most `size`, and fewer if their texts are long."""
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
    examples: Sequence, block_size: int, pack: Callable[[Sequence, int], Packed]
) -> tuple[Sequences, list]:
    """Packs all examples; returns sequences without padding and labels, and the features.

    Fine-tuning, `predict` and exports pack texts with the same code, albert_tf.text. It takes 1.0
    to 1.5 times as long as the Python tokenizer (tests/benchmarks/README.md, finetune).
    """
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
