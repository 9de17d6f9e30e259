"""Building blocks of the layers: activations, dropout, layer normalization, Dense, config."""

import dataclasses
import math

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers import one_pass

# Package name under which classes are registered in Keras.
PACKAGE = "albert_tf"

LAYER_NORM_EPSILON = 1e-12


def gelu(x: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Gaussian error linear unit, tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    In training, XLA compiles gelu and its gradient to one pass over memory each, and only x is
    stored. Served models do not use XLA, but oneDNN fuses gelu into the preceding matmul.

    Source: the reference's modeling.gelu (for v1 and v2 models).
    """
    if training:
        return one_pass.gelu(x)
    # In an exported model, oneDNN fuses two of twelve equivalent formulations into the preceding
    # matmul, including this one but not tf.nn.gelu. If 0.5 * x were computed first, TFLite would
    # store a second matmul, which doubles the model's size. A bfloat16 matmul with fused gelu
    # computes gelu in float32. Unfused bfloat16 gelu is 0 below -3, because 1 + tanh rounds to 0.
    inner = x + (0.044715 * tf.square(x)) * x
    return ((1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * inner)) * x) * 0.5


def gelu_erf(x: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Gaussian error linear unit, exact form: 0.5 x (1 + erf(x / sqrt(2))).

    In training, XLA compiles it in the same way as `gelu`. Source: Hugging Face's "gelu".
    """
    return one_pass.gelu_erf(x) if training else tf.nn.gelu(x, approximate=False)


def relu(x: tf.Tensor, training: bool = False) -> tf.Tensor:  # noqa: ARG001  as gelu
    """Rectified linear unit."""
    return tf.nn.relu(x)


def activation(name: str):
    """Returns the activation function of (x, training) for a config's `hidden_act`."""
    return {"gelu": gelu, "gelu_erf": gelu_erf, "relu": relu}[name]


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None) -> tf.Tensor:
    """Sets elements to 0 with probability `rate` and scales up the others. No-op without a seed.

    `seed` comes from resolve_dropout_seed. The mask depends only on the seed, unlike in Keras'
    Dropout. So a resumed run, a recomputed block and any number of workers use the same mask.
    """
    if seed is None or rate == 0.0:
        return x
    return tf.nn.experimental.stateless_dropout(x, rate, seed)


def resolve_dropout_seed(training: bool | None, dropout_seed: tf.Tensor | None) -> tf.Tensor | None:
    """Returns the dropout seed of a layer, int32 [2], or None if dropout is disabled.

    If `training` is None, dropout is enabled if `dropout_seed` is given. Training without a seed
    draws a new one at each call. Raises a ValueError if `training` is a tensor.
    """
    if tf.is_tensor(training):
        raise ValueError("training is a tensor, expected True, False or None: trace one graph each")
    if training is None:
        return dropout_seed
    if not training:
        return None
    if dropout_seed is None:
        dropout_seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
    return dropout_seed


def seeds(seed: tf.Tensor | None, num: int) -> list[tf.Tensor | None]:
    """Splits a seed returned by resolve_dropout_seed into `num` independent seeds."""
    if seed is None:
        return [None] * num
    return [tf.random.experimental.stateless_fold_in(seed, i) for i in range(num)]


def initializer(stddev: float) -> tf.keras.initializers.Initializer:
    """Returns a new truncated normal initializer.

    Use one per variable: an unseeded Keras initializer used twice gives identical weights.
    """
    return tf.keras.initializers.TruncatedNormal(stddev=stddev)


def build_parts(width: int, *parts: tf.keras.layers.Layer) -> None:
    """Builds layers for inputs [..., width]. Variables get the same names as in a call."""
    for part in parts:
        if not part.built:  # a layer that blocks share is built once
            with tf.name_scope(part.name):
                part.build([None, width])


def _parts(layer: tf.keras.layers.Layer) -> list[tf.keras.layers.Layer]:
    return list(layer._flatten_layers(recursive=False, include_self=False))


def frozen_parts(layer: tf.keras.layers.Layer) -> list[str]:
    """Returns the paths of the outermost non-trainable layers, such as `encoder/embeddings`."""
    paths = []
    for part in _parts(layer):
        below = frozen_parts(part) if part.trainable else [""]
        paths += [f"{part.name}/{path}".rstrip("/") for path in below]
    return paths


