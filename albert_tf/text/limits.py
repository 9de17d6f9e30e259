"""How much of a text is read for a sequence, in the graph.

Tokenizing costs time and memory for each character, and more than that for a long run of characters
that the vocabulary does not know. A sequence has a fixed length, so what cannot matter to it is cut
off before.
"""

from __future__ import annotations

import tensorflow as tf

from albert_tf.text.characters import character_class
from albert_tf.text.in_graph import import_tensorflow_text

# Characters that are read for each piece that the model can take. Pieces of published vocabularies
# have at most 16 characters, and words of real text some 4. So a text has too few pieces in them
# only if it is nearly all white space, combining marks or characters that the vocabulary lacks.
CHARS_PER_PIECE = 64

# What Unicode's NFKD makes of one character: 18 of U+FDFA, 3 of a Korean syllable.
MOST_OF_ONE_CHAR, MANY_OF_ONE_CHAR = 18, 3

_LONGEST_CHAR = 4  # bytes of UTF-8


def chars_of_sequence(texts: tf.Tensor, max_seq_length: int) -> tf.Tensor:
    """Returns as much of texts, string [batch], as can matter to a sequence.

    White space before a text is dropped first.
    """
    start = "^" + character_class(str.isspace) + "+"
    texts = tf.strings.regex_replace(texts, start, "", replace_global=False)
    return first_chars(texts, max_seq_length * CHARS_PER_PIECE)


def first_chars(texts: tf.Tensor, number: int) -> tf.Tensor:
    """Returns the first characters of texts, string [batch]; bytes that are no UTF-8 are U+FFFD.

    They are fewer where preparing would make more than three of each.
    """
    # Bytes first, at no cost. A character cut in two comes after the characters that are kept.
    texts = tf.strings.substr(texts, 0, _LONGEST_CHAR * number)
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = tf.strings.substr(texts, 0, number, unit="UTF8_CHAR")
    fewer = tf.strings.substr(texts, 0, number // MOST_OF_ONE_CHAR, unit="UTF8_CHAR")
    return tf.where(_grow(texts, number), fewer, texts)


def last_chars(texts: tf.Tensor, number: int) -> tf.Tensor:
    """Does what first_chars does, with the last characters; drops white space at the end first."""
    texts = tf.strings.regex_replace(texts, character_class(str.isspace) + "+$", "")
    texts = _end(texts, _LONGEST_CHAR * number, "BYTE")
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = _end(texts, number, "UTF8_CHAR")
    fewer = _end(texts, number // MOST_OF_ONE_CHAR, "UTF8_CHAR")
    return tf.where(_grow(texts, number), fewer, texts)


def num_prepared(texts: tf.Tensor) -> tf.Tensor:
    """Returns how many characters NFKD makes of texts: int32 [batch]."""
    normalized = import_tensorflow_text().normalize_utf8(texts, "NFKD")
    return tf.strings.length(normalized, "UTF8_CHAR")


def _grow(texts: tf.Tensor, number: int) -> tf.Tensor:
    return num_prepared(texts) > MANY_OF_ONE_CHAR * number


def _end(texts: tf.Tensor, number: int, unit: str) -> tf.Tensor:
    begin = tf.maximum(tf.strings.length(texts, unit) - number, 0)
    return tf.strings.substr(texts, begin, tf.fill(tf.shape(begin), number), unit)
