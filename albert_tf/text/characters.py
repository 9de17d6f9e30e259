"""Maps pieces back to the characters of the original texts, in the TensorFlow graph."""

import functools
import sys
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.text.words import row_ids


class AlignedPieces(NamedTuple):
    """Pieces of texts, with the span of original characters that each piece covers.

    A span includes the space before the piece and dropped combining marks after the piece. Several
    pieces may share a character (½ becomes `1`, `⁄`, `2`).

    Attributes:
      pieces: int32 [batch, (pieces)]. The other attributes have one element per piece.
      starts, limits: int32, byte offsets of a piece in its text. Limits are exclusive.
      visible_before, visible_through: int64, number of visible (non-whitespace) characters before
        the piece and up to its end, counted from the start of the first text.
    """

    pieces: tf.RaggedTensor
    starts: tf.Tensor
    limits: tf.Tensor
    visible_before: tf.Tensor
    visible_through: tf.Tensor


@functools.cache
def character_class(test) -> str:
    """Returns a regular expression that matches a character for which `test` is True.

    RE2's own classes differ from Python's: \\p{Mn} lacks some combining characters, \\s is ASCII.
    """
    found = np.array([bool(test(chr(code))) for code in range(sys.maxunicode + 1)])
    edges = np.flatnonzero(np.diff(found, prepend=False, append=False))
    ranges = zip(edges[::2], edges[1::2] - 1)
    return "[" + "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges) + "]"


class WrittenCharacters:
    """Characters of the original texts, which are string [batch] of valid UTF-8.

    Attributes:
      chars: string [batch, (characters)]. TensorFlow 2.15 replaces noncharacters such as U+10FFFF
        by U+FFFD here, but the offsets count the original bytes.
      offsets, limits: int32 [all characters], byte offsets of a character in its text.
      is_space: bool [all characters], True for white space. All other characters are visible.
    """

    def __init__(self, texts: tf.Tensor):
        self.chars, offsets = tf.strings.unicode_split_with_offsets(texts, "UTF-8")
        self.offsets = tf.cast(offsets.flat_values, tf.int32)
        text_of_char = row_ids(self.chars)
        is_last = tf.equal(
            tf.range(tf.size(text_of_char, tf.int64)) + 1,
            tf.gather(self.chars.row_limits(), text_of_char),
        )
        ends = tf.gather(tf.strings.length(texts), text_of_char)
        self.limits = tf.where(is_last, ends, tf.roll(self.offsets, -1, axis=0))
        self.is_space = matches(self.chars.flat_values, character_class(str.isspace))

    def align(self, pieces: tf.RaggedTensor, first: tf.Tensor, last: tf.Tensor) -> AlignedPieces:
        """Returns AlignedPieces. `first` and `last` index each piece's first and last character."""
        is_visible = tf.cast(~self.is_space, tf.int64)
        visible_through = tf.cumsum(is_visible)
        return AlignedPieces(
            pieces,
            tf.gather(self.offsets, first),
            tf.gather(self.limits, last),
            tf.gather(visible_through - is_visible, first),
            tf.gather(visible_through, last),
        )

    def ends(self) -> tf.Tensor:
        """Returns the index after the last visible character of each text, int64 [batch]."""
        indices = tf.range(tf.size(self.is_space, tf.int64))
        ends = tf.math.unsorted_segment_max(
            tf.where(self.is_space, tf.cast(0, tf.int64), indices + 1),
            row_ids(self.chars),
            self.chars.nrows(),
        )
        return tf.maximum(ends, self.chars.row_starts())

    def find(self, places: tf.Tensor, sizes: tf.Tensor, bases: tf.Tensor) -> tf.Tensor:
        """Returns the index of the original character at each place, int64 [places].

        Places are offsets in the preprocessed texts, which start at `bases`. `sizes`, int32 [all
        characters], are the bytes that each visible character becomes. If several characters have
        the same place, the last one is returned, because the others were dropped.
        """
        is_space = self.is_space
        text_of_char, chars_of_text = row_ids(self.chars), self.chars.row_splits
        indices = tf.range(tf.size(is_space, tf.int64))
        # In white space between two words, the first character becomes the space.
        after_visible = tf.concat([[False], ~is_space[:-1]], axis=0)
        is_first = tf.equal(indices, tf.gather(chars_of_text, text_of_char))
        separates = is_space & after_visible & ~is_first
        separates &= indices < tf.gather(self.ends(), text_of_char)
        sizes = tf.where(is_space, tf.cast(separates, tf.int32), sizes)
        before = tf.concat([[0], tf.cumsum(tf.cast(sizes, tf.int64))], axis=0)
        bases -= tf.gather(before, chars_of_text[:-1])
        of_chars = before[:-1] + tf.gather(bases, text_of_char)
        return tf.searchsorted(of_chars, places, side="right", out_type=tf.int64) - 1


def matches(chars: tf.Tensor, regex: str) -> tf.Tensor:
    """Returns whether each string fully matches a regular expression, bool of the same shape."""
    different, which = tf.unique(chars)
    return tf.gather(tf.strings.regex_full_match(different, regex), which)