def freeze(layer: tf.keras.layers.Layer, path: str) -> None:
    """Makes the layer at `path` non-trainable. Raises a ValueError if it does not exist."""
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
    """Mixin that builds and serializes layers and models created from an AlbertConfig.

    Attributes:
      further_arguments: names of further arguments of `__init__`, which are also attributes.
    """

    further_arguments: tuple[str, ...] = ()

    def __init__(self, config: AlbertConfig, **kwargs):
        if not isinstance(config, AlbertConfig):
            raise TypeError(
                f"config is a {type(config).__name__}, expected an AlbertConfig, such as "
                "AlbertConfig.named('albert_base') or AlbertConfig.read(path)"
            )
        super().__init__(**kwargs)
        self.config = config

    def build(self, input_shape):
        """Creates all variables, if all sublayers have inputs of width hidden_size."""
        build_parts(self.config.hidden_size, *_parts(self))
        tf.keras.layers.Layer.build(self, input_shape)

    def get_config(self) -> dict:
        """Returns JSON-serializable arguments of `__init__` and the paths of frozen layers."""
        values = {name: getattr(self, name) for name in self.further_arguments}
        # Use Layer.get_config, because Model.get_config returns neither name nor dtype.
        common = tf.keras.layers.Layer.get_config(self)
        values["frozen"] = frozen_parts(self)
        return {**common, "config": dataclasses.asdict(self.config), **values}

    @classmethod
    def from_config(cls, config: dict):
        """Creates a layer or model from its config, without weights."""
        arguments = {**config, "config": AlbertConfig(**config["config"])}
        frozen = arguments.pop("frozen", [])
        layer = cls(**arguments)
        for path in frozen:
            freeze(layer, path)
        return layer


@tf.keras.saving.register_keras_serializable(PACKAGE)
class LayerNorm(tf.keras.layers.Layer):
    """Layer normalization over the last axis with epsilon 1e-12, computed in float32.

    Input and output have the same floating dtype, even under mixed precision. The argument `dtype`
    is ignored. It exists because Keras passes it when it loads a model.

    Source: the reference's tf.contrib.layers.layer_norm.
    """

    def __init__(self, name: str = "layer_norm", trainable: bool = True, dtype=None):  # noqa: ARG002
        # autocast would cast the input to float32, but the output must have the input's dtype.
        super().__init__(name=name, trainable=trainable, dtype="float32", autocast=False)
        self.supports_masking = True

    def build(self, input_shape):
        """Creates gamma and beta, float32 [width]."""
        width = input_shape[-1]
        self.gamma = self.add_weight("gamma", [width], initializer="ones")
        self.beta = self.add_weight("beta", [width], initializer="zeros")
        super().build(input_shape)

    def call(self, x, residual=None, training=False):
        """Normalizes x [..., width], or x + residual.

        Uses XLA in training if `residual` is given. See one_pass.
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
        # Multiply by gamma before rsqrt. If gamma were the last factor, TFLite's converter would
        # fold it into each following kernel and store shared kernels twice.
        y = centered * self.gamma * tf.math.rsqrt(variance + LAYER_NORM_EPSILON) + self.beta
        return tf.cast(y, x.dtype)


@tf.keras.saving.register_keras_serializable(PACKAGE)
class Dense(tf.keras.layers.Dense):
    """Keras' Dense layer with a faster bias gradient in training."""

    def call(self, x, training=False):
        """Maps [..., width] to [..., units]."""
        if not training or self.bias is None:
            return super().call(x)
        y = tf.matmul(x, self.kernel) if x.shape.rank == 2 else tf.tensordot(x, self.kernel, 1)
        return self.activation(one_pass.add_bias(y, tf.convert_to_tensor(self.bias)))


def dense(units: int, stddev: float, name: str, activation=None, dtype=None) -> Dense:
    """Creates a Dense layer with ALBERT's initialization (bias 0). `dtype` may be a policy."""
    kernel_initializer = initializer(stddev)
    return Dense(units, activation, kernel_initializer=kernel_initializer, name=name, dtype=dtype)
