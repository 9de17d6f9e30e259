"""The sentence objective: two segments, and what is to be told of them."""

from __future__ import annotations

import tensorflow as tf

# sop: in order or swapped? nsp: consecutive, or the second from another document? none: no label.
SENTENCE_OBJECTIVES = ("sop", "nsp", "none")


def sentence_pair_examples(
    segments: dict[str, tf.Tensor],
    split_draws: tf.Tensor,
    change_draws: tf.Tensor,
    objective: str,
    max_seq_length: int,
    cls_id: int,
    sep_id: int,
) -> dict[str, tf.Tensor]:
    """Lays out `[CLS] A [SEP] B [SEP]`.

    A ends where a uniformly drawn sentence but the first begins; B is the rest. With probability
    1/2 the pair is changed: for "sop" A and B are swapped; for "nsp" B is that of the neighbouring
    row (0 and 1, 2 and 3, ... are neighbours), if that is of another document. A chunk of one
    sentence becomes `[CLS] A [SEP]`, without a label.

    Example: pieces [a b c d e], sentences starting at 0 and 3, swapped:
    `[CLS] d e [SEP] a b c [SEP]`, label 1.

    Args:
      segments: `input_ids` int32 [b, (n)], a contiguous chunk of a document each,
        n <= max_seq_length - 3; `sentence_starts` int32 [b, (m)], index of each sentence's first
        piece, the first is 0; `document_id` int64 [b, 1].
      split_draws: float32 [b], uniform in [0, 1).
      change_draws: float32 [b], uniform in [0, 1).
      objective: one of SENTENCE_OBJECTIVES.
      max_seq_length: L.
      cls_id, sep_id: the control pieces.

    Returns:
      int32 [b, L] `input_word_ids`, `input_mask` (1 = real), `input_type_ids` (0 up to and with the
      first [SEP]); int32 [b] `sentence_order_labels` (1 = changed); float32 [b]
      `sentence_order_weights` (0 = no label).

    Source: Lan et al. 2020, section 3.1; the reference's create_instances_from_document.
    Deviation: the reference gives chunks of one sentence a segment of another document and the
    label "swapped", which teaches topics instead of order.
    """
    pieces, starts = segments["input_ids"], segments["sentence_starts"]
    begin = tf.cast(pieces.row_starts(), tf.int32)
    lengths = tf.cast(pieces.row_lengths(), tf.int32)
    num_sentences = tf.cast(starts.row_lengths(), tf.int32)
    is_pair = num_sentences > 1

    # Any of the sentences 1 .. m-1 opens the second part; a lone sentence is all first part. A
    # float32 below 1 times a whole number n is below n, after rounding too.
    num_splits = tf.maximum(num_sentences - 1, 1)
    chosen = 1 + tf.cast(split_draws * tf.cast(num_splits, tf.float32), tf.int32)
    index_of_start = tf.cast(starts.row_starts(), tf.int32) + tf.where(is_pair, chosen, 0)
    split = tf.where(is_pair, tf.gather(starts.flat_values, index_of_start), lengths)

    # A and B as ranges of all pieces.
    begin_a, len_a = begin, split
    begin_b, len_b = begin + split, lengths - split
    changed = is_pair & (change_draws < 0.5)
    if objective == "sop":
        begin_a, begin_b = tf.where(changed, begin_b, begin_a), tf.where(changed, begin_a, begin_b)
        len_a, len_b = tf.where(changed, len_b, len_a), tf.where(changed, len_a, len_b)
    elif objective == "nsp":
        rows = tf.range(tf.size(lengths))
        neighbour = tf.minimum(tf.bitwise.bitwise_xor(rows, 1), tf.size(lengths) - 1)
        document = segments["document_id"][:, 0]
        changed &= tf.gather(is_pair, neighbour) & (tf.gather(document, neighbour) != document)
        begin_b = tf.where(changed, tf.gather(begin_b, neighbour), begin_b)
        room = max_seq_length - 3 - len_a
        len_b = tf.where(changed, tf.minimum(tf.gather(len_b, neighbour), room), len_b)
    else:
        changed = tf.zeros_like(changed)
    has_label = is_pair & (objective != "none")

    begin_a, len_a, begin_b, len_b = (v[:, tf.newaxis] for v in (begin_a, len_a, begin_b, len_b))
    position = tf.range(max_seq_length)[tf.newaxis, :]
    first_sep = 1 + len_a
    last_sep = first_sep + tf.where(is_pair[:, tf.newaxis], len_b + 1, 0)
    in_a = (position >= 1) & (position < first_sep)
    in_b = (position > first_sep) & (position < last_sep)
    source = tf.where(in_a, begin_a + position - 1, begin_b + position - first_sep - 1)
    ids = tf.gather(pieces.flat_values, tf.where(in_a | in_b, source, 0))
    is_sep = (position == first_sep) | (position == last_sep)
    ids = tf.where(in_a | in_b, ids, tf.where(is_sep, sep_id, 0))
    ids = tf.where(position == 0, cls_id, ids)
    return {
        "input_word_ids": ids,
        "input_mask": tf.cast(position <= last_sep, tf.int32),
        "input_type_ids": tf.cast((position > first_sep) & (position <= last_sep), tf.int32),
        "sentence_order_labels": tf.cast(changed, tf.int32),
        "sentence_order_weights": tf.cast(has_label, tf.float32),
    }
