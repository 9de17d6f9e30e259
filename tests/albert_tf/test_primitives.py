import math

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers import one_pass
from albert_tf.layers.primitives import LAYER_NORM_EPSILON, Dense, LayerNorm, gelu, gelu_erf
from albert_tf.layers.transformer_block import FeedForward


def reference(x):
    x = np.asarray(x, np.float64)
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def exact_reference(x):
    return np.asarray(x, np.float64) * [0.5 * math.erfc(-v / math.sqrt(2.0)) for v in x]


@pytest.mark.parametrize(("gelu", "reference"), [(gelu, reference), (gelu_erf, exact_reference)])
@pytest.mark.parametrize("training", [False, True])
def test_gelu_and_its_gradient(training, gelu, reference):
    x = np.concatenate([np.linspace(-9, 9, 701), [-1e4, 0.0, 1e4]]).astype(np.float32)
    dy = np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        y = gelu(variable, training)
    np.testing.assert_allclose(y, reference(x), rtol=1e-5, atol=1e-6)
    step = 1e-5
    exact = x.astype(np.float64)
    slope = (reference(exact + step) - reference(exact - step)) / (2 * step)
    np.testing.assert_allclose(tape.gradient(y, variable, dy), dy * slope, rtol=1e-4, atol=1e-5)


def test_only_training_asks_for_xla():
    """TF Serving may be built without it."""
    config = AlbertConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4)
    layer = FeedForward(config)
    call = tf.function(layer)
    x = tf.ones([3, 16])

    def functions(seed):
        graph = call.get_concrete_function(x, seed).graph.as_graph_def()
        return [f.attr["_XlaMustCompile"].b for f in graph.library.function]

    assert not any(functions(None))
    assert any(functions(tf.constant([1, 2])))


# bfloat16 keeps 8 bits: the result is rounded once, and what the gradient keeps once more.
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.02}


def draw(shape, dtype, seed):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return tf.cast(tf.constant(values), dtype)


def assert_same(function, plain, inputs, dtype):
    """Compares values and gradients; `plain` computes in float64."""

    def values_and_gradients(call, arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            y = call(*arguments)
        dy = tf.cast(draw(y.shape, "float32", 9), dtype)
        return [y, *tape.gradient(y, arguments, tf.cast(dy, y.dtype))]

    actual = values_and_gradients(function, inputs)
    expected = values_and_gradients(plain, [tf.cast(x, tf.float64) for x in inputs])
    for a, b, like in zip(actual, expected, [inputs[0], *inputs]):
        assert a.dtype == like.dtype and a.shape == like.shape
        error = tf.reduce_max(tf.abs(tf.cast(a, tf.float64) - b))
        assert error <= TOLERANCES[dtype] * tf.maximum(1.0, tf.reduce_max(tf.abs(b)))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_layer_norm(dtype):
    def plain(x, residual, gamma, beta):
        mean, variance = tf.nn.moments(x + residual, -1, keepdims=True)
        return gamma * (x + residual - mean) / tf.sqrt(variance + LAYER_NORM_EPSILON) + beta

    layer = LayerNorm()
    layer.build([None, 24])

    def ours(x, residual, gamma, beta):
        return one_pass.layer_norm(x, residual, gamma, beta, LAYER_NORM_EPSILON)

    gamma, beta = 1.0 + draw([24], "float32", 1), draw([24], "float32", 2)
    x, residual = draw([3, 5, 24], dtype, 3), draw([3, 5, 24], dtype, 4)
    assert_same(ours, plain, [x, residual, gamma, beta], dtype)
    layer.set_weights([gamma, beta])
    expected = tf.cast(layer(x, residual), tf.float32)
    actual = tf.cast(layer(x, residual, training=True), tf.float32)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5 * TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_softmax(dtype):
    bias = tf.constant([[0.0] * 7, [0.0] * 4 + [-10000.0] * 3])[:, tf.newaxis, tf.newaxis]

    def plain(scores):
        return tf.nn.softmax(0.3 * scores + tf.cast(bias, tf.float64))

    def ours(scores):
        return one_pass.softmax(scores, 0.3, bias)

    scores = 4.0 * draw([2, 3, 5, 7], dtype, 5)
    assert_same(ours, plain, [scores], dtype)
    assert not np.any(tf.cast(ours(scores)[1, ..., 4:], tf.float32))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_add_bias(dtype):
    for shape in ([11, 6], [2, 5, 6]):
        inputs = [draw(shape, dtype, 6), draw([6], dtype, 7)]
        assert_same(one_pass.add_bias, lambda x, bias: x + bias, inputs, dtype)


def test_sum_of_bfloat16_rows_does_not_stop_growing():
    """Added up in bfloat16, ones end at 256: 256 + 1 is 256 there."""
    ones = tf.ones([4096, 2], tf.bfloat16)
    np.testing.assert_array_equal(one_pass.sum_rows(ones, tf.float32), [4096.0, 4096.0])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [[4, 6], [2, 3, 6]])
def test_dense_is_that_of_keras(shape, training):
    ours, keras = Dense(5, activation=tf.tanh), tf.keras.layers.Dense(5, activation=tf.tanh)
    x = draw(shape, "float32", 8)
    ours(x), keras(x)
    keras.set_weights([draw([6, 5], "float32", 1), draw([5], "float32", 2)])
    ours.set_weights(keras.get_weights())
    actual = ours(x, training=training)
    np.testing.assert_allclose(actual, keras(x), rtol=1e-6, atol=1e-6)
