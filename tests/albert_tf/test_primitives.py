"""Activations: the formula, and the one that training compiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers.feed_forward import FeedForward
from albert_tf.layers.primitives import gelu, gelu_erf


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


@pytest.mark.parametrize("training", [False, True])
def test_gelu_keeps_bfloat16(training):
    x = tf.cast(tf.linspace(-4.0, 4.0, 37), tf.bfloat16)
    y = gelu(x, training)
    assert y.dtype == tf.bfloat16
    expected = reference(tf.cast(x, tf.float32))
    # In inference 1 + tanh is 0 below -3, unless it is a part of the product before it.
    atol = 1e-4 if training else 0.007
    np.testing.assert_allclose(tf.cast(y, tf.float32), expected, rtol=0.06, atol=atol)


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
