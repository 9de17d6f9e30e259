"""Pieces of texts and where in the texts they stand, in the graph."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import sentencepiece
import tensorflow as tf

from albert_tf.text.tokenization import WORD_BOUNDARY, AlbertTokenizer, InGraphTokenizer
from albert_tf.text.words import row_ids

# Python's white space as a class of characters in a regular expression; RE2's own is ASCII.
WHITE_SPACE = "[" + "".join(filter(str.isspace, map(chr, range(0x3001)))) + "]"


class AlignedPieces(NamedTuple):
    """Texts in pieces.

    A piece's characters are the source of its text, the space before it and marks dropped behind it
    included. Several pieces may share one (½ is `1`, `⁄`, `2`).

    Attributes:
      pieces: int32 [batch, (pieces)]; the flat values of the others go with its.
      starts, limits: int32 [all pieces], the first byte of each in its text, and the one after.
      visible_before: int64 [all pieces], characters that are no white space before it, counted
        through all texts.
      visible_through: int64 [all pieces], the same to its end.
    """

    pieces: tf.RaggedTensor
    starts: tf.Tensor
    limits: tf.Tensor
    visible_before: tf.Tensor
    visible_through: tf.Tensor


class AligningTokenizer(InGraphTokenizer):
    """An InGraphTokenizer that also locates the pieces in the texts.

    A text has three forms: as written, as preprocessed, as SentencePiece normalizes it.
    SentencePiece returns where in the second a piece begins and ends. The second is the first
    preprocessed character by character, but for white space, so lengths give each one's place.

    Deviation: in a piece split for its digit and comma the parts' places are counted from its end
    by their lengths. An invisible control character inside shifts them by its length.
    """

    def __init__(self, tokenizer: AlbertTokenizer):
        super().__init__(tokenizer)
        pieces = [tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size)]
        processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
        self._begins_word = np.array([piece.startswith(WORD_BOUNDARY) for piece in pieces])
        self._is_byte = np.array([processor.is_byte(i) for i in range(len(pieces))])
        self._num_bytes = np.array(
            [len(piece.replace(WORD_BOUNDARY, "").encode()) for piece in pieces]
        )
        self._swallowed = _swallowed_characters(processor)

    def align(self, texts: tf.Tensor) -> AlignedPieces:
        """Tokenizes texts, string [batch], which are valid UTF-8."""
        prepared = self.preprocess(texts)
        # Places are counted through all prepared texts, each with one more for its end.
        sizes = tf.cast(tf.strings.length(prepared), tf.int64)
        bases = tf.cumsum(sizes + 1, exclusive=True)
        pieces, begins, limits = self._tokenize_with_offsets(prepared, bases)
        chars, offsets = tf.strings.unicode_split_with_offsets(prepared, "UTF-8")
        places = offsets.flat_values + tf.gather(bases, row_ids(chars))

        written = _WrittenCharacters(self, texts, bases)
        origins = written.at(places)  # of each prepared character

        # A piece that begins at a space that swallowed invisible characters begins at the last.
        first = tf.searchsorted(places, begins, out_type=tf.int64)
        following = tf.searchsorted(places, limits, out_type=tf.int64)
        is_visible = ~matches(chars.flat_values, self._swallowed)
        visible = tf.concat([tf.where(is_visible)[:, 0], [tf.size(places, tf.int64)]], axis=0)
        next_visible = tf.gather(visible, tf.searchsorted(visible, first))
        begins_word = tf.gather(self._begins_word, pieces.flat_values)
        start = tf.where(
            begins_word, tf.maximum(tf.minimum(next_visible, following) - 1, first), first
        )
        starts = tf.gather(origins, start)

        # Up to where the next piece begins, as marks that were dropped lie between; but one
        # character that became several ends with each of them.
        last = tf.gather(origins, tf.maximum(following - 1, first))
        is_end = tf.equal(limits, tf.gather(bases + sizes, row_ids(pieces)))
        origins = tf.concat([origins, [0]], axis=0)
        next_start = tf.where(
            is_end,
            tf.gather(written.ends, row_ids(pieces)),
            tf.gather(origins, following),
        )
        lasts = tf.maximum(next_start - 1, last)
        return AlignedPieces(
            pieces,
            tf.gather(written.offsets, starts),
            tf.gather(written.limits, lasts),
            tf.gather(written.visible_before, starts),
            tf.gather(written.visible_through, lasts),
        )

    def _tokenize_with_offsets(self, prepared, bases):
        """Returns pieces, ragged, and int64 [all pieces] where they begin and end."""
        pieces, begins, limits = self._sentencepiece.tokenize_with_offsets(prepared)
        ids, bases = pieces.flat_values, tf.gather(bases, row_ids(pieces))
        begins = tf.cast(begins.flat_values, tf.int64) + bases
        limits = tf.cast(limits.flat_values, tf.int64) + bases
        # Of the bytes of a character SentencePiece gives it to the last, the others have nothing.
        ends = tf.concat(
            [tf.where((limits > begins) | ~tf.gather(self._is_byte, ids))[:, 0], [0]], axis=0
        )
        indices = tf.range(tf.size(ids, tf.int64))
        limits = tf.gather(limits, tf.gather(ends, tf.searchsorted(ends[:-1], indices)))
        if self._splits is None:
            return pieces, begins, limits
        parts = tf.gather(self._splits, ids)
        # Bytes of a part and those behind it in its piece: from the end, as before a piece there
        # may be a space.
        num_bytes = tf.gather(self._num_bytes, parts.flat_values)
        before = tf.concat([[0], tf.cumsum(num_bytes)], axis=0)
        piece_of_part = row_ids(parts)
        behind = tf.gather(tf.gather(before, parts.row_limits()), piece_of_part) - before[1:]
        part_limits = tf.gather(limits, piece_of_part) - behind
        is_first = tf.equal(tf.ragged.range(parts.row_lengths()).flat_values, 0)
        part_begins = tf.where(is_first, tf.gather(begins, piece_of_part), part_limits - num_bytes)
        row_splits = tf.gather(parts.row_splits, pieces.row_splits)
        pieces = tf.RaggedTensor.from_row_splits(parts.flat_values, row_splits)
        return pieces, part_begins, part_limits


class _WrittenCharacters:
    """The characters of texts as written, and which places in the prepared texts they went to.

    Attributes, counted through all texts:
      offsets, limits: int32 [characters], each one's first byte in its text, and the one after.
      visible_before, visible_through: int64 [characters], characters that are no white space.
      ends: int64 [batch], the character after the last that is no white space.
    """

    def __init__(self, tokenizer: InGraphTokenizer, texts: tf.Tensor, bases: tf.Tensor):
        chars, self.offsets, self.limits = split_characters(texts)
        text_of_char, chars_of_text = row_ids(chars), chars.row_splits
        chars = chars.flat_values

        is_space = matches(chars, WHITE_SPACE)
        is_visible = tf.cast(~is_space, tf.int64)
        self.visible_through = tf.cumsum(is_visible)
        self.visible_before = self.visible_through - is_visible
        indices = tf.range(tf.size(chars, tf.int64))
        self.ends = tf.math.unsorted_segment_max(
            tf.where(is_space, tf.cast(0, tf.int64), indices + 1), text_of_char, tf.size(texts)
        )
        self.ends = tf.maximum(self.ends, chars_of_text[:-1])

        # Of the white space between two words the first is the space that remains.
        after_visible = tf.concat([[False], ~is_space[:-1]], axis=0)
        is_first = tf.equal(indices, tf.gather(chars_of_text, text_of_char))
        separates = is_space & after_visible & ~is_first
        separates &= indices < tf.gather(self.ends, text_of_char)
        different, which = tf.unique(chars)
        sizes = tf.gather(tf.strings.length(tokenizer.preprocess(different)), which)
        # Preparing keeps noncharacters, which split_characters replaces by U+FFFD.
        sizes = tf.where(tf.equal(chars, "\ufffd"), self.limits - self.offsets, sizes)
        sizes = tf.where(is_space, tf.cast(separates, tf.int32), sizes)
        before = tf.concat([[0], tf.cumsum(tf.cast(sizes, tf.int64))], axis=0)
        bases -= tf.gather(before, chars_of_text[:-1])
        self._places = before[:-1] + tf.gather(bases, text_of_char)

    def at(self, places: tf.Tensor) -> tf.Tensor:
        """Returns which character went to each place, int64, the last of those that are there."""
        # Those that became nothing share the place of the next one.
        return tf.searchsorted(self._places, places, side="right", out_type=tf.int64) - 1


def split_characters(texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
    """Splits texts, string [batch] of valid UTF-8, into characters.

    Returns:
      The characters, string [batch, (characters)], and int32 [all characters] the first byte of
      each in its text, and the one after. TensorFlow 2.15 returns U+FFFD for noncharacters such as
      U+10FFFF, but the places count the text's own bytes.
    """
    chars, offsets = tf.strings.unicode_split_with_offsets(texts, "UTF-8")
    offsets = tf.cast(offsets.flat_values, tf.int32)
    text_of_char = row_ids(chars)
    is_last = tf.equal(
        tf.range(tf.size(text_of_char, tf.int64)) + 1, tf.gather(chars.row_limits(), text_of_char)
    )
    ends = tf.gather(tf.strings.length(texts), text_of_char)
    return chars, offsets, tf.where(is_last, ends, tf.roll(offsets, -1, axis=0))


def matches(chars: tf.Tensor, regex: str) -> tf.Tensor:
    """Returns which strings a regular expression matches in whole: bool, as many."""
    different, which = tf.unique(chars)
    return tf.gather(tf.strings.regex_full_match(different, regex), which)


def _swallowed_characters(processor: sentencepiece.SentencePieceProcessor) -> str:
    """Returns the class of characters that SentencePiece takes for a space or for nothing."""
    swallowed = [
        rf"\x{{{code:x}}}"
        for code in range(sys.maxunicode + 1)
        if not 0xD800 <= code < 0xE000  # halves of characters
        and processor.normalize(f"a{chr(code)}b").replace(WORD_BOUNDARY, "") == "ab"
    ]
    return "[" + "".join(swallowed) + "]"
