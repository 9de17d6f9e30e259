"""What the layers are made of: activations, dropout, layer normalization, Dense, their config."""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers import one_pass

# Keras finds classes of this package under this name when it loads a model.
PACKAGE = "albert_tf"

LAYER_NORM_EPSILON = 1e-12


def gelu(x: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Gaussian error linear unit, tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    In training XLA makes one pass of it, and one of its gradient, which keeps nothing but x. A
    model that is served stays free of XLA: there TensorFlow's optimizer, with oneDNN, makes it a
    part of the product of matrices before it.

    Source: the reference's modeling.gelu (v1 and v2 models alike).
    """
    if training:
        return one_pass.gelu(x)
    # oneDNN fuses gelu into the preceding matmul for one graph pattern only, and Grappler's earlier
    # rewrites often destroy that pattern. In an exported model tf.nn.gelu is not recognised. Of
    # twelve equivalent formulations two are; this is one of these. With 0.5 * x TFLite would store
    # a second product of matrices, and the model would be twice as large. Fused into a bfloat16
    # product gelu is computed in float32. Alone in bfloat16 it is 0 below -3, as 1 + tanh is.
    # Without oneDNN this form takes nine passes, x * sigmoid(...) of training takes six.
    inner = x + (0.044715 * tf.square(x)) * x
    return ((1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * inner)) * x) * 0.5


def gelu_erf(x: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Gaussian error linear unit, exact form: 0.5 x (1 + erf(x / sqrt(2))).

    Source: Hugging Face's "gelu". In training XLA makes one pass of it, as of `gelu`.
    """
    return one_pass.gelu_erf(x) if training else tf.nn.gelu(x, approximate=False)


def relu(x: tf.Tensor, training: bool = False) -> tf.Tensor:  # noqa: ARG001  as gelu
    """Rectified linear unit."""
    return tf.nn.relu(x)


def activation(name: str):
    """Returns the function that a config's `hidden_act` names: (x, training) -> x."""
    return {"gelu": gelu, "gelu_erf": gelu_erf, "relu": relu}[name]


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None) -> tf.Tensor:
    """Drops elements with probability `rate`, scaling up the rest; does nothing without a seed.

    The mask is a pure function of the seed: a resumed run, a re-computed block and any number of
    workers draw the same one. Keras' Dropout has a hidden state instead. The seed is one of
    resolve_dropout_seed.
    """
    if seed is None or rate == 0.0:
        return x
    if _has_switch(seed):
        seed, is_training = seed[:2], seed[2]
        rate = tf.cast(rate, x.dtype) * tf.cast(is_training, x.dtype)  # at 0, x comes back as is
    return tf.nn.experimental.stateless_dropout(x, rate, seed)


def resolve_dropout_seed(training: bool | tf.Tensor | None, dropout_seed: tf.Tensor | None):
    """Returns the seed of a layer's dropout, int32 [2], or None for no dropout.

    If `training` is a tensor of a graph, the seed is int32 [3]: the last number is 1 to drop and 0
    to drop nothing. The graph then computes as in training; without dropout the result is the same
    up to rounding. Where `training` is None, it is training if there is a seed. Without a seed,
    training draws a new one at every call.
    """
    in_graph = tf.is_tensor(training) and not hasattr(training, "numpy")
    if training is None or (in_graph and dropout_seed is not None and _has_switch(dropout_seed)):
        return dropout_seed
    if not in_graph and not training:
        return None
    if dropout_seed is None:
        dropout_seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
    if in_graph:
        return tf.concat([dropout_seed, [tf.cast(training, tf.int32)]], axis=0)
    return dropout_seed


def _has_switch(seed) -> bool:
    return tf.convert_to_tensor(seed).shape[0] == 3


def seeds(seed: tf.Tensor | None, num: int) -> list[tf.Tensor | None]:
    """Splits a seed of resolve_dropout_seed into `num` independent ones."""
    if seed is None:
        return [None] * num
    parts = [tf.random.experimental.stateless_fold_in(seed[:2], i) for i in range(num)]
    return [tf.concat([part, seed[2:]], axis=0) for part in parts] if _has_switch(seed) else parts


def initializer(stddev: float) -> tf.keras.initializers.Initializer:
    """Returns a new truncated normal initializer.

    One object per variable: an unseeded Keras initializer used twice gives identical weights.
    """
    return tf.keras.initializers.TruncatedNormal(stddev=stddev)


def build_parts(width: int, *parts: tf.keras.layers.Layer) -> None:
    """Creates the variables of parts that map [..., width], by the names that a call gives them."""
    for part in parts:
        if not part.built:  # blocks share their halves
            with tf.name_scope(part.name):
                part.build([None, width])


def _parts(layer: tf.keras.layers.Layer) -> list[tf.keras.layers.Layer]:
    return list(layer._flatten_layers(recursive=False, include_self=False))


