"""Checks requests in the graph: some faults fail the request, others mark a row as bad.

A server may merge the rows of several clients into one batch. So a fault in the values of a row is
reported for that row, and the other rows are answered. Inputs of wrong or unequal shapes fail the
whole request.
"""

from __future__ import annotations

import tensorflow as tf

from albert_tf.text.limits import MANY_OF_ONE_CHAR, first_chars, num_prepared
from .signatures import Signature

# A context of question answering is read in windows, and each window costs a computation.
MAX_CONTEXT_CHARS = 100_000
# Characters of all contexts of a request; each takes some 200 bytes while it is aligned.
MAX_CONTEXTS_CHARS = 32 * MAX_CONTEXT_CHARS

# Rows of a request. The limit also covers short rows, which still cost a computation each.
MAX_ROWS = 2048

# Size of one output. The server needs three times this memory to send it.
MAX_OUTPUT_BYTES = 2**29

# Values of a bad row's outputs, by dtype. No answer has these values.
_BAD = {tf.float32: float("nan"), tf.int32: -1, tf.string: ""}

# The largest sizes that a request may set. The limit of characters also bounds the words.
_LARGEST: dict[int | str, int] = {"batch": MAX_ROWS, "words": MAX_CONTEXT_CHARS}
_STRING_BYTES = 24  # memory of one string without its characters


def check_shapes(
    inputs: dict[str, tf.Tensor], signature: Signature, sizes: dict[str, int]
) -> dict[str, tf.Tensor]:
    """Returns inputs that have the ranks and sizes of a signature; others fail the request.

    Inputs with too many rows or too large an answer also fail. Dimensions of one name must have one
    size; `sizes` has the sizes that the model fixes, such as "choices".
    """
    known: dict[int | str, tuple] = {
        name: (size, f"{size} as in the model") for name, size in sizes.items()
    }
    given, checks = {}, []
    for name, field in signature.inputs.items():
        dimensions = f"{name} must be [{', '.join(map(str, field.shape))}]"
        # A server feeds tensors of any rank, but TensorFlow trusts the declared rank and would
        # remove the check. The placeholder hides the declared rank.
        tensor = tf.raw_ops.PlaceholderWithDefault(input=inputs[name], shape=tf.TensorShape(None))
        with tf.control_dependencies(
            [tf.debugging.assert_rank(tensor, len(field.shape), dimensions)]
        ):
            shape = tf.unstack(tf.reshape(tf.shape(tensor), [len(field.shape)]))
        for dimension, size in zip(field.shape, shape):
            if dimension in known:
                expected, where = known[dimension]
                message = f"{dimensions}, {dimension} {where}"
                checks.append(tf.debugging.assert_equal(size, expected, message))
                continue
            known[dimension] = (size, f"the same as in {name}")
            if most := _LARGEST.get(dimension):
                message = f"{dimensions}, {dimension} at most {most:,}"
                checks.append(tf.debugging.assert_less_equal(size, most, message))
        given[name] = tensor
    checks += _check_outputs(signature, {name: size for name, (size, _) in known.items()})
    checked = {}
    with tf.control_dependencies(checks):
        for name, tensor in given.items():
            checked[name] = tf.identity(tensor)
            checked[name].set_shape(inputs[name].shape)
    return checked


def _check_outputs(signature: Signature, sizes: dict[int | str, tf.Tensor]) -> list[tf.Operation]:
    """Returns checks that no output is too large, as far as sizes of its dimensions are known."""
    checks = []
    most = tf.constant(MAX_OUTPUT_BYTES, tf.int64)
    for name, field in signature.outputs.items():
        if not all(isinstance(d, int) or d in sizes for d in field.shape):
            continue
        element = _STRING_BYTES if field.dtype == tf.string else field.dtype.size
        size = tf.constant(element, tf.int64)
        for dimension in field.shape:
            # A limit after each factor: the whole product may overflow int64.
            size = tf.minimum(size * tf.cast(sizes.get(dimension, dimension), tf.int64), most + 1)
        message = (
            f"{name} [{', '.join(map(str, field.shape))}] must be at most "
            f"{MAX_OUTPUT_BYTES >> 20} MB: send less in a request"
        )
        checks.append(tf.debugging.assert_less_equal(size, most, message))
    return checks


def first_chars_of_contexts(texts: tf.Tensor, name: str) -> tf.Tensor:
    """Returns the first characters of long texts, string [batch]; too many texts are refused."""
    texts = first_chars(texts, MAX_CONTEXT_CHARS)
    number = tf.reduce_sum(tf.strings.length(texts, "UTF8_CHAR"))
    message = (
        f"{name} must be at most {MAX_CONTEXTS_CHARS:,} characters in all rows together (at most "
        f"{MAX_CONTEXT_CHARS:,} of each row count): send fewer rows"
    )
    check = tf.debugging.assert_less_equal(number, MAX_CONTEXTS_CHARS, message)
    with tf.control_dependencies([check]):
        return tf.identity(texts)


def are_words_read(words: tf.Tensor) -> tf.Tensor:
    """Returns which words of rows, string [batch, words], are among the first characters."""
    costs = tf.strings.length(words, "UTF8_CHAR")
    prepared = tf.reshape(num_prepared(tf.reshape(words, [-1])), tf.shape(words))
    costs = tf.maximum(costs, -(-prepared // MANY_OF_ONE_CHAR))
    return tf.cumsum(costs, axis=1) <= MAX_CONTEXT_CHARS


def find_errors(values: dict[str, tf.Tensor], limits: dict[str, int | tf.Tensor]) -> tf.Tensor:
    """Returns for each row an error for values out of range: string [rows], "" = no error.

    Values are integers [rows, columns], or [columns] for one row, from 0 to their limit - 1.
    """
    error: tf.Tensor | str = ""
    for name, limit in reversed(limits.items()):  # the first one stays
        is_bad = tf.reduce_any(
            (values[name] < 0) | (values[name] >= tf.cast(limit, values[name].dtype)), axis=-1
        )
        last = f"{limit - 1}" if isinstance(limit, int) else "seq_len - 1"
        error = tf.where(is_bad, f"{name} must be 0 to {last}", error)
    return error


def mark_bad_rows(outputs: dict[str, tf.Tensor], error: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns outputs [rows, ...] with NaN, -1 or "" in the bad rows, and `error`."""
    marked = {}
    for name, output in outputs.items():
        is_good = tf.reshape(tf.equal(error, ""), [-1] + [1] * (output.shape.rank - 1))
        marked[name] = tf.where(is_good, output, tf.constant(_BAD[output.dtype], output.dtype))
    return {**marked, "error": error}
