"""The ALBERT encoder: embeddings, Transformer blocks that may share weights, and a pooler."""

import functools
from collections.abc import Mapping

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers.attention import SelfAttention, attention_bias
from albert_tf.layers.embeddings import FactorizedEmbedding
from albert_tf.layers.primitives import PACKAGE, FromConfig, dense, resolve_dropout_seed, seeds
from albert_tf.layers.recompute import apply_recomputed
from albert_tf.layers.transformer_block import FeedForward, TransformerBlock
from albert_tf.layers.unpadding import Unpadding
from albert_tf.storage.errors import UserError

_INPUTS = ("input_word_ids", "input_mask", "input_type_ids")


def sharing_plan(config: AlbertConfig) -> list[tuple[int, int]]:
    """Returns the indices of the attention and feed-forward layers that each block uses.

    Returns:
      List of num_hidden_layers * inner_group_num pairs (attention index, feed-forward index).

    Example: 4 layers that share "attention" give [(0, 0), (0, 1), (0, 2), (0, 3)].
    4 layers in 2 groups that share "all" give [(0, 0), (0, 0), (1, 1), (1, 1)].

    Source: the reference's transformer_model: layer i belongs to group i * groups // layers.
    """
    plan = []
    for layer in range(config.num_hidden_layers):
        group = layer * config.num_hidden_groups // config.num_hidden_layers
        for inner in range(config.inner_group_num):
            shared = group * config.inner_group_num + inner
            own = layer * config.inner_group_num + inner
            plan.append(
                (
                    shared if config.parameter_sharing in ("all", "attention") else own,
                    shared if config.parameter_sharing in ("all", "ffn") else own,
                )
            )
    return plan


def cls_only_positions(input_word_ids: tf.Tensor) -> tf.Tensor:
    """Returns empty `positions`, int32 [b, 0], so that the last block computes [CLS] only."""
    return tf.zeros([tf.shape(input_word_ids)[0], 0], tf.int32)


def complete_inputs(inputs) -> dict[str, tf.Tensor]:
    """Casts the encoder's inputs to int32 and adds default values for missing inputs.

    Any integer dtype or bool is accepted. `input_mask` defaults to ones (no padding) and
    `input_type_ids` to zeros (a single text). A single tensor is used as `input_word_ids`.
    """
    inputs = as_dict(inputs)
    if "input_word_ids" not in inputs:
        raise UserError(f"inputs lack input_word_ids, they have {', '.join(inputs) or 'nothing'}")
    shape = inputs["input_word_ids"].shape
    if shape.rank not in (None, 2):
        raise UserError(f"input_word_ids has shape {shape}, expected (batch, pieces)")
    inputs.setdefault("input_mask", tf.ones_like(inputs["input_word_ids"]))
    inputs.setdefault("input_type_ids", tf.zeros_like(inputs["input_word_ids"]))
    for name in _INPUTS:
        value = inputs[name]
        if not (value.dtype.is_integer or value.dtype.is_bool):
            # Under mixed_bfloat16, Keras rounds float inputs before the call: 257 becomes 256.
            raise UserError(f"{name} is of {value.dtype.name}, expected integers such as int32")
        if not shape.is_compatible_with(value.shape):
            raise UserError(f"{name} has shape {value.shape}, but input_word_ids has {shape}")
        inputs[name] = tf.cast(value, tf.int32)
    return inputs


def as_dict(inputs) -> dict[str, tf.Tensor]:
    """Copies a model's inputs to a new dict. A single tensor becomes `input_word_ids`."""
    refuse_keras_3(inputs)
    inputs = {"input_word_ids": inputs} if tf.is_tensor(inputs) else inputs
    if not isinstance(inputs, Mapping):
        kind = type(inputs).__name__
        raise UserError(f"inputs are a {kind}, expected a dict of tensors or input_word_ids alone")
    for name in filter(inputs.__contains__, _INPUTS):
        value = inputs[name]
        if not tf.is_tensor(value) or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
            kind = type(value).__name__
            raise UserError(f"{name} is a {kind}, expected a tensor (batch, pieces)")
    return dict(inputs)