def frozen_parts(layer: tf.keras.layers.Layer) -> list[str]:
    """Returns the paths of the highest parts that are not trainable, as `encoder/embeddings`."""
    paths = []
    for part in _parts(layer):
        below = frozen_parts(part) if part.trainable else [""]
        paths += [f"{part.name}/{path}".rstrip("/") for path in below]
    return paths


def freeze(layer: tf.keras.layers.Layer, path: str) -> None:
    """Makes the part of this path untrainable; a ValueError if Keras gave it another number."""
    name, _, below = path.partition("/")
    parts = [part for part in _parts(layer) if part.name == name]
    if not parts:
        raise ValueError(f"{layer.name} has no part {name!r}, which was frozen: name the layer")
    for part in parts:
        if below:
            freeze(part, below)
        else:
            part.trainable = False


class FromConfig:
    """Layers and models whose first argument is an AlbertConfig: how Keras builds and stores them.

    Attributes:
      config: the AlbertConfig.
      further_arguments: names of other arguments of __init__ that are attributes, too.
    """

    further_arguments: tuple[str, ...] = ()

    def __init__(self, config: AlbertConfig, **kwargs):
        super().__init__(**kwargs)
        self.config = config

    def build(self, input_shape):
        """Creates every variable, for layers whose parts all map the hidden size."""
        build_parts(self.config.hidden_size, *_parts(self))
        tf.keras.layers.Layer.build(self, input_shape)

    def get_config(self) -> dict:
        """Returns the arguments of __init__ as values that JSON can hold, and the frozen parts."""
        values = {name: getattr(self, name) for name in self.further_arguments}
        # Layer's own: a Model's get_config returns no name and no dtype.
        common = tf.keras.layers.Layer.get_config(self)
        values["frozen"] = frozen_parts(self)
        return {**common, "config": dataclasses.asdict(self.config), **values}

    @classmethod
    def from_config(cls, config: dict):
        """Returns a new layer or model, without weights."""
        arguments = {**config, "config": AlbertConfig(**config["config"])}
        frozen = arguments.pop("frozen", [])
        layer = cls(**arguments)
        for path in frozen:
            freeze(layer, path)
        return layer


@tf.keras.saving.register_keras_serializable(PACKAGE)
class LayerNorm(tf.keras.layers.Layer):
    """Layer normalization over the last axis, epsilon 1e-12, computed in float32.

    Takes and returns any floating dtype; under mixed precision the statistics stay in float32.

    Args:
      name: of the layer.
      trainable: whether gamma and beta are.
      dtype: ignored, as the layer computes in float32; Keras gives one when it loads a model.

    Source: the reference's tf.contrib.layers.layer_norm.
    """

    def __init__(self, name: str = "layer_norm", trainable: bool = True, dtype=None):  # noqa: ARG002
        # autocast would turn the input into float32 for good; the output shall have its dtype.
        super().__init__(name=name, trainable=trainable, dtype="float32", autocast=False)
        self.supports_masking = True

    def build(self, input_shape):
        """Creates gamma and beta, float32 [width]."""
        width = input_shape[-1]
        self.gamma = self.add_weight("gamma", [width], initializer="ones")
        self.beta = self.add_weight("beta", [width], initializer="zeros")
        super().build(input_shape)

    def call(self, x, residual=None, training=False):
        """Normalizes x, or x + residual: [..., width].

        Args:
          x: what a sublayer computed.
          residual: what entered it; None: nothing is added.
          training: whether XLA compiles it (see one_pass), with a residual.
        """
        if residual is not None and training:
            gamma, beta = tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
            return one_pass.layer_norm(x, residual, gamma, beta, LAYER_NORM_EPSILON)
        if residual is not None:
            x = residual + x
        y = tf.cast(x, tf.float32)
        mean = tf.reduce_mean(y, axis=-1, keepdims=True)
        centered = y - mean
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        # In this order: a gamma that comes last is folded by TFLite's converter into each kernel
        # after it, so that shared kernels are stored twice.
        y = centered * self.gamma * tf.math.rsqrt(variance + LAYER_NORM_EPSILON) + self.beta
        return tf.cast(y, x.dtype)


@tf.keras.saving.register_keras_serializable(PACKAGE)
class Dense(tf.keras.layers.Dense):
    """Keras' Dense layer, which in training has a fast gradient of the bias."""

    def call(self, x, training=False):
        """Maps [..., width] to [..., units]."""
        if not training or self.bias is None:
            return super().call(x)
        y = tf.matmul(x, self.kernel) if x.shape.rank == 2 else tf.tensordot(x, self.kernel, 1)
        return self.activation(one_pass.add_bias(y, tf.convert_to_tensor(self.bias)))


def dense(units: int, stddev: float, name: str, activation=None, dtype=None) -> Dense:
    """Returns a Dense layer with ALBERT's initialization (bias 0); `dtype` may be a policy."""
    kernel_initializer = initializer(stddev)
    return Dense(units, activation, kernel_initializer=kernel_initializer, name=name, dtype=dtype)
