"""Splits raw text into words with positions, by the same rule in Python and in the graph."""

import functools
import sys
import unicodedata

import numpy as np
import tensorflow as tf

# Scripts written without spaces, as they occur in Unicode character names. In these scripts, every
# piece or character is treated as a word.
SCRIPTS_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")

# Vowels of Thai and Lao that Unicode does not class as marks, although they are part of a syllable.
# The vowels in the second set are written before their consonant.
_VOWELS_BEHIND = "\u0e30\u0e32\u0e33\u0e45\u0eb0\u0eb2\u0eb3\u0ebd"
_VOWELS_BEFORE = "\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4"

# _MARK and _SIGN belong to the character before; a letter behind a _SIGN starts a word.
_SPACE, _LETTER, _MARK, _SIGN, _ALONE, _BEFORE, _OTHER = range(7)


def split_words(text: str) -> np.ndarray:
    """Returns the start and end (exclusive) of each word in characters, int32 [words, 2].

    A word is a run of letters, digits and marks. Every other character except white space is a
    separate word. In scripts without spaces, each letter is a separate word, with its marks, vowel
    signs and signs of length or repetition.

    Example: "It's 3.5 北京 ไทย๑๒ コーヒー" has the words `It ' s 3 . 5 北 京 ไท ย ๑๒ コー ヒー`.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    begins, kinds = _kind_ranges()
    kind = np.concatenate([kinds[np.searchsorted(begins, codes, "right") - 1], [_SPACE]])
    before = np.concatenate([[_SPACE], kind[:-1]])
    bounds = [np.flatnonzero(which) for which in _starts_and_limits(kind, before)]
    return np.stack(bounds, axis=1).astype(np.int32)


def split_words_in_graph(texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
    """Splits texts, string [batch] of valid UTF-8, by the same rule as split_words.

    Returns the words, string [batch, (words)], and the start and end (exclusive) of each word in
    characters of its text, both int32 [batch, (words)]. TensorFlow 2.15 replaces the 66
    noncharacters of Unicode by U+FFFD.
    """
    chars = tf.strings.unicode_split(texts, "UTF-8")
    codes = tf.strings.unicode_decode(texts, "UTF-8")
    begins, kinds = (tf.constant(column, tf.int32) for column in _kind_ranges())
    found = tf.searchsorted(begins, codes.flat_values, side="right") - 1
    # Append a space to each text, so that no word continues in the next text.
    kind = codes.with_flat_values(tf.gather(kinds, found))
    kind = tf.concat([kind, tf.fill([chars.nrows(), 1], _SPACE)], axis=1)
    places = tf.ragged.range(kind.row_lengths()).flat_values
    text_of_char, kind = row_ids(kind), kind.flat_values
    before = tf.concat([[_SPACE], kind[:-1]], axis=0)
    is_start, is_limit = _starts_and_limits(kind, before)
    counts = tf.math.unsorted_segment_sum(tf.cast(is_start, tf.int64), text_of_char, chars.nrows())

    def of_words(values):  # [all words] -> [batch, (words)]
        return tf.RaggedTensor.from_row_lengths(values, counts, validate=False)

    is_visible = kind != _SPACE
    word_of_char = tf.cumsum(tf.cast(is_start, tf.int64)) - 1
    spaced = tf.concat([chars, tf.fill([chars.nrows(), 1], " ")], axis=1).flat_values
    letters = tf.RaggedTensor.from_value_rowids(
        tf.boolean_mask(spaced, is_visible),
        tf.boolean_mask(word_of_char, is_visible),
        nrows=tf.reduce_sum(counts),
    )
    starts, limits = (
        of_words(tf.cast(tf.boolean_mask(places, which), tf.int32))
        for which in (is_start, is_limit)
    )
    return of_words(join_rows(letters)), starts, limits


def row_ids(values: tf.RaggedTensor) -> tf.Tensor:
    """Returns the row index of each value, int64 [values].

    RaggedTensor.value_rowids would allocate rows x longest row, which may be gigabytes.
    """
    places = tf.range(tf.size(values.flat_values, tf.int64))
    return tf.searchsorted(values.row_limits(), places, side="right", out_type=tf.int64)


def join_rows(values: tf.RaggedTensor, separator: str = "") -> tf.Tensor:
    """Joins the strings of each row: string [rows, (strings)] to string [rows].

    tf.strings.reduce_join would allocate rows x longest row, which may be gigabytes.
    """
    return tf.strings.unsorted_segment_join(
        values.flat_values, row_ids(values), values.nrows(), separator
    )


def _starts_and_limits(kind, before):
    """Returns whether each character starts a word, and whether it follows the end of a word."""
    goes_on = (kind == _LETTER) & ((before == _LETTER) | (before == _MARK))
    # A mark belongs to the character before it, even if this is punctuation.
    goes_on |= ((kind == _MARK) | (kind == _SIGN)) & (before != _SPACE)
    goes_on |= (kind == _ALONE) & (before == _BEFORE)
    return (kind != _SPACE) & ~goes_on, (before != _SPACE) & ~goes_on


@functools.cache
def _kind_ranges() -> tuple[np.ndarray, np.ndarray]:
    """Returns the first codes and the kinds of ranges of characters of one kind, [ranges] each."""
    kinds = np.fromiter(map(_kind, map(chr, range(sys.maxunicode + 1))), np.int32)
    begins = np.flatnonzero(np.concatenate([[True], kinds[1:] != kinds[:-1]]))
    return begins, kinds[begins]


def _kind(character: str) -> int:
    if character.isspace():
        return _SPACE
    category = unicodedata.category(character)
    has_no_spaces = unicodedata.name(character, "").startswith(SCRIPTS_WITHOUT_SPACES)
    if category[0] == "M" or character in _VOWELS_BEHIND or (category == "Lm" and has_no_spaces):
        return _SIGN if has_no_spaces else _MARK
    if character in _VOWELS_BEFORE:
        return _BEFORE
    # Format characters (Cf) occur inside words, such as between the parts of a Persian word.
    if category[0] not in "LN" and category != "Cf":
        return _OTHER
    return _ALONE if has_no_spaces and category != "Nd" else _LETTER