# The package of tf.keras: with TensorFlow 2.15 "keras", with later versions "tf_keras". There the
# package "keras" is Keras 3, whose objects have the names of Keras 2, but other methods.
PACKAGE_OF_KERAS_2 = tf.keras.layers.Layer.__module__.split(".")[0]


def refuse_keras_3(*values) -> None:
    """Raises a UserError if one of the values, or a value nested in them, belongs to Keras 3."""
    if PACKAGE_OF_KERAS_2 == "keras":
        return
    for value in tf.nest.flatten(values):
        if any(base.__module__.split(".")[0] == "keras" for base in type(value).__mro__):
            raise UserError(
                f"{type(value).__name__} is of Keras 3, but albert_tf needs Keras 2: use tf.keras; "
                "never import keras"
            )


class RefusesKerasMask:
    """Base class of layers and models that use `input_mask` and reject Keras masks."""

    name: str

    def compute_mask(self, inputs, mask=None):  # noqa: ARG002  Keras passes both
        """Raises a UserError if the inputs have a Keras mask. Outputs have no Keras mask."""
        if any(part is not None for part in tf.nest.flatten(mask)):
            raise UserError(
                f"the inputs of {self.name} have a Keras mask (of a Masking layer, say), which is "
                "not read: remove that layer and give input_mask, 1 = real"
            )


