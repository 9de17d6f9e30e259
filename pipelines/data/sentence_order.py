"""Sentence-order prediction: two consecutive segments of one document, in order or swapped."""

from __future__ import annotations

import tensorflow as tf


def sentence_order_examples(
    pieces: tf.RaggedTensor,
    sentence_starts: tf.RaggedTensor,
    split_draws: tf.Tensor,
    swap_draws: tf.Tensor,
    max_seq_length: int,
    cls_id: int,
    sep_id: int,
) -> dict[str, tf.Tensor]:
    """Lays out `[CLS] A [SEP] B [SEP]`.

    A ends where a uniformly drawn sentence but the first begins; with probability 1/2 the two are
    swapped. Of a chunk of one sentence becomes `[CLS] A [SEP]`, without an order to learn.

    Example: pieces [a b c d e], sentences starting at 0 and 3, swapped:
    `[CLS] d e [SEP] a b c [SEP]`, label 1.

    Args:
      pieces: int32 [b, (n)], a contiguous chunk of a document each, n <= max_seq_length - 3.
      sentence_starts: int32 [b, (m)], index of each sentence's first piece; the first is 0.
      split_draws: float32 [b], uniform in [0, 1).
      swap_draws: float32 [b], uniform in [0, 1).
      max_seq_length: L.
      cls_id, sep_id: the control pieces.

    Returns:
      int32 [b, L] `input_word_ids`, `input_mask` (1 = real), `input_type_ids` (0 up to and with the
      first [SEP]); int32 [b] `sentence_order_labels` (1 = swapped); float32 [b]
      `sentence_order_weights` (0 = no label).

    Source: Lan et al. 2020, section 3.1; the reference's create_instances_from_document.
    Deviation: the reference gives chunks of one sentence a segment of another document and the
    label "swapped", which teaches topics instead of order.
    """
    lengths = tf.cast(pieces.row_lengths(), tf.int32)
    num_sentences = tf.cast(sentence_starts.row_lengths(), tf.int32)
    has_order = num_sentences > 1

    # Any of the sentences 1 .. m-1 opens the second part; a lone sentence is all first part.
    num_splits = tf.maximum(num_sentences - 1, 1)
    chosen = 1 + tf.cast(split_draws * tf.cast(num_splits, tf.float32), tf.int32)
    chosen = tf.minimum(chosen, num_splits)  # a draw next to 1 may round up
    index_of_start = tf.cast(sentence_starts.row_starts(), tf.int32) + tf.where(
        has_order, chosen, 0
    )
    split = tf.where(has_order, tf.gather(sentence_starts.flat_values, index_of_start), lengths)
    swapped = has_order & (swap_draws < 0.5)

    # Where each piece of `[CLS] A [SEP] B [SEP]` lies in the chunk.
    len_a = tf.where(swapped, lengths - split, split)[:, tf.newaxis]
    begin_a = tf.where(swapped, split, 0)[:, tf.newaxis]
    begin_b = tf.where(swapped, 0, split)[:, tf.newaxis]
    lengths = lengths[:, tf.newaxis]
    has_order = has_order[:, tf.newaxis]
    position = tf.range(max_seq_length)[tf.newaxis, :]
    first_sep = 1 + len_a
    last_sep = tf.where(has_order, lengths + 2, first_sep)
    in_a = (position >= 1) & (position < first_sep)
    in_b = (position > first_sep) & (position < last_sep)
    source = tf.where(in_a, begin_a + position - 1, begin_b + position - first_sep - 1)
    source = tf.where(in_a | in_b, source, 0) + tf.cast(pieces.row_starts(), tf.int32)[:, None]
    ids = tf.gather(pieces.flat_values, source)
    is_sep = (position == first_sep) | (position == last_sep)
    ids = tf.where(in_a | in_b, ids, tf.where(is_sep, sep_id, 0))
    ids = tf.where(position == 0, cls_id, ids)
    return {
        "input_word_ids": ids,
        "input_mask": tf.cast(position <= last_sep, tf.int32),
        "input_type_ids": tf.cast((position > first_sep) & (position <= last_sep), tf.int32),
        "sentence_order_labels": tf.cast(swapped, tf.int32),
        "sentence_order_weights": tf.cast(has_order[:, 0], tf.float32),
    }
