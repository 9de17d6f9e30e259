"""Validates requests in the graph. Invalid shapes and sizes fail the whole request."""

import tensorflow as tf

from albert_tf.text.limits import MANY_OF_ONE_CHAR, first_chars, num_prepared
from .signatures import Signature

MAX_CONTEXT_CHARS = 100_000  # in a context, because each window has to be computed
# In all contexts of a request. Alignment needs about 200 bytes per character.
MAX_CONTEXTS_CHARS = 32 * MAX_CONTEXT_CHARS
MAX_ROWS = 2048  # in a request, because even short rows have to be computed
# Values in all outputs of a request together (32 MB of float32). To send a value over REST,
# TensorFlow Serving 2.15.1 needs 75 bytes at its peak (seen). `mem_limit` in serving/compose.yaml
# and deployment.yaml derives from both numbers.
MAX_OUTPUT_VALUES = 2**23
# Maximum sizes of dimensions that depend on the request. Words are limited like characters.
_LARGEST: dict[int | str, int] = {"batch": MAX_ROWS, "words": MAX_CONTEXT_CHARS}


def check_shapes(
    inputs: dict[str, tf.Tensor], signature: Signature, sizes: dict[str, int]
) -> dict[str, tf.Tensor]:
    """Returns the inputs with assertions that fail the request if ranks or sizes are invalid.

    These include the number of rows and the size of the output. Dimensions with the same name must
    have the same size. `sizes` has the dimensions fixed by the model.
    """
    known: dict[int | str, tuple] = {
        name: (size, f"{size} as in the model") for name, size in sizes.items()
    }
    checks = []
    for name, field in signature.inputs.items():
        dimensions = f"{name} must be [{', '.join(map(str, field.shape))}]"
        # Loaded signatures accept tensors of any rank, but TensorFlow trusts the declared rank and
        # would optimize the assertion away. Gathering all sizes hides the rank; unstack shows it.
        shape = tf.shape(inputs[name])
        shape = tf.gather(shape, tf.where(shape >= 0)[:, 0])
        check = tf.debugging.assert_equal(tf.size(shape), len(field.shape), dimensions)
        with tf.control_dependencies([check]):
            shape = [shape[i] for i in range(len(field.shape))]
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
    checks.append(_check_outputs(signature, {name: size for name, (size, _) in known.items()}))
    with tf.control_dependencies(checks):
        return {name: tf.identity(inputs[name]) for name in signature.inputs}


def _check_outputs(signature: Signature, sizes: dict[int | str, tf.Tensor]) -> tf.Operation:
    total = tf.constant(0, tf.int64)
    for field in signature.outputs.values():
        number = tf.constant(1, tf.int64)
        for dimension in field.shape:
            # Clip after each multiplication, because the product may overflow int64.
            size = tf.cast(sizes.get(dimension, dimension), tf.int64)
            number = tf.minimum(number * size, MAX_OUTPUT_VALUES + 1)
        total += number
    outputs = (f"{name} [{', '.join(map(str, f.shape))}]" for name, f in signature.outputs.items())
    message = (
        f"{', '.join(outputs)} must have at most {MAX_OUTPUT_VALUES:,} values in all rows "
        "together: send fewer rows or positions in a request"
    )
    # As int32, because TensorFlow adds two functions to the graph to print an int64.
    return tf.debugging.assert_less_equal(tf.cast(total, tf.int32), MAX_OUTPUT_VALUES, message)


def first_chars_of_contexts(texts: tf.Tensor, name: str) -> tf.Tensor:
    """Truncates texts, string [batch]; fails the request if their total length is too large."""
    texts = first_chars(texts, MAX_CONTEXT_CHARS)
    lengths = tf.strings.length(texts, "UTF8_CHAR")
    return check_total(texts, f"characters of {name}", lengths, MAX_CONTEXTS_CHARS)


def check_total(texts: tf.Tensor, name: str, lengths: tf.Tensor, most: int) -> tf.Tensor:
    """Returns texts, string [batch]; fails the request if the sum of lengths is above `most`."""
    total = tf.reduce_sum(tf.cast(lengths, tf.int64))
    message = f"{name} must be at most {most:,} in all rows together: send fewer rows"
    check = tf.debugging.assert_less_equal(total, tf.constant(most, tf.int64), message)
    with tf.control_dependencies([check]):
        return tf.identity(texts)


def are_words_read(words: tf.Tensor) -> tf.Tensor:
    """Returns a mask of words, string [batch, words], in the first MAX_CONTEXT_CHARS of a row."""
    # As in limits.first_chars, NFKD may increase the length by a factor of MANY_OF_ONE_CHAR.
    costs = tf.strings.length(words, "UTF8_CHAR")
    prepared = tf.reshape(num_prepared(tf.reshape(words, [-1])), tf.shape(words))
    costs = tf.maximum(costs, -(-prepared // MANY_OF_ONE_CHAR))
    return tf.cumsum(costs, axis=1) <= MAX_CONTEXT_CHARS
