"""Functions for training that XLA compiles to a single pass over memory each.

Inputs and outputs have the dtype of x, and the computation uses float32. In bfloat16, these
functions are more accurate than TensorFlow's ops. They are also faster on CPUs, where TensorFlow's
bfloat16 ops are slow. Only training uses XLA, because a server may be built without it. Matmuls and
the softmax itself use oneDNN, which is faster than XLA on CPUs.
"""

import math

import tensorflow as tf

# gelu(x) = x * sigmoid(2 z), where z = sqrt(2 / pi) (x + 0.044715 x^3), because
# 0.5 (1 + tanh(z)) = sigmoid(2 z). These constants are the coefficients of x and x^3 in 2 z.
_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def _gate(x):
    return tf.sigmoid(x * (_LINEAR + _CUBIC * tf.square(x)))


@tf.function(autograph=False, jit_compile=True)
def _gelu(x):
    y = tf.cast(x, tf.float32)
    return tf.cast(y * _gate(y), x.dtype)


@tf.function(autograph=False, jit_compile=True)
def _gelu_gradient(x, dy):
    dtype, x, dy = x.dtype, tf.cast(x, tf.float32), tf.cast(dy, tf.float32)
    gate = _gate(x)
    slope = _LINEAR + (3.0 * _CUBIC) * tf.square(x)
    return tf.cast(dy * gate * (1.0 + x * (1.0 - gate) * slope), dtype)


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tf.Tensor:
    """Same as primitives.gelu, but stores only x for the gradient."""
    return _gelu(x), lambda dy: _gelu_gradient(x, dy)


def _below(x):
    # erfc instead of 1 + erf, because XLA's erf is not exactly -1 for large negative x.
    return 0.5 * tf.math.erfc(x * -math.sqrt(0.5))


@tf.function(autograph=False, jit_compile=True)
def _gelu_erf(x):
    y = tf.cast(x, tf.float32)
    return tf.cast(y * _below(y), x.dtype)


@tf.function(autograph=False, jit_compile=True)
def _gelu_erf_gradient(x, dy):
    dtype, x, dy = x.dtype, tf.cast(x, tf.float32), tf.cast(dy, tf.float32)
    density = tf.exp(-0.5 * tf.square(x)) / math.sqrt(2.0 * math.pi)
    return tf.cast(dy * (_below(x) + x * density), dtype)


@tf.custom_gradient
def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """Same as primitives.gelu_erf, but stores only x for the gradient."""
    return _gelu_erf(x), lambda dy: _gelu_erf_gradient(x, dy)


@tf.function(autograph=False, jit_compile=True)
def _layer_norm(x, residual, gamma, beta, epsilon):
    y = tf.cast(x, tf.float32) + tf.cast(residual, tf.float32)
    y -= tf.reduce_mean(y, axis=-1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(y), axis=-1, keepdims=True) + epsilon)
    y *= scale
    return tf.cast(y * gamma + beta, x.dtype), tf.cast(y, x.dtype), scale


@tf.function(autograph=False, jit_compile=True)
def _layer_norm_gradient(normal, scale, gamma, dy):
    dtype, normal, dy = dy.dtype, tf.cast(normal, tf.float32), tf.cast(dy, tf.float32)
    dnormal = dy * gamma
    dx = dnormal - tf.reduce_mean(dnormal, axis=-1, keepdims=True)
    dx -= normal * tf.reduce_mean(dnormal * normal, axis=-1, keepdims=True)
    return tf.cast(scale * dx, dtype), tf.cast(dy * normal, dtype)


@tf.custom_gradient
def layer_norm(x, residual, gamma, beta, epsilon):
    """Normalizes x + residual over the last axis. `gamma` and `beta` are float32 [width]."""
    y, normal, scale = _layer_norm(x, residual, gamma, beta, epsilon)

    def gradient(dy):
        dx, dgamma = _layer_norm_gradient(normal, scale, gamma, dy)
        # x and residual have the same gradient, because they are added.
        return dx, dx, sum_rows(dgamma, tf.float32), sum_rows(dy, tf.float32), None

    return y, gradient


@tf.function(autograph=False, jit_compile=True)
def _scaled(scores, scale, bias):
    return tf.cast(scores, tf.float32) * scale + bias


@tf.function(autograph=False, jit_compile=True)
def _softmax_gradient(probs, dprobs, scale):
    dtype, probs, dprobs = probs.dtype, tf.cast(probs, tf.float32), tf.cast(dprobs, tf.float32)
    sums = tf.reduce_sum(probs * dprobs, axis=-1, keepdims=True)
    return tf.cast(probs * (dprobs - sums) * scale, dtype)


@tf.custom_gradient
def softmax(scores, scale, bias):
    """Returns softmax(scores * scale + bias) over the last axis. float32 `bias` has no gradient."""
    # Restore the shape. Grappler cannot infer it through an XLA-compiled op and would warn.
    scaled = tf.reshape(_scaled(scores, scale, bias), tf.shape(scores))
    # On CPUs, XLA's softmax is slower than TensorFlow's.
    probs = tf.cast(tf.nn.softmax(scaled), scores.dtype)
    return probs, lambda dprobs: (_softmax_gradient(probs, dprobs, scale), None, None)


@tf.custom_gradient
def add_bias(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Adds `bias` [width] to x [..., width]. The bias gradient is computed by a matmul."""
    return tf.nn.bias_add(x, bias), lambda dy: (dy, sum_rows(dy, bias.dtype))


def sum_rows(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Sums x [..., width] over all axes except the last. Returns [width] in `dtype`.

    A matmul with ones is three times as fast as a reduction. oneDNN accumulates bfloat16 values in
    float32.
    """
    x = tf.reshape(x, [-1, x.shape[-1]])
    if x.dtype == tf.float16:  # a sum could exceed 65,504, the largest float16
        x = tf.cast(x, tf.float32)
    return tf.cast(tf.matmul(tf.ones([1, tf.shape(x)[0]], x.dtype), x)[0], dtype)
