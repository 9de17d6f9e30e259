"""AlbertEncoder: embeddings, then TransformerBlocks that may share weights, then the pooler."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.layers.attention import SelfAttention, attention_bias
from albert_tf.layers.embeddings import FactorizedEmbedding
from albert_tf.layers.feed_forward import FeedForward
from albert_tf.layers.primitives import PACKAGE, FromConfig, dense, resolve_dropout_seed, seeds
from albert_tf.layers.recompute import apply_recomputed
from albert_tf.layers.transformer_block import TransformerBlock
from albert_tf.layers.unpadding import Unpadding
from albert_tf.storage.errors import UserError


def sharing_plan(config: AlbertConfig) -> list[tuple[int, int]]:
    """Returns which attention weights and which feed-forward weights each applied block uses.

    Returns:
      num_hidden_layers * inner_group_num pairs (attention index, feed-forward index).

    Example: 4 layers, sharing "attention" -> [(0, 0), (0, 1), (0, 2), (0, 3)];
    4 layers in 2 groups, sharing "all" -> [(0, 0), (0, 0), (1, 1), (1, 1)].

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
    """Returns empty `positions`, int32 [b, 0]: the last block then computes [CLS] only."""
    return tf.zeros([tf.shape(input_word_ids)[0], 0], tf.int32)


def complete_inputs(inputs) -> dict[str, tf.Tensor]:
    """Returns the encoder's input dict, with int32 values and defaults for missing inputs.

    Inputs may have any integer dtype, or bool. `input_mask` defaults to 1 (all real) and
    `input_type_ids` to 0 (one text). A single tensor is used as `input_word_ids`.
    """
    inputs = as_dict(inputs)
    if "input_word_ids" not in inputs:
        raise UserError(f"inputs lack input_word_ids, they have {', '.join(inputs) or 'nothing'}")
    shape = inputs["input_word_ids"].shape
    if shape.rank not in (None, 2):
        raise UserError(f"input_word_ids has shape {shape}, expected (batch, pieces)")
    inputs.setdefault("input_mask", tf.ones_like(inputs["input_word_ids"]))
    inputs.setdefault("input_type_ids", tf.zeros_like(inputs["input_word_ids"]))
    for name in ("input_word_ids", "input_mask", "input_type_ids"):
        value = inputs[name]
        if not (value.dtype.is_integer or value.dtype.is_bool):
            # Under mixed_bfloat16 Keras rounds float inputs before the call: 257 becomes 256.
            raise UserError(f"{name} is of {value.dtype.name}, expected integers such as int32")
        if not shape.is_compatible_with(value.shape):
            raise UserError(f"{name} has shape {value.shape}, but input_word_ids has {shape}")
        inputs[name] = tf.cast(value, tf.int32)
    return inputs


def as_dict(inputs) -> dict[str, tf.Tensor]:
    """Returns a model's inputs as a new dict; a single tensor becomes `input_word_ids`."""
    if tf.is_tensor(inputs):
        return {"input_word_ids": inputs}
    if not isinstance(inputs, Mapping):
        kind = type(inputs).__name__
        raise UserError(f"inputs are a {kind}, expected a dict of tensors or input_word_ids alone")
    return dict(inputs)


class RefusesKerasMask:
    """Base of layers and models that use `input_mask` and refuse Keras' own masks."""

    name: str

    def compute_mask(self, inputs, mask=None):  # noqa: ARG002  Keras passes both
        """Refuses inputs with a Keras mask; returns None, because outputs have no Keras mask."""
        if any(part is not None for part in tf.nest.flatten(mask)):
            raise UserError(
                f"the inputs of {self.name} have a Keras mask (of a Masking layer, say), which is "
                "not read: remove that layer and give input_mask, 1 = real"
            )


