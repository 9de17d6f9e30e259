"""Limits of a request: characters of long texts, rows, and bytes of the answer."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.text.limits import MANY_OF_ONE_CHAR, first_chars, num_prepared

# A context of question answering is read in windows, and each window costs a computation.
MAX_CONTEXT_CHARS = 100_000
# Characters of all contexts of a request; each takes some 200 bytes while it is aligned.
MAX_CONTEXTS_CHARS = 32 * MAX_CONTEXT_CHARS

# Rows of a request. The limit also covers short rows, which still cost a computation each.
MAX_ROWS = 2048

# Size of one output. The server needs three times this memory to send it.
MAX_OUTPUT_BYTES = 2**29


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
    prepared = tf.reshape(num_prepared(tf.reshape(words, [-1])), tf.shape(words))
    costs = tf.maximum(costs, -(-prepared // MANY_OF_ONE_CHAR))
    return tf.cumsum(costs, axis=1) <= MAX_CONTEXT_CHARS
