"""N-gram masked LM: which pieces are to be predicted, and what replaces them."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Pieces to rank beyond max_predictions_per_seq, for the last span and for filling words.
_MARGIN = 12


@dataclasses.dataclass(frozen=True)
class MaskingVocabulary:
    """The properties of a vocabulary that masking uses."""

    mask_id: int
    word_starts: np.ndarray  # bool [V], pieces that begin a word
    replacement_ids: np.ndarray  # int32 [n], pieces that may replace a masked one


def mask_ngrams(
    example: dict[str, tf.Tensor],
    vocabulary: MaskingVocabulary,
    draws: dict[str, tf.Tensor],
    max_predictions_per_seq: int,
    masked_lm_prob: float,
    ngram: int,
    mask_token_rate: float = 0.8,
    random_token_rate: float = 0.1,
) -> dict[str, tf.Tensor]:
    """Chooses n-grams of whole words to predict, and masks them.

    Example (ngram=3, a budget of 3 pieces, `_` begins a word):

        pieces    [CLS] _the _quick ly _fox [SEP] _ran _off [SEP]
        lengths drawn 2, 1, 3: the words are tiled into spans, which a [SEP] cuts
        spans           0    0      0   1         2    2
        their draws     .7                .2        .4
        begin at        _fox (drawn), then _ran _off (.4), then _the _quick ly (.7)
        3 pieces        _fox _ran _off

    Whole spans are taken in random order, and each piece has the same chance: see `_choose`. Each
    taken piece independently becomes [MASK], becomes a random ordinary piece, or stays.

    Args:
      example: `input_word_ids`, `input_mask`, `input_type_ids`, int32 [b, L].
      vocabulary: the [MASK] piece, the pieces that begin a word and the replacement pieces.
      draws: uniform in [0, 1): `span_length`, `span_order` float32 [b, L + 1], `replace`,
        `replacement` float32 [b, P].
      max_predictions_per_seq: P.
      masked_lm_prob: share of the pieces to predict, [CLS] and [SEP] counted.
      ngram: longest span in words; n words have probability (1/n) / sum(1/k).
      mask_token_rate: share of the taken pieces that become [MASK].
      random_token_rate: share of them that become another piece; the rest stay.

    Returns:
      `input_word_ids` with masks; `masked_lm_positions` (ascending), `masked_lm_ids` int32 [b, P];
      `masked_lm_weights` float32 [b, P], 1 = a prediction, 0 = padding.

    Source: Lan et al. 2020, section 4.1; the reference's create_masked_lm_predictions.
    Deviation: the reference draws a span at every word. It drops spans that overlap a chosen one,
    shortens or drops spans beyond the budget, and lets spans run across [SEP]. It glues a B that
    begins inside a word to A's last word, and replaces by control pieces, too.
    """
    ids = example["input_word_ids"]
    text = _tile(example, vocabulary.word_starts, draws["span_length"], ngram)
    places = _places(text, draws["span_order"], masked_lm_prob, max_predictions_per_seq)
    is_prediction = places < ids.shape[1]
    positions = tf.where(is_prediction, places, 0)
    labels = tf.where(is_prediction, tf.gather(ids, positions, batch_dims=1), 0)

    random_pieces = _random_pieces(vocabulary, draws["replacement"])
    replaced = tf.where(draws["replace"] < 1 - random_token_rate, labels, random_pieces)
    replaced = tf.where(draws["replace"] < mask_token_rate, vocabulary.mask_id, replaced)
    return {
        "input_word_ids": _write(ids, places, replaced),
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": tf.cast(is_prediction, tf.float32),
    }


def _random_pieces(vocabulary: MaskingVocabulary, draws: tf.Tensor) -> tf.Tensor:
    """Returns a replacement piece for each of the `draws` [b, P]."""
    replacement = tf.constant(vocabulary.replacement_ids)
    count = replacement.shape[0]
    index = tf.cast(draws * float(count), tf.int32)
    return tf.gather(replacement, tf.minimum(index, count - 1))


def _write(ids: tf.Tensor, places: tf.Tensor, new_ids: tf.Tensor) -> tf.Tensor:
    """Returns `ids` [b, L] with `new_ids` [b, P] at `places` [b, P]; the place L is padding."""
    rows = tf.range(tf.shape(ids)[0])[:, tf.newaxis]
    # Padding is written to an extra column at the end. This column is then dropped.
    indices = tf.stack([tf.broadcast_to(rows, tf.shape(places)), places], axis=-1)
    padded = tf.pad(ids, [[0, 0], [0, 1]])
    return tf.tensor_scatter_nd_update(padded, indices, new_ids)[:, : ids.shape[1]]


class _Text(NamedTuple):
    """The pieces that may be predicted, with the number of each piece's word and span."""

    length: tf.Tensor  # int32 [b, 1], pieces with [CLS] and [SEP]
    is_text: tf.Tensor  # bool [b, L]
    first_sep: tf.Tensor  # int32 [b, 1], where the first [SEP] is
    word: tf.Tensor  # int32 [b, L]
    span: tf.Tensor  # int32 [b, L]


