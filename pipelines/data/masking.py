"""N-gram masking for the masked LM: chooses the pieces to predict and replaces them."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.text.tokenization import AlbertTokenizer

# Number of pieces ranked beyond max_predictions_per_seq, to complete the last span and fill gaps.
_MARGIN = 12


def mask_ngrams(
    example: dict[str, tf.Tensor],
    draws: dict[str, tf.Tensor],
    options: Any,
    tokenizer: AlbertTokenizer,
) -> dict[str, tf.Tensor]:
    """Chooses n-grams of whole words to predict, and masks them.

    Example (ngram=3, a budget of 3 pieces, `_` starts a word):

        pieces    [CLS] _the _quick ly _fox [SEP] _ran _off [SEP]
        span lengths    2, 1, 3 words (drawn); each [SEP] ends a span
        spans           0    0      0   1         2    2
        order draws     .7                .2        .4
        order           _fox (drawn as the first), _ran _off (.4), _the _quick ly (.7)
        predicted       _fox _ran _off

    All pieces are equally likely to be chosen: see `_choose`. Each chosen piece is independently
    replaced by [MASK], replaced by a random ordinary piece, or kept.

    Args:
      example: `input_word_ids`, `input_mask`, `input_type_ids`, int32 [b, L].
      draws: float32, uniform in [0, 1): `span_length` and `span_order` [b, L + 1], `replace` and
        `replacement` [b, P].
      options: ExampleOptions. P is max_predictions_per_seq. The budget is masked_lm_prob of the
        pieces, [CLS] and [SEP] included. n-grams of n words have probability (1/n) / sum(1/k).
      tokenizer: the tokenizer of the pieces.

    Returns:
      dict: `input_word_ids` int32 [b, L] after masking; `masked_lm_positions` (ascending) and
      `masked_lm_ids` int32 [b, P]; `masked_lm_weights` float32 [b, P], 1 = prediction, 0 = padding.

    Source: Lan et al. 2020, section 4.1; the reference's create_masked_lm_predictions.
    Deviation: the reference draws a span at every word. It drops spans that overlap a chosen span,
    shortens or drops spans beyond the budget, and allows spans across [SEP]. If B starts inside a
    word, its first pieces count as part of A's last word. Replacements can be control pieces.
    """
    ids = example["input_word_ids"]
    text = _tile(example, tokenizer.word_starts(), draws["span_length"], options.ngram)
    most = options.max_predictions_per_seq
    places = _places(text, draws["span_order"], options.masked_lm_prob, most)
    is_prediction = places < ids.shape[1]
    positions = tf.where(is_prediction, places, 0)
    labels = tf.where(is_prediction, tf.gather(ids, positions, batch_dims=1), 0)

    candidates = tf.constant(tokenizer.replacement_ids())
    count = candidates.shape[0]
    random_index = tf.cast(draws["replacement"] * float(count), tf.int32)
    random_pieces = tf.gather(candidates, tf.minimum(random_index, count - 1))
    unchanged = (1 + options.mask_token_rate) / 2  # half of the pieces that are not [MASK]
    replaced = tf.where(draws["replace"] < unchanged, labels, random_pieces)
    replaced = tf.where(draws["replace"] < options.mask_token_rate, tokenizer.mask_id, replaced)
    return {
        "input_word_ids": _write(ids, places, replaced),
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": tf.cast(is_prediction, tf.float32),
    }


def _write(ids: tf.Tensor, places: tf.Tensor, new_ids: tf.Tensor) -> tf.Tensor:
    """Writes `new_ids` [b, P] into `ids` [b, L] at the positions `places` [b, P]; L is padding."""
    rows = tf.range(tf.shape(ids)[0])[:, tf.newaxis]
    # Padding is written to an extra last column, which is then dropped.
    indices = tf.stack([tf.broadcast_to(rows, tf.shape(places)), places], axis=-1)
    padded = tf.pad(ids, [[0, 0], [0, 1]])
    return tf.tensor_scatter_nd_update(padded, indices, new_ids)[:, : ids.shape[1]]


class _Text(NamedTuple):
    """The pieces that can be predicted, with the index of each piece's word and span."""

    length: tf.Tensor  # int32 [b, 1], number of pieces, including [CLS] and [SEP]
    is_text: tf.Tensor  # bool [b, L]
    first_sep: tf.Tensor  # int32 [b, 1], position of the first [SEP]
    word: tf.Tensor  # int32 [b, L]
    span: tf.Tensor  # int32 [b, L]


