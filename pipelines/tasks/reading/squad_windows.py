"""Texts cut into windows that a model can read, each piece with its place in the original text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import sentencepiece

from albert_tf.text.tokenization import WORD_BOUNDARY, AlbertTokenizer, WordPieceTokenizer


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A text in pieces.

    Attributes:
      pieces: their ids.
      starts: int32 [pieces]: the first character of each in the text as it was written. The space
        before a word belongs to its first piece.
      ends: int32 [pieces]: the last character. Several pieces may share one (½ is `1`, `⁄`, `2`).
    """

    pieces: list[int]
    starts: np.ndarray
    ends: np.ndarray

    def find(self, start: int, end: int) -> tuple[int, int]:
        """Returns the first and the last piece of the characters from `start` to `end`."""
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


def cut(num_pieces: int, room: int, doc_stride: int) -> list[tuple[int, int, np.ndarray]]:
    """Cuts a paragraph into windows; one of no pieces where it has none.

    Args:
      num_pieces: of the paragraph; 0 gives one window without pieces.
      room: pieces of a window.
      doc_stride: pieces from the beginning of one window to the beginning of the next.

    Returns:
      `first`, `last` and `is_max_context` of each window.

    Source: the reference's squad_utils.convert_examples_to_features, after BERT's run_squad.
    """
    bounds = [(0, min(room, num_pieces))]
    while bounds[-1][1] < num_pieces:
        first = bounds[-1][0] + min(room, doc_stride)
        bounds.append((first, min(first + room, num_pieces)))
    best_context = np.full(num_pieces, -1.0)
    best_window = np.zeros(num_pieces, np.int32)
    for window, (first, last) in enumerate(bounds):
        pieces = np.arange(first, last)
        # By the second term the longer window wins where the sides are about equal.
        context = np.minimum(pieces - first, last - 1 - pieces) + 0.01 * (last - first)
        better = pieces[context > best_context[first:last]]
        best_context[better] = context[better - first]
        best_window[better] = window
    return [
        (first, last, best_window[first:last] == window)
        for window, (first, last) in enumerate(bounds)
    ]


class Aligner:
    """Finds pieces in the text as it was written.

    The tokenizer's preprocessing and SentencePiece's own normalisation change, drop and add
    characters. Both record where each character of theirs comes from, and the pieces joined are
    the normalised text: no search is needed.

    Deviation: the reference searches the longest common subsequence of pieces and text. Its time
    grows with the square of the text's length, characters that change stay unplaced, and a
    question with a fifth of these is dropped.
    """

    def __init__(self, tokenizer: AlbertTokenizer):
        self._tokenizer = tokenizer
        if isinstance(tokenizer, WordPieceTokenizer):
            return
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)

    def read(self, texts: Sequence[str]) -> list[Paragraph]:
        """Returns texts in pieces."""
        if isinstance(self._tokenizer, WordPieceTokenizer):
            return [Paragraph(*self._tokenizer.align(text)) for text in texts]
        return [
            self._align(text, ids) for text, ids in zip(texts, self._tokenizer.encode_batch(texts))
        ]

    def _align(self, text: str, ids: list[int]) -> Paragraph:
        # Three texts: as written, as preprocessed, as normalised. `written[i]` is where character
        # i of the preprocessed one comes from, `preprocessed[i]` the same for the normalised one;
        # both have one entry more, for the end.
        written = self._origins(text)
        normalized, preprocessed = self._processor.normalize(
            self._tokenizer.preprocess(text), with_offsets=True
        )
        begins, finishes = self._find_pieces(normalized, ids).T
        preprocessed = np.asarray(preprocessed, np.int32)
        first, following = preprocessed[begins], preprocessed[finishes]
        # A space that swallowed invisible characters: its last, so that answers begin with none.
        is_space = np.array([normalized[i] == WORD_BOUNDARY for i in begins], bool)
        starts = written[np.where(is_space, np.maximum(preprocessed[begins + 1] - 1, first), first)]
        # Up to where the next piece begins, as marks that were dropped lie between; but one
        # character that became several ends with each of them.
        ends = np.maximum(written[following] - 1, written[np.maximum(following - 1, first)])
        return Paragraph(ids, starts, ends)

    def _origins(self, text: str) -> np.ndarray:
        """Returns which character of a text each of the preprocessed one is: int32 [length + 1]."""
        origins: list[int] = []
        end = None
        for word in re.finditer(r"\S+", text):
            if end is not None:
                origins.append(end)  # one space, whatever white space there is
            start, end = word.span()
            if word[0].isascii():
                origins.extend(range(start, end))
                continue
            for i in range(start, end):
                origins.extend([i] * len(self._tokenizer.preprocess(text[i])))
        return np.array([*origins, end or 0], np.int32)

    def _find_pieces(self, normalized: str, ids: list[int]) -> np.ndarray:
        """Returns where the pieces begin and end: int64 [pieces, 2]."""
        spans: list[list[int]] = []
        position = 0
        for piece_id in ids:
            piece = self._tokenizer.id_to_piece(piece_id)
            if self._processor.is_byte(piece_id):
                if 0x80 <= int(piece[1:-1], 16) < 0xC0:  # continues the character before
                    spans.append(spans[-1])
                    continue
                length = 1
            elif self._processor.is_unknown(piece_id):
                length = 1  # or more: the next piece decides
            else:
                length = len(piece)
                found = normalized.find(piece, position)
                if found > position and spans:
                    spans[-1][1] = position = found
            spans.append([position, position + length])
            position += length
        if spans:
            spans[-1][1] = len(normalized)
        return np.array(spans, np.int64).reshape(-1, 2)
