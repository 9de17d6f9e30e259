"""Limits of a request: characters that are read of a text, rows, and bytes of the answer.

Tokenizing costs time and memory for each character, and more than that for a long run of characters
that the vocabulary does not know. The sequence that the model reads has a fixed length, so
characters that cannot matter are cut off before.
"""

from __future__ import annotations

import tensorflow as tf

from albert_tf.text.in_graph import character_class, import_tensorflow_text
from albert_tf.text.text_limits import CHARS_PER_PIECE, MANY_OF_ONE_CHAR, MOST_OF_ONE_CHAR
from albert_tf.text.words import join_rows, row_ids

# A context of question answering is read in windows, and each window costs a computation.
MAX_CONTEXT_CHARS = 100_000
# Characters of all contexts of a request; each takes some 200 bytes while it is aligned.
MAX_CONTEXTS_CHARS = 32 * MAX_CONTEXT_CHARS

# Rows of a request. A row of one character is computed and answered like any other.
MAX_ROWS = 2048

# Of one output. On the way it takes the memory of three.
MAX_OUTPUT_BYTES = 2**29

_LONGEST_CHAR = 4  # bytes of UTF-8


def chars_of_sequence(texts: tf.Tensor, max_seq_length: int) -> tf.Tensor:
    """Returns as much of texts, string [batch], as can matter to a sequence.

    White space before a text is dropped first. pipelines.tasks.reading.truncation does the same.
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


def first_chars_of_contexts(texts: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the first characters of long texts, string [batch]; too many texts are refused."""
    texts = first_chars(texts, MAX_CONTEXT_CHARS)
    number = tf.reduce_sum(tf.strings.length(texts, "UTF8_CHAR"))
    message = (
        f"{name} must be at most {MAX_CONTEXTS_CHARS:,} characters in all rows together (at most "
        f"{MAX_CONTEXT_CHARS:,} of each row count): send fewer rows"
    )
    with tf.control_dependencies(
        [tf.debugging.assert_less_equal(number, MAX_CONTEXTS_CHARS, message)]
    ):
        return tf.identity(texts)


def are_words_read(words: tf.Tensor) -> tf.Tensor:
    """Returns which words of rows, string [batch, words], are among the first characters."""
    costs = tf.strings.length(words, "UTF8_CHAR")
    prepared = tf.reshape(_num_prepared(tf.reshape(words, [-1])), tf.shape(words))
    costs = tf.maximum(costs, -(-prepared // MANY_OF_ONE_CHAR))
    return tf.cumsum(costs, axis=1) <= MAX_CONTEXT_CHARS


def _num_prepared(texts: tf.Tensor) -> tf.Tensor:
    """Returns how many characters NFKD makes of texts: int32 [batch]."""
    normalized = import_tensorflow_text().normalize_utf8(texts, "NFKD")
    return tf.strings.length(normalized, "UTF8_CHAR")


def _grow(texts: tf.Tensor, number: int) -> tf.Tensor:
    return _num_prepared(texts) > MANY_OF_ONE_CHAR * number


def _end(texts: tf.Tensor, number: int, unit: str) -> tf.Tensor:
    begin = tf.maximum(tf.strings.length(texts, unit) - number, 0)
    return tf.strings.substr(texts, begin, tf.fill(tf.shape(begin), number), unit)


def fill_blanks(questions: tf.Tensor, options: tf.Tensor, blank: str, number: int) -> tf.Tensor:
    """Puts each option into the blanks of its question, as far as it is within the last characters.

    A question of n blanks with an option of n characters would have n * n of them.

    Args:
      questions: string [rows], valid UTF-8.
      options: string [rows], valid UTF-8: what replaces the blanks of each question.
      blank: what an option replaces.
      number: characters at the end that must be right; the result may have more.

    Returns:
      string [rows]; a question without a blank as it is.
    """
    parts = tf.strings.split(questions, blank)
    row = row_ids(parts)
    is_last = tf.equal(tf.range(tf.size(row, tf.int64)) + 1, tf.gather(parts.row_limits(), row))
    in_blank = tf.where(is_last, tf.size(options, tf.int64), row)
    options = tf.concat([options, [""]], axis=0)  # none is behind the last part
    # Characters of a row behind each part with its option.
    lengths = tf.strings.length(parts.flat_values, "UTF8_CHAR")
    lengths += tf.gather(tf.strings.length(options, "UTF8_CHAR"), in_blank)
    before = tf.concat([[0], tf.cumsum(tf.cast(lengths, tf.int64))], axis=0)
    behind = tf.gather(tf.gather(before, parts.row_limits()), row) - before[1:]
    # Before any option is copied: those are what takes the memory.
    is_read = behind < number
    row_lengths = tf.math.unsorted_segment_sum(tf.cast(is_read, tf.int64), row, parts.nrows())
    filled = tf.strings.join(
        [
            tf.boolean_mask(parts.flat_values, is_read),
            tf.gather(options, tf.boolean_mask(in_blank, is_read)),
        ]
    )
    return join_rows(tf.RaggedTensor.from_row_lengths(filled, row_lengths))
