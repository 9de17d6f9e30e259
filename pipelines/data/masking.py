"""N-gram masked LM: which pieces are to be predicted, and what stands in their place."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

# Columns beyond max_predictions_per_seq in which words are looked for that fill the budget.
_MARGIN = 12


@dataclasses.dataclass(frozen=True)
class MaskingVocabulary:
    """What masking knows of a vocabulary.

    Attributes:
      mask_id: the piece [MASK].
      word_starts: bool [V], pieces that begin a word.
      replacement_ids: int32 [n], pieces that may stand in for a masked one.
    """

    mask_id: int
    word_starts: np.ndarray
    replacement_ids: np.ndarray


def mask_ngrams(
    example: dict[str, tf.Tensor],
    vocabulary: MaskingVocabulary,
    draws: dict[str, tf.Tensor],
    max_predictions_per_seq: int,
    masked_lm_prob: float,
    ngram: int,
) -> dict[str, tf.Tensor]:
    """Chooses n-grams of whole words to predict, and masks them.

    Example (ngram=3, a budget of 3 pieces, `_` begins a word):

        pieces    [CLS] _the _quick ly _fox [SEP] _ran _off [SEP]
        lengths drawn 2, 1, 3: the words are tiled into spans, which a [SEP] cuts
        spans           0    0      0   1         2    2
        their draws     .7                .2        .4
        in order        _fox (.2), _ran _off (.4), _the _quick ly (.7)
        the first 3     _fox _ran _off

    The spans are taken in random order until round(masked_lm_prob * length) pieces are (length with
    [CLS] and [SEP]). The last one taken is cut to the words that fit, and what remains of the
    budget is filled with the next words of one piece. Every piece taken becomes, by itself,
    [MASK] (80 %), stays (10 %) or becomes any other piece (10 %).

    Args:
      example: `input_word_ids`, `input_mask`, `input_type_ids`, int32 [b, L].
      draws: uniform in [0, 1): `span_length`, `span_order` float32 [b, L + 1], `replace`,
        `replacement` float32 [b, P].
      max_predictions_per_seq: P.
      masked_lm_prob: share of the pieces to predict.
      ngram: longest span in words; n words have probability (1/n) / sum(1/k).

    Returns:
      `input_word_ids` with masks; `masked_lm_positions` (ascending), `masked_lm_ids` int32 [b, P];
      `masked_lm_weights` float32 [b, P], 1 = a prediction, 0 = padding.

    Source: Lan et al. 2020, section 4.1; the reference's create_masked_lm_predictions.
    Deviation: the reference draws a span at every word and drops those that overlap a chosen one,
    lets spans run across [SEP], glues a B that begins inside a word to A's last word, and
    replaces by control pieces, too.
    """
    ids, types = example["input_word_ids"], example["input_type_ids"]
    seq_len = ids.shape[1]
    position = tf.range(seq_len)[tf.newaxis, :]
    length = tf.reduce_sum(example["input_mask"], axis=1, keepdims=True)
    # The separators: the last piece, and the last of type 0.
    first_sep = length - tf.reduce_sum(types, axis=1, keepdims=True) - 1
    is_text = (position > 0) & (position < length - 1) & (position != first_sep)
    # A and B each open a word, also where a chunk was cut inside one.
    opens = (position == 1) | (position == first_sep + 1)
    starts = is_text & (opens | tf.gather(tf.constant(vocabulary.word_starts), ids))
    word = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1

    # Tile the words: span k ends before the word sum(lengths[:k + 1]).
    shares = 1.0 / np.arange(1, ngram + 1)
    bounds = tf.constant(np.cumsum(shares / shares.sum())[:-1], tf.float32)
    span_lengths = 1 + tf.searchsorted(bounds, tf.reshape(draws["span_length"], [-1]), side="right")
    span_ends = tf.cumsum(tf.reshape(span_lengths, tf.shape(draws["span_length"])), axis=1)
    span = tf.searchsorted(span_ends, tf.maximum(word, 0), side="right") + types

    # Pieces by (order of their span, position); top_k keeps equal ones in place.
    order = tf.gather(draws["span_order"], span, batch_dims=1)
    order = tf.where(is_text, order, 2.0)
    num_ranked = min(max_predictions_per_seq + _MARGIN, seq_len)
    order, ranked = tf.math.top_k(-order, num_ranked)
    ranked_word = tf.where(order > -2.0, tf.gather(word, ranked, batch_dims=1), -1)

    budget = tf.cast(tf.round(masked_lm_prob * tf.cast(length, tf.float64)), tf.int32)
    budget = tf.minimum(tf.maximum(budget, 1), max_predictions_per_seq)
    rank = tf.range(num_ranked)[tf.newaxis, :]
    real = ranked_word >= 0
    # A word cut by the budget has its last pieces at and beyond rank `budget`.
    after = tf.pad(ranked_word, [[0, 0], [0, 1]], constant_values=-1)
    cut_word = tf.gather(after, tf.minimum(budget, num_ranked), batch_dims=1)
    taken = real & (rank < budget) & (ranked_word != cut_word)
    # Words of one piece beyond: neither neighbour is of the same word.
    before = tf.pad(ranked_word, [[0, 0], [1, 0]], constant_values=-1)[:, :-1]
    alone = real & (ranked_word != before) & (ranked_word != after[:, 1:]) & (rank < num_ranked - 1)
    candidates = alone & (rank >= budget)
    missing = budget - tf.reduce_sum(tf.cast(taken, tf.int32), axis=1, keepdims=True)
    filled = candidates & (tf.cumsum(tf.cast(candidates, tf.int32), axis=1) <= missing)
    taken |= filled

    # Ascending positions; what is not taken sorts behind and becomes padding.
    places = tf.sort(tf.where(taken, ranked, seq_len), axis=1)[:, :max_predictions_per_seq]
    if num_ranked < max_predictions_per_seq:
        padding = [[0, 0], [0, max_predictions_per_seq - num_ranked]]
        places = tf.pad(places, padding, constant_values=seq_len)
    is_prediction = places < seq_len
    positions = tf.where(is_prediction, places, 0)
    labels = tf.where(is_prediction, tf.gather(ids, positions, batch_dims=1), 0)

    replacement = tf.constant(vocabulary.replacement_ids)
    count = replacement.shape[0]
    index = tf.cast(draws["replacement"] * float(count), tf.int32)
    random_ids = tf.gather(replacement, tf.minimum(index, count - 1))
    new_ids = tf.where(draws["replace"] < 0.9, labels, random_ids)
    new_ids = tf.where(draws["replace"] < 0.8, vocabulary.mask_id, new_ids)
    rows = tf.range(tf.shape(ids)[0])[:, tf.newaxis]
    # Padding is written to a column of its own beyond the last piece.
    indices = tf.stack([tf.broadcast_to(rows, tf.shape(places)), places], axis=-1)
    padded = tf.pad(ids, [[0, 0], [0, 1]])
    masked = tf.tensor_scatter_nd_update(padded, indices, new_ids)[:, :seq_len]
    return {
        "input_word_ids": masked,
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": tf.cast(is_prediction, tf.float32),
    }
