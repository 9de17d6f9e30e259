"""Truncates texts before tokenization, in the TensorFlow graph.

Tokenization takes time and memory for each character, also beyond the maximum sequence length.
"""

from collections.abc import Callable

import tensorflow as tf

from albert_tf.text.characters import character_class
from albert_tf.text.in_graph import import_tensorflow_text

# Number of characters to keep per piece of the model's input. Pieces of published vocabularies have
# at most 16 characters. Truncated text has too few pieces only if most of it is white space,
# combining marks or characters that are not in the vocabulary.
CHARS_PER_PIECE = 64

# NFKD may replace a character with several: U+FDFA with 18, a Korean syllable with 3.
MOST_OF_ONE_CHAR, MANY_OF_ONE_CHAR = 18, 3


def chars_of_sequence(texts: tf.Tensor, max_seq_length: int) -> tf.Tensor:
    """Removes leading white space and truncates texts, string [batch], to what a sequence needs."""
    start = "^" + character_class(str.isspace) + "+"
    texts = tf.strings.regex_replace(texts, start, "", replace_global=False)
    return first_chars(texts, max_seq_length * CHARS_PER_PIECE)


def first_chars(texts: tf.Tensor, number: int) -> tf.Tensor:
    """Truncates texts, string [batch], to `number` characters. Invalid bytes become U+FFFD.

    If NFKD would expand these to more than 3 * number characters, keeps only number / 18.
    """
    return _cut(texts, number, lambda texts, size, unit: tf.strings.substr(texts, 0, size, unit))


def last_chars(texts: tf.Tensor, number: int) -> tf.Tensor:
    """Removes trailing white space and keeps the last `number` characters. See first_chars."""
    texts = tf.strings.regex_replace(texts, character_class(str.isspace) + "+$", "")
    return _cut(texts, number, _end)


def num_prepared(texts: tf.Tensor) -> tf.Tensor:
    """Returns the number of characters in each text after NFKD, int32 [batch]."""
    normalized = import_tensorflow_text().normalize_utf8(texts, "NFKD")
    return tf.strings.length(normalized, "UTF8_CHAR")


def _cut(texts: tf.Tensor, number: int, part: Callable) -> tf.Tensor:
    """Keeps a `part` of `number` characters, or of number / 18 if NFKD would expand it too much."""
    # Truncate by bytes first, which is cheap (a character has at most 4 in UTF-8). A character that
    # is cut in two is dropped below.
    texts = part(texts, 4 * number, "BYTE")
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = part(texts, number, "UTF8_CHAR")
    fewer = part(texts, number // MOST_OF_ONE_CHAR, "UTF8_CHAR")
    return tf.where(num_prepared(texts) > MANY_OF_ONE_CHAR * number, fewer, texts)


def _end(texts: tf.Tensor, number: int, unit: str) -> tf.Tensor:
    begin = tf.maximum(tf.strings.length(texts, unit) - number, 0)
    return tf.strings.substr(texts, begin, tf.fill(tf.shape(begin), number), unit)