def _tile(
    example: dict[str, tf.Tensor], word_starts: np.ndarray, draws: tf.Tensor, ngram: int
) -> _Text:
    """Cuts the text into words and the words into spans of drawn lengths."""
    ids, types = example["input_word_ids"], example["input_type_ids"]
    position = tf.range(ids.shape[1])[tf.newaxis, :]
    length = tf.reduce_sum(example["input_mask"], axis=1, keepdims=True)
    # The separators are the last piece and the last piece of type 0.
    first_sep = length - tf.reduce_sum(types, axis=1, keepdims=True) - 1
    is_text = (position > 0) & (position < length - 1) & (position != first_sep)
    # The first piece of A or B begins a word, even if a segment was cut inside a word.
    opens = (position == 1) | (position == first_sep + 1)
    starts = is_text & (opens | tf.gather(tf.constant(word_starts), ids))
    word = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1

    # Span k ends before the word sum(lengths[:k + 1]).
    shares = 1.0 / np.arange(1, ngram + 1)
    lengths = tf.ones_like(draws, tf.int32)
    for bound in np.cumsum(shares / shares.sum())[:-1]:
        lengths += tf.cast(draws >= bound, tf.int32)
    ends = tf.cumsum(lengths, axis=1)
    span = tf.searchsorted(ends, tf.maximum(word, 0), side="right")
    # A [SEP] divides a span into two spans.
    return _Text(length, is_text, first_sep, word, span + types)


def _places(
    text: _Text, draws: tf.Tensor, masked_lm_prob: float, max_predictions_per_seq: int
) -> tf.Tensor:
    """Returns the places to predict, ascending, int32 [b, P]; the place L is padding."""
    seq_len = text.span.shape[1]
    budget = tf.cast(tf.round(masked_lm_prob * tf.cast(text.length, tf.float64)), tf.int32)
    budget = tf.minimum(tf.maximum(budget, 1), max_predictions_per_seq)
    num_ranked = min(max_predictions_per_seq + _MARGIN, seq_len)
    taken, ranked = _choose(text, draws, budget, num_ranked)
    # Pieces that are not taken sort to the end and become padding.
    places = tf.sort(tf.where(taken, ranked, seq_len), axis=1)[:, :max_predictions_per_seq]
    padding = [[0, 0], [0, max(0, max_predictions_per_seq - num_ranked)]]
    return tf.pad(places, padding, constant_values=seq_len)


