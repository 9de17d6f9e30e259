"""Counts the floating point operations of the matrix products in a step."""

from __future__ import annotations

import math

from albert_tf.models import AlbertForPreTraining


def training_flops_per_example(
    model: AlbertForPreTraining,
    max_seq_length: int,
    max_predictions_per_seq: int,
    num_hidden_layers: int | None = None,
    hidden_states: bool = False,
) -> int:
    """Counts the floating point operations of the matrix products that train on one example.

    The forward pass of a layer costs 2 operations per matrix element and position, also if layers
    share weights. The backward pass costs twice as much. Padding counts, too. The last block
    computes keys and values at all positions, the rest only at [CLS] and predicted positions. With
    `hidden_states` it computes everything at all positions.

    Source: Kaplan et al. 2020, section 2.1 (6 operations per parameter and token), plus the
    products inside attention.
    """

    def matrices(layer) -> int:
        return sum(math.prod(v.shape) for v in layer.trainable_variables if len(v.shape) == 2)

    config, encoder = model.config, model.encoder
    layers = num_hidden_layers or config.num_hidden_layers
    plan = encoder.plan[: layers * config.inner_group_num]
    blocks = [encoder.blocks[f"{attention}_{feed_forward}"] for attention, feed_forward in plan]
    num_wanted = max_seq_length if hidden_states else 1 + max_predictions_per_seq
    last_attention = blocks[-1].attention
    keys_and_values = matrices(last_attention.key) + matrices(last_attention.value)
    per_position = sum(map(matrices, blocks[:-1])) + keys_and_values
    if encoder.embeddings.projection:
        per_position += matrices(encoder.embeddings.projection)
    per_wanted = matrices(blocks[-1]) - keys_and_values
    per_prediction = matrices(model.masked_lm) + config.vocab_size * config.embedding_size
    per_example = matrices(encoder.pooler) + matrices(model.sentence_order)
    # Attention scores and context, for L positions and D per head: [L, D] x [D, L], [L, L] x [L, D]
    num_queries = (len(plan) - 1) * max_seq_length + num_wanted
    return 6 * (
        per_position * max_seq_length
        + 2 * num_queries * max_seq_length * config.hidden_size
        + per_wanted * num_wanted
        + per_prediction * max_predictions_per_seq
        + per_example
    )