def _tile(
    example: dict[str, tf.Tensor], word_starts: np.ndarray, draws: tf.Tensor, ngram: int
) -> _Text:
    """Splits the text into words and groups the words into spans of random lengths."""
    ids, types = example["input_word_ids"], example["input_type_ids"]
    position = tf.range(ids.shape[1])[tf.newaxis, :]
    length = tf.reduce_sum(example["input_mask"], axis=1, keepdims=True)
    # The [SEP] pieces are the last piece of the example and its last piece of type 0.
    first_sep = length - tf.reduce_sum(types, axis=1, keepdims=True) - 1
    is_text = (position > 0) & (position < length - 1) & (position != first_sep)
    # The first pieces of A and B count as word starts, even if a segment was cut inside a word.
    opens = (position == 1) | (position == first_sep + 1)
    starts = is_text & (opens | tf.gather(tf.constant(word_starts), ids))
    word = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1

    # Span k ends before word number sum(lengths[:k + 1]).
    shares = 1.0 / np.arange(1, ngram + 1)
    lengths = tf.ones_like(draws, tf.int32)
    for bound in np.cumsum(shares / shares.sum())[:-1]:
        lengths += tf.cast(draws >= bound, tf.int32)
    ends = tf.cumsum(lengths, axis=1)
    span = tf.searchsorted(ends, tf.maximum(word, 0), side="right")
    # Adding the type (0 in A, 1 in B) splits a span that crosses [SEP] into two spans.
    return _Text(length, is_text, first_sep, word, span + types)


def _places(
    text: _Text, draws: tf.Tensor, masked_lm_prob: float, max_predictions_per_seq: int
) -> tf.Tensor:
    """Returns the positions to predict in ascending order, int32 [b, P]; L is padding."""
    seq_len = text.span.shape[1]
    budget = tf.cast(tf.round(masked_lm_prob * tf.cast(text.length, tf.float64)), tf.int32)
    budget = tf.minimum(tf.maximum(budget, 1), max_predictions_per_seq)
    num_ranked = min(max_predictions_per_seq + _MARGIN, seq_len)
    taken, ranked = _choose(text, draws, budget, num_ranked)
    # Pieces that are not chosen are sorted to the end and become padding.
    places = tf.sort(tf.where(taken, ranked, seq_len), axis=1)[:, :max_predictions_per_seq]
    padding = [[0, 0], [0, max(0, max_predictions_per_seq - num_ranked)]]
    return tf.pad(places, padding, constant_values=seq_len)


def _choose(
    text: _Text, draws: tf.Tensor, budget: tf.Tensor, num_ranked: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses spans with `budget` pieces in total, such that all pieces are equally likely.

    The spans form a ring in random order. A window of `budget` pieces starts at a random piece of
    the ring. A span is chosen if its first piece is in the window. This has probability budget /
    pieces for every span, regardless of its length, words and position. One-piece spans are then
    dropped or added, equally often, to reach `budget`. If there are too few of them, one-piece
    words are used: the last word of a longer span is dropped, or any other word is added. If this
    is not enough, as in a short text, the last span is cut after the last word that fits. If no
    word fits, a word is cut, so every text has a prediction.

    `draws` is float32 [b, L + 1]. The last column selects the window's first piece, and the others
    order the spans. `budget` is int32 [b, 1]. `num_ranked` is K, the number of pieces to consider.

    Returns bool [b, K], True for chosen pieces, and int32 [b, K], the positions of these K pieces.
    """
    word, span = text.word, text.span
    window, real, ranked = _rank(text, draws, budget, num_ranked)
    rank = tf.range(num_ranked)[tf.newaxis, :]
    words = tf.where(real, tf.gather(word, ranked, batch_dims=1), -1)
    opens_word, closes_word = _runs(words)
    opens_span, closes_span = _runs(tf.where(real, tf.gather(span, ranked, batch_dims=1), -1))
    # The last ranked piece may not be the last piece of its word.
    lone = real & opens_word & closes_word & (rank < num_ranked - 1)

    # Choose whole spans. If the last span is not fully ranked, `end` is set beyond all ranks.
    beyond = opens_span & (rank >= window)
    far = 2 * span.shape[1]
    end = tf.reduce_min(tf.where(beyond, rank, far), axis=1, keepdims=True)
    # One-piece words that can correct the excess: dropped before `end`, or added after it.
    excess = end - budget
    difference = tf.abs(excess)
    small = lone & tf.where(excess > 0, closes_span & (rank < end), rank >= end)
    whole = small & opens_span & closes_span
    small = tf.where(_count(whole) >= difference, whole, small)
    fits = _count(small) >= difference
    changed = fits & small & (tf.cumsum(tf.cast(small, tf.int32), axis=1) <= difference)
    # If they are too few, drop the word that the budget cuts. It continues at rank `end`.
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
    """Arranges the spans in a ring that starts with the span of a random piece: see `_choose`.

    Returns int32 [b, 1], number of pieces in the window after the rest of a cut first span; bool
    [b, K], True where the ranked piece is text; int32 [b, K], positions in the order of the ring.
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
    """Returns two bool [b, K] that mark the first and the last element of runs of equal values."""
    changes = values[:, 1:] != values[:, :-1]
    opens = tf.pad(changes, [[0, 0], [1, 0]], constant_values=True)
    return opens, tf.pad(changes, [[0, 0], [0, 1]], constant_values=True)


def _count(flags: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(flags, tf.int32), axis=1, keepdims=True)


def unmask(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Restores the pieces of a batch of NumPy arrays before masking, int32 [b, L]."""
    ids = batch["input_word_ids"].copy()
    rows, columns = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, columns]] = batch["masked_lm_ids"][rows, columns]
    return ids
