"""Tokenized paragraphs and their windows (see albert_tf/text/windows.py)."""

import dataclasses

import numpy as np
import tensorflow as tf

from albert_tf.text.in_graph import on_host
from albert_tf.text.tokenization import AlbertTokenizer
from .sequences import in_blocks


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A tokenized text.

    Attributes:
      pieces: int32 [pieces], the ids of the pieces.
      starts, ends: int32 [pieces], index of each piece's first and last character in the text. The
        space before a word belongs to its first piece. The pieces `1`, `⁄` and `2` share ½.
    """

    pieces: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def find(self, text: str, start: int) -> tuple[int, int]:
        """Returns the first and last piece of the answer `text` that begins at index `start`."""
        end = start + len(text) - 1
        first = min(int(np.searchsorted(self.ends, start)), len(self.pieces) - 1)
        return first, max(int(np.searchsorted(self.starts, end, side="right")) - 1, first)


@dataclasses.dataclass(frozen=True)
class Window:
    """The part of a paragraph in one sequence: `[CLS] question [SEP] pieces [SEP]`.

    Attributes:
      example: index of the question among the examples.
      paragraph: the whole paragraph.
      first, last: the window contains paragraph.pieces[first:last].
      offset: position of the window's first piece in the sequence.
      is_max_context: bool [last - first], whether of all windows, this one has the most context on
        both sides of the piece.
    """

    example: int
    paragraph: Paragraph
    first: int
    last: int
    offset: int
    is_max_context: np.ndarray

    def find(self, text: str, start: int) -> tuple[int, int, int]:
        """Returns the first and last position of an answer in the sequence, and 0.

        Returns (0, 0, 1) if the window does not contain the whole answer.
        """
        first, last = self.paragraph.find(text, start)
        if self.first <= first and last < self.last:
            return first - self.first + self.offset, last - self.first + self.offset, 0
        return 0, 0, 1


def read_paragraphs(texts: list[str], tokenizer: AlbertTokenizer) -> list[Paragraph]:
    """Tokenizes texts and aligns the pieces with the characters."""
    paragraphs = []
    for block in in_blocks(texts, 256, len):
        with on_host():
            aligned = tokenizer.in_graph().align(tf.constant(block))
        ends = aligned.pieces.row_limits().numpy()[:-1]
        flat = (aligned.pieces.flat_values, aligned.starts, aligned.limits)
        columns = [np.split(column.numpy(), ends) for column in flat]
        for text, pieces, starts, limits in zip(block, *columns):
            # Convert byte offsets to character offsets. Bytes 0b10... do not begin a character.
            is_first_byte = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
            chars_before = np.cumsum([False, *is_first_byte], dtype=np.int32)
            paragraphs.append(Paragraph(pieces, chars_before[starts], chars_before[limits] - 1))
    return paragraphs
