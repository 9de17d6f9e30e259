"""Counts the floating-point operations (FLOPs) of training."""

import math

from albert_tf.models import AlbertForPreTraining


def training_flops_per_example(
    model: AlbertForPreTraining,
    max_seq_length: int,
    max_predictions_per_seq: int,
    hidden_states: bool = False,
) -> int:
    """Counts the FLOPs of all matrix products in one training step, per example.

    The forward pass of a layer takes 2 FLOPs per matrix element and position, even if layers
    share weights. The backward pass takes twice as many. Padding positions are included. The last
    block computes keys and values at all positions, and everything else only at [CLS] and the
    predicted positions. If `hidden_states` is True, it computes everything at all positions.

    Source: Kaplan et al. 2020, section 2.1 (6 operations per parameter and token), plus the
    products inside attention.
    """

    def matrices(layer) -> int:
        return sum(math.prod(v.shape) for v in layer.trainable_variables if len(v.shape) == 2)

    config, encoder = model.config, model.encoder
    blocks = [encoder.blocks[f"{attention}_{feed}"] for attention, feed in encoder.plan]
    num_wanted = max_seq_length if hidden_states else 1 + max_predictions_per_seq
    last_attention = blocks[-1].attention
    keys_and_values = matrices(last_attention.key) + matrices(last_attention.value)
    per_position = sum(map(matrices, blocks[:-1])) + keys_and_values
    if encoder.embeddings.projection:
        per_position += matrices(encoder.embeddings.projection)
    per_wanted = matrices(blocks[-1]) - keys_and_values
    per_prediction = matrices(model.masked_lm) + config.vocab_size * config.embedding_size
    per_example = matrices(encoder.pooler) + matrices(model.sentence_order)
    # Attention scores are [L, D] x [D, L] and context is [L, L] x [L, D], with head size D.
    num_queries = (len(blocks) - 1) * max_seq_length + num_wanted
    return 6 * (
        per_position * max_seq_length
        + 2 * num_queries * max_seq_length * config.hidden_size
        + per_wanted * num_wanted
        + per_prediction * max_predictions_per_seq
        + per_example
    )
