"""Maps pieces back to the characters of the original texts, in the TensorFlow graph."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from albert_tf.text.words import row_ids


class AlignedPieces(NamedTuple):
    """The pieces of texts, with the span of original characters that each piece covers.

    The span includes the space before the piece, and dropped combining marks behind it. Several
    pieces may share a character (½ is `1`, `⁄`, `2`).

    Attributes:
      pieces: int32 [batch, (pieces)]; the other attributes are parallel to its flat values.
      starts, limits: int32 [all pieces], byte offsets of a piece in its text; limits are exclusive.
      visible_before: int64 [all pieces], number of visible characters before the piece, counted
        through all texts. Every character but white space is visible.
      visible_through: int64 [all pieces], number of visible characters up to the piece's end.
    """

    pieces: tf.RaggedTensor
    starts: tf.Tensor
    limits: tf.Tensor
    visible_before: tf.Tensor
    visible_through: tf.Tensor


@functools.cache
def character_class(test) -> str:
    """Returns a regular expression that matches one character for which `test` is true.

    RE2's own classes differ: \\p{Mn} is not combining() != 0, \\s is ASCII.
    """
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if test(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "[" + "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges) + "]"


class WrittenCharacters:
    """The original characters of texts, and their places in the preprocessed texts.

    Attributes, counted through all texts:
      offsets, limits: int32 [characters], byte offsets of a character in its text.
      visible_before, visible_through: int64 [characters], number of visible characters (no white
        space) before a character, and up to its end.
      ends: int64 [batch], index after the last visible character of a text.
    """

    def __init__(self, preprocess: Callable, texts: tf.Tensor, bases: tf.Tensor):
        chars, self.offsets, self.limits = split_characters(texts)
        text_of_char, chars_of_text = row_ids(chars), chars.row_splits
        chars = chars.flat_values

        is_space = matches(chars, character_class(str.isspace))
        is_visible = tf.cast(~is_space, tf.int64)
        self.visible_through = tf.cumsum(is_visible)
        self.visible_before = self.visible_through - is_visible
        indices = tf.range(tf.size(chars, tf.int64))
        self.ends = tf.math.unsorted_segment_max(
            tf.where(is_space, tf.cast(0, tf.int64), indices + 1), text_of_char, tf.size(texts)
        )
        self.ends = tf.maximum(self.ends, chars_of_text[:-1])

        # Of several white-space characters between two words, the first becomes the space.
        after_visible = tf.concat([[False], ~is_space[:-1]], axis=0)
        is_first = tf.equal(indices, tf.gather(chars_of_text, text_of_char))
        separates = is_space & after_visible & ~is_first
        separates &= indices < tf.gather(self.ends, text_of_char)
        different, which = tf.unique(chars)
        sizes = tf.gather(tf.strings.length(preprocess(different)), which)
        # `preprocess` keeps noncharacters, but split_characters replaces them by U+FFFD.
        sizes = tf.where(tf.equal(chars, "\ufffd"), self.limits - self.offsets, sizes)
        sizes = tf.where(is_space, tf.cast(separates, tf.int32), sizes)
        before = tf.concat([[0], tf.cumsum(tf.cast(sizes, tf.int64))], axis=0)
        bases -= tf.gather(before, chars_of_text[:-1])
        self._places = before[:-1] + tf.gather(bases, text_of_char)

    def at(self, places: tf.Tensor) -> tf.Tensor:
        """Returns int64 indexes of the characters at places; the last one if several share it."""
        # A dropped character has the same place as the next character, so the last one was kept.
        return tf.searchsorted(self._places, places, side="right", out_type=tf.int64) - 1


def split_characters(texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
    """Splits texts, string [batch] of valid UTF-8, into characters.

    Returns:
      The characters, string [batch, (characters)], and their first byte in the text and the byte
      after, int32 [all characters] each. TensorFlow 2.15 returns U+FFFD for noncharacters such as
      U+10FFFF, but the offsets count the original bytes.
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
    """Returns whether a regular expression matches each whole string: bool of the same shape."""
    different, which = tf.unique(chars)
    return tf.gather(tf.strings.regex_full_match(different, regex), which)
