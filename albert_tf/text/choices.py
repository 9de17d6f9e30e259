"""Combines questions with their answer options, in the TensorFlow graph."""

import re
from collections.abc import Callable

import tensorflow as tf

from albert_tf.text.limits import CHARS_PER_PIECE, last_chars
from albert_tf.text.words import join_rows, row_ids


def questions_with_options(
    preprocess: Callable[[tf.Tensor], tf.Tensor],
    questions: tf.Tensor,
    options: tf.Tensor,
    max_qa_length: int,
    blank: str | None,
) -> tf.Tensor:
    """Fills each option into the blanks of its question, or appends it if there are no blanks.

    The start of a long text may be dropped, because only the last pieces become model inputs.

    Args:
      preprocess: the method `preprocess` of the tokenizer.
      questions: string [batch].
      options: string [batch * choices].
      max_qa_length: number of pieces at the end of a text that become model inputs.
      blank: string that marks a blank, such as `_`. None if no question has blanks.
    """
    number = max_qa_length * CHARS_PER_PIECE
    # Search for blanks after preprocessing, which converts a full-width blank to `_`.
    num_choices = tf.size(options) // tf.maximum(tf.size(questions), 1)
    questions = tf.repeat(preprocess(last_chars(questions, number)), num_choices)
    options = preprocess(last_chars(options, number))
    behind = tf.strings.join([questions, options], " ")
    if blank is None:
        return behind
    has_blank = tf.strings.regex_full_match(questions, f"(?s).*{re.escape(blank)}.*")
    return tf.where(has_blank, _fill_blanks(questions, options, blank, number), behind)


def _fill_blanks(questions: tf.Tensor, options: tf.Tensor, blank: str, number: int) -> tf.Tensor:
    """Replaces blanks in the last `number` characters of each question with its option.

    Without this limit, a question with n blanks and an option of n characters would grow to n * n.
    """
    parts = tf.strings.split(questions, blank)
    row = row_ids(parts)
    is_last = tf.equal(tf.range(tf.size(row, tf.int64)) + 1, tf.gather(parts.row_limits(), row))
    in_blank = tf.where(is_last, tf.size(options, tf.int64), row)
    options = tf.concat([options, [""]], axis=0)  # no option follows the last part
    # Number of characters that follow each part and its option in the row.
    lengths = tf.strings.length(parts.flat_values, "UTF8_CHAR")
    lengths += tf.gather(tf.strings.length(options, "UTF8_CHAR"), in_blank)
    before = tf.concat([[0], tf.cumsum(tf.cast(lengths, tf.int64))], axis=0)
    behind = tf.gather(tf.gather(before, parts.row_limits()), row) - before[1:]
    # Select parts before joining, because the copies of the options use most of the memory.
    is_read = behind < number
    row_lengths = tf.math.unsorted_segment_sum(tf.cast(is_read, tf.int64), row, parts.nrows())
    filled = tf.strings.join(
        [
            tf.boolean_mask(parts.flat_values, is_read),
            tf.gather(options, tf.boolean_mask(in_blank, is_read)),
        ]
    )
    return join_rows(tf.RaggedTensor.from_row_lengths(filled, row_lengths))