@tf.keras.saving.register_keras_serializable(PACKAGE)
class AlbertEncoder(RefusesKerasMask, FromConfig, tf.keras.layers.Layer):
    """The encoder and its pooler.

    Args:
      config: the encoder's shape.
      recompute: whether training stores only each block's input and recomputes the block for the
        gradient. This saves memory, but a step takes a third longer.

    Do not call Keras' `fit` on the encoder: its output dict contains a list, so Keras would assign
    losses to the wrong outputs. Select one: tf.keras.Model(ids, encoder(ids)["pooled_output"]).

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
        # One block per distinct pair of halves: if all layers share all weights, a single block.
        self.blocks: dict[str, tf.keras.layers.Layer] = {
            f"{a}_{f}": TransformerBlock(
                attentions[a], feed_forwards[f], name=f"block_{a}_{f}", dtype=policy
            )
            for a, f in sorted(set(self.plan))
        }
        stddev = config.initializer_range
        self.pooler = dense(config.hidden_size, stddev, "pooler", tf.tanh, dtype=policy)

    def call(
        self,
        inputs,
        dropout_seed=None,
        num_hidden_layers=None,
        positions=None,
        training=None,
        unpad=False,
    ):
        """Encodes a batch.

        Args:
          inputs: dict of int32 [b, L]: `input_word_ids`, `input_mask` (1 = real) and
            `input_type_ids`. L is at most max_position_embeddings. For defaults see
            complete_inputs. A type id outside the type table adds zeros, as in the reference.
          dropout_seed: int32 [2], the seed of the dropout masks; a seed implies training.
          num_hidden_layers: number of layers to apply, if fewer than the config's.
          positions: int32 [b, P]; None: all. The last block computes queries, feed-forward and
            output only at these positions and [CLS]; keys and values come from all positions.
          training: Keras' argument, a bool or a tensor bool []. Without `dropout_seed`, training
            draws a seed at each call.
          unpad: whether only attention computes padding, which speeds up training on CPUs; see
            Unpadding. Inner shapes then depend on the mask: neither XLA nor a TPU can compile them.

        Returns:
          dict: `sequence_output` [b, L, H], or with `positions` [b, P, H]; `pooled_output` [b, H].
          Without `positions` also `hidden_states`, a list of [b, L, H]: the input of the first
          block, then the output of each block.
        """
        inputs = complete_inputs(inputs)
        dropout_seed = resolve_dropout_seed(training, dropout_seed)
        seq_len = inputs["input_word_ids"].shape[1]
        if seq_len is not None and seq_len > self.config.max_position_embeddings:
            raise UserError(
                f"sequences of {seq_len} pieces, but the position table has "
                f"{self.config.max_position_embeddings} rows: shorten them, or train with a larger "
                "max_position_embeddings"
            )
        if positions is not None:
            positions = tf.pad(positions, [[0, 0], [1, 0]])  # [CLS] is at 0
        unpadding = Unpadding(inputs["input_mask"]) if unpad else None
        states = self._states(inputs, dropout_seed, num_hidden_layers, positions, unpadding)
        if unpadding and positions is None:
            states = [unpadding.add(state) for state in states]

        def by_example(state, length):
            return tf.reshape(state, [-1, length, self.config.hidden_size])

        if positions is not None:
            output = by_example(states[-1], positions.shape[1] or tf.shape(positions)[1])
            return {"sequence_output": output[:, 1:], "pooled_output": self.pooler(output[:, 0])}
        seq_len = seq_len or tf.shape(inputs["input_word_ids"])[1]
        hidden_states = [by_example(state, seq_len) for state in states]
        return {
            "sequence_output": hidden_states[-1],
            "pooled_output": self.pooler(hidden_states[-1][:, 0]),
            "hidden_states": hidden_states,
        }

    def _states(
        self, inputs, dropout_seed, num_hidden_layers, positions, unpadding
    ) -> list[tf.Tensor]:
        """Returns the first block's input and every block's output, [b * L, H], or unpadded [n, H].

        With `positions`, five sixths of the last block's weight matmuls run at these positions
        only. Pre-training needs the masked positions and [CLS]. Classification, regression,
        multiple choice and the signature `pooled` need [CLS] only. Other uses need all positions:
        layer distances in `evaluate`, answer spans, word tags, hub.KerasLayer,
        `mean_pooled_output`, and the signatures `tokens`, `mlm`, `sop` and `fill_mask`.
        """
        config, plan = self.config, self.plan
        if num_hidden_layers is not None:
            plan = sharing_plan(dataclasses.replace(config, num_hidden_layers=num_hidden_layers))
        bias = attention_bias(inputs["input_mask"])
        embedding_seed, *block_seeds = seeds(dropout_seed, 1 + len(plan))
        _, x = self.embeddings(inputs, embedding_seed)
        x = unpadding.remove(x) if unpadding else x
        blocks = [
            functools.partial(
                self.blocks[f"{attention}_{feed_forward}"],
                bias=bias,
                dropout_seed=seed,
                unpadding=unpadding,
            )
            for (attention, feed_forward), seed in zip(plan, block_seeds)
        ]
        blocks[-1] = functools.partial(blocks[-1], positions=positions)
        states = [x]
        if self.recompute:
            # The backward pass needs the last block first, so recomputing it would save no memory.
            states += apply_recomputed(blocks[:-1], x)
            blocks = blocks[-1:]
        for block in blocks:
            states.append(block(states[-1]))
        return states