def _choose(
    text: _Text, draws: tf.Tensor, budget: tf.Tensor, num_ranked: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses spans of `budget` pieces, so that each piece has the same chance.

    The spans form a ring in random order, and a window of `budget` pieces begins at a random piece.
    A span is taken if its first piece is in the window: with probability budget / pieces, whatever
    its length, words and place. The taken spans have `budget` pieces on average: the last span can
    exceed the window, and a span that the window's start cuts is not taken. Spans of one piece are
    dropped or added to reach `budget`, equally often. If there are too few such spans, words of one
    piece are used: the last word of a longer span is dropped, or any other word added. If these are
    too few as well, as in a short text, the last span is cut to the words that fit. If no word
    fits, a word is cut, so that every text has a prediction.

    A window that began at the first piece of a span would take long spans and words less often
    (words of four pieces a seventh less often, at length 128).

    Args:
      text: the words and spans of _tile.
      draws: float32 [b, L + 1]. The last column belongs to no span; it draws the first piece.
      budget: int32 [b, 1].
      num_ranked: K, the number of pieces to consider.

    Returns:
      bool [b, K], true for taken pieces, and int32 [b, K], the positions of these K pieces.
    """
    word, span = text.word, text.span
    window, real, ranked = _rank(text, draws, budget, num_ranked)
    rank = tf.range(num_ranked)[tf.newaxis, :]
    words = tf.where(real, tf.gather(word, ranked, batch_dims=1), -1)
    opens_word, closes_word = _runs(words)
    opens_span, closes_span = _runs(tf.where(real, tf.gather(span, ranked, batch_dims=1), -1))
    # The piece of the last rank may not be the end of its word.
    lone = real & opens_word & closes_word & (rank < num_ranked - 1)

    # Take whole spans. The end of a span that is not fully ranked counts as far away.
    beyond = opens_span & (rank >= window)
    far = 2 * span.shape[1]
    end = tf.reduce_min(tf.where(beyond, rank, far), axis=1, keepdims=True)
    # Pieces that can make up for the difference: dropped before the end, or added after it.
    excess = end - budget
    difference = tf.abs(excess)
    small = lone & tf.where(excess > 0, closes_span & (rank < end), rank >= end)
    whole = small & opens_span & closes_span
    small = tf.where(_count(whole) >= difference, whole, small)
    fits = _count(small) >= difference
    changed = fits & small & (tf.cumsum(tf.cast(small, tf.int32), axis=1) <= difference)
    # Otherwise drop the word that the budget cuts; it continues at rank `end`.
    end = tf.where(fits, end, budget)
    next_word = tf.gather(tf.pad(words, [[0, 0], [0, 1]], constant_values=-1), end, batch_dims=1)
    taken = tf.math.logical_xor(real & (rank < end) & (words != next_word), changed)

    missing = budget - _count(taken)
    candidates = lone & (rank >= end)
    taken |= candidates & (tf.cumsum(tf.cast(candidates, tf.int32), axis=1) <= missing)
    taken |= real & (rank < budget) & ~tf.reduce_any(taken, axis=1, keepdims=True)
    return taken, ranked


def _rank(
    text: _Text, draws: tf.Tensor, budget: tf.Tensor, num_ranked: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Lays the spans in a ring that begins with the span of a random piece; see `_choose`.

    Returns:
      int32 [b, 1], the window's pieces after the rest of a cut first span; bool [b, K], true where
      the ranked piece is text; int32 [b, K], positions by (order of the span, position).
    """
    is_text, first_sep, span = text.is_text, text.first_sep, text.span
    position = tf.range(span.shape[1])[tf.newaxis, :]
    count = _count(is_text)
    number = tf.cast(draws[:, -1:] * tf.cast(count, tf.float32), tf.int32)
    first = 1 + number + tf.cast(1 + number >= first_sep, tf.int32)
    in_first = is_text & (span == tf.gather(span, first, batch_dims=1))
    is_cut = tf.gather(in_first, first - 1, batch_dims=1)
    left_over = tf.reduce_sum(tf.cast(in_first & (position >= first), tf.int32), 1, keepdims=True)
    window = budget - tf.where(is_cut, left_over, 0)
    order = tf.gather(draws, span, batch_dims=1)
    order = tf.where(in_first, tf.where(is_cut, 1.0, -1.0), order)
    # top_k is stable, so the pieces of a span keep their order.
    order, ranked = tf.math.top_k(-tf.where(is_text, order, 2.0), num_ranked)
    return window, order > -2.0, ranked


def _runs(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two bool [b, K]: true where a run of equal numbers begins, and where it ends."""
    changes = values[:, 1:] != values[:, :-1]
    opens = tf.pad(changes, [[0, 0], [1, 0]], constant_values=True)
    return opens, tf.pad(changes, [[0, 0], [0, 1]], constant_values=True)


def _count(flags: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(flags, tf.int32), axis=1, keepdims=True)


def unmask(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the pieces of an array batch before masking, int32 [b, L]."""
    ids = batch["input_word_ids"].copy()
    rows, columns = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, columns]] = batch["masked_lm_ids"][rows, columns]
    return ids