@tf.keras.saving.register_keras_serializable(PACKAGE)
class AlbertEncoder(RefusesKerasMask, FromConfig, tf.keras.layers.Layer):
    """The ALBERT encoder with its pooler.

    Args:
      config: the encoder's hyperparameters.
      recompute: If True, training stores only the input of each block and recomputes the block in
        the backward pass. This saves memory, but a step takes a third longer.

    Do not use Keras' `fit` on the output dict. It contains a list, so Keras would assign losses to
    wrong outputs. Select one output: `tf.keras.Model(ids, encoder(ids)["pooled_output"])`.

    Source: Lan et al. 2020, section 3; the reference's modeling.AlbertModel.
    """

    further_arguments = ("recompute",)

    def __init__(
        self, config: AlbertConfig, recompute: bool = False, name: str = "encoder", **kwargs
    ):
        super().__init__(config, name=name, **kwargs)
        self.recompute = recompute
        policy = self.dtype_policy
        self.embeddings = FactorizedEmbedding(config, dtype=policy)
        self.plan = sharing_plan(config)
        attentions = [
            SelfAttention(config, name=f"attention_{i}", dtype=policy)
            for i in range(1 + max(attention for attention, _ in self.plan))
        ]
        feed_forwards = [
            FeedForward(config, name=f"feed_forward_{i}", dtype=policy)
            for i in range(1 + max(feed_forward for _, feed_forward in self.plan))
        ]
        # One block per distinct pair in the plan: a single block if all layers share all weights.
        self.blocks: dict[str, tf.keras.layers.Layer] = {
            f"{a}_{f}": TransformerBlock(
                attentions[a], feed_forwards[f], name=f"block_{a}_{f}", dtype=policy
            )
            for a, f in sorted(set(self.plan))
        }
        stddev = config.initializer_range
        self.pooler = dense(config.hidden_size, stddev, "pooler", tf.tanh, dtype=policy)

    def call(self, inputs, dropout_seed=None, positions=None, training=None, unpad=False):
        """Encodes a batch.

        Args:
          inputs: dict of int32 [b, L]: `input_word_ids`, `input_mask` (1 = real) and
            `input_type_ids`. L is at most max_position_embeddings. For defaults see
            complete_inputs. Values are not checked inside a tf.function, and thus not in Keras'
            fit, evaluate and predict: a type id outside the type table adds a zero vector, as in
            the reference.
          dropout_seed: int32 [2], seed of the dropout masks. If given, `training` defaults to True.
          positions: int32 [b, P]. The last block computes queries, feed-forward and output only at
            these positions and [CLS], and keys and values at all positions. Default: all positions.
          training: bool. Training without `dropout_seed` draws a new seed at each call. A tensor is
            refused.
          unpad: If True, the blocks skip padding except in attention (see Unpadding). This is
            faster on CPUs. Inner shapes depend on the mask, which XLA and TPUs do not support.

        Returns:
          dict with `sequence_output` [b, L, H] (with `positions`: [b, P, H]) and `pooled_output`
          [b, H]. Without `positions` it also contains `hidden_states`, a list of [b, L, H]: the
          input of the first block, then the output of each block.

        Raises a UserError for wrong shapes and dtypes and, outside a tf.function, wrong values.
        """
        inputs = complete_inputs(inputs)
        self._check(inputs)
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        if positions is not None:
            positions = tf.pad(positions, [[0, 0], [1, 0]])  # [CLS] is at 0
        unpadding = Unpadding(inputs["input_mask"]) if unpad else None
        states = self._states(inputs, dropout_seed, positions, unpadding)
        if unpadding and positions is None:
            states = [unpadding.add(state) for state in states]

        def by_example(state, length):
            return tf.reshape(state, [-1, length, self.config.hidden_size])

        if positions is not None:
            output = by_example(states[-1], positions.shape[1] or tf.shape(positions)[1])
            return {"sequence_output": output[:, 1:], "pooled_output": self.pooler(output[:, 0])}
        seq_len = inputs["input_word_ids"].shape[1] or tf.shape(inputs["input_word_ids"])[1]
        hidden_states = [by_example(state, seq_len) for state in states]
        return {
            "sequence_output": hidden_states[-1],
            "pooled_output": self.pooler(hidden_states[-1][:, 0]),
            "hidden_states": hidden_states,
        }

    def _check(self, inputs: dict[str, tf.Tensor]) -> None:
        """Raises a UserError for a position or an id without a row, or a mask other than 0 or 1."""
        config, seq_len = self.config, inputs["input_word_ids"].shape[1]
        if seq_len is not None and seq_len > config.max_position_embeddings:
            raise UserError(
                f"sequences of {seq_len} pieces, but the position table has "
                f"{config.max_position_embeddings} rows: shorten them, or train with a larger "
                "max_position_embeddings"
            )
        if not tf.executing_eagerly():  # the values are not known yet
            return
        limits = {
            "input_word_ids": config.vocab_size,
            "input_mask": 2,
            "input_type_ids": config.type_vocab_size,
        }
        for name, limit in limits.items():
            values = inputs[name]
            wrong = values[(values < 0) | (values >= limit)].numpy()
            if len(wrong):
                raise UserError(f"{name} has the value {wrong[0]}, expected 0 to {limit - 1}")

    def _states(self, inputs, dropout_seed, positions, unpadding) -> list[tf.Tensor]:
        """Returns the first block's input and every block's output, [b * L, H], or unpadded [n, H].

        With `positions`, five sixths of the last block's weight matmuls run at these positions
        only: the masked positions and [CLS] in pre-training, [CLS] in classification.
        """
        bias = attention_bias(inputs["input_mask"])
        embedding_seed, *block_seeds = seeds(dropout_seed, 1 + len(self.plan))
        _, x = self.embeddings(inputs, embedding_seed)
        x = unpadding.remove(x) if unpadding else x
        blocks = [
            functools.partial(
                self.blocks[f"{attention}_{feed_forward}"],
                bias=bias,
                dropout_seed=seed,
                unpadding=unpadding,
            )
            for (attention, feed_forward), seed in zip(self.plan, block_seeds)
        ]
        blocks[-1] = functools.partial(blocks[-1], positions=positions)
        states = [x]
        if self.recompute:
            # Recomputing the last block saves no memory, because the backward pass needs it first.
            states += apply_recomputed(blocks[:-1], x)
            blocks = blocks[-1:]
        for block in blocks:
            states.append(block(states[-1]))
        return states
