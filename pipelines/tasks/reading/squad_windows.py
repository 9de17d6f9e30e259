"""Texts cut into windows that a model can read, each piece with its place in the original text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from albert_tf.text.in_graph import on_host
from albert_tf.text.tokenization import AlbertTokenizer
from ..task import in_blocks

# Texts aligned at a time, at most.
_BLOCK_TEXTS = 256


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A text in pieces.

    Attributes:
      pieces: int32 [pieces]: their ids.
      starts: int32 [pieces]: the first character of each in the text as it was written. The space
        before a word belongs to its first piece.
      ends: int32 [pieces]: the last character. Several pieces may share one (½ is `1`, `⁄`, `2`).
    """

    pieces: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def find(self, text: str, start: int) -> tuple[int, int]:
        """Returns the first and the last piece of an answer whose first character is `start`."""
        end = start + len(text) - 1
        first = min(int(np.searchsorted(self.ends, start)), len(self.pieces) - 1)
        return first, max(int(np.searchsorted(self.starts, end, side="right")) - 1, first)


@dataclasses.dataclass(frozen=True)
class Window:
    """What one sequence shows of a paragraph: `[CLS] question [SEP] pieces [SEP]`.

    Attributes:
      question: the index of its question among the examples.
      paragraph: the whole of it.
      first, last: its pieces paragraph.pieces[first:last].
      offset: position of the first of them in the sequence.
      is_max_context: bool [last - first]: of all windows with this piece, this shows the most of
        what is on both sides of it. True in exactly one window.
    """

    question: int
    paragraph: Paragraph
    first: int
    last: int
    offset: int
    is_max_context: np.ndarray

    def find(self, answer: tuple[int, int] | None) -> tuple[int, int, int]:
        """Returns the positions of an answer's first and last piece, and 0; or (0, 0, 1).

        Args:
          answer: of Paragraph.find; None: there is none.
        """
        if answer and self.first <= answer[0] and answer[1] < self.last:
            return answer[0] - self.first + self.offset, answer[1] - self.first + self.offset, 0
        return 0, 0, 1


def read_paragraphs(texts: Sequence[str], tokenizer: AlbertTokenizer) -> list[Paragraph]:
    """Returns texts in pieces."""
    paragraphs = []
    for block in in_blocks(texts, _BLOCK_TEXTS, len):
        with on_host():
            aligned = tokenizer.in_graph().align(tf.constant(block))
        ends = aligned.pieces.row_limits().numpy()[:-1]
        columns = (aligned.pieces.flat_values, aligned.starts, aligned.limits)
        columns = [np.split(column.numpy(), ends) for column in columns]
        for text, pieces, starts, limits in zip(block, *columns):
            is_first_byte = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
            chars_before = np.cumsum([False, *is_first_byte], dtype=np.int32)
            paragraphs.append(Paragraph(pieces, chars_before[starts], chars_before[limits] - 1))
    return paragraphs
