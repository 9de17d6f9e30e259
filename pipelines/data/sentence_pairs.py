"""Splits segments into two parts, A and B, and draws labels for the sentence objective.

Sentence lengths alone must not predict the label. Otherwise a model would learn lengths instead of
order. Two effects have to be removed:

1. The first sentence of a segment did not fit into the previous segment, so it is longer than the
average sentence. Therefore B also starts with such a sentence (`choose_pairs`).
2. Two parts of the same segment have a different total length than two parts of different segments.
Therefore the Bs of two neighbouring rows are cut to the same length (`_next_sentence`).
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.text import packing
from .segments import NO_ROOM


class SentenceObjective(NamedTuple):
    """How the two parts of an example are paired and labelled."""

    title: str  # name in reports
    labels: tuple[str, str]  # names of label 0 and label 1
    has_label: bool = True
    swaps: bool = False  # True if label 1 means that A and B are swapped
    pairs_rows: bool = False  # True if label 1 means that B comes from another row


# The values of --sentence_objective. A new value also needs a branch in `choose_pairs`.
SENTENCE_OBJECTIVES = {
    "sop": SentenceObjective("sentence order", ("in order", "swapped"), swaps=True),
    "nsp": SentenceObjective(
        "next sentence", ("consecutive", "another document's"), pairs_rows=True
    ),
    "none": SentenceObjective("no objective", ("in order", "swapped"), has_label=False),
}

# Maximum number of split points per row that `_next_sentence` considers.
_SPLITS_COMPARED = 64


class Part(NamedTuple):
    """Consecutive sentences of one segment; the last one may be cut. All fields are int32 [b]."""

    row: tf.Tensor  # row of the segment
    first: tf.Tensor  # index of the first sentence
    end: tf.Tensor  # index after the last sentence; equals `first` if the part is empty
    begin: tf.Tensor  # position of the first piece in the segment
    length: tf.Tensor  # number of pieces


class Pairs(NamedTuple):
    """The parts and labels of a batch of examples."""

    a: Part
    b: Part  # may be empty
    changed: tf.Tensor  # bool [b], True if A and B are swapped or B is from another document
    has_label: tf.Tensor  # bool [b]
    opens: tf.Tensor  # bool [b], True if a labelled pair starts its document; False for nsp


def choose_pairs(
    segments: dict[str, tf.Tensor],
    split_draws: tf.Tensor,
    change_draws: tf.Tensor,
    objective: SentenceObjective,
    max_seq_length: int,
) -> Pairs:
    """Splits each segment into two parts at a sentence boundary, and changes half of the pairs.

    In a changed pair A and B are swapped (sop), or neighbouring rows (0 and 1, 2 and 3, ...)
    exchange their Bs (nsp). A segment that cannot have a label is not split: it becomes A. If the
    objective has no labels, all segments of two or more sentences are split, and none is changed.

    `segments` are parsed, with at most max_seq_length - 3 pieces each. `split_draws` and
    `change_draws` are float32 [b], uniform in [0, 1).

    Source: Lan et al. 2020, section 3.1; the reference's create_instances_from_document.
    Deviation: the reference draws the split uniformly, so lengths alone predict the order of two
    thirds of the pairs. If a segment has one sentence, the reference adds a B from another document
    and labels the pair "swapped".
    """
    sentences = _sentences(segments)
    if objective.pairs_rows:
        return _next_sentence(segments, sentences, split_draws, change_draws, max_seq_length)
    num_sentences = tf.reduce_sum(tf.cast(sentences > 0, tf.int32), axis=1)
    is_later = tf.range(tf.shape(sentences)[1]) > 0
    can_open = (sentences > 0) & is_later
    if objective.swaps:
        # Sentence 0 is longer than the room left in the previous segment. If B also starts with a
        # sentence longer than this room, a swap does not change the distribution of lengths. At the
        # start of a document the room is 0, so B can start with any sentence.
        room = tf.cast(segments["room_before"], tf.int32)
        can_open &= (sentences > room) & (room != NO_ROOM)
    split = _draw_split(can_open, split_draws, num_sentences)
    has_label = (split < num_sentences) & objective.has_label
    first, second = _parts(sentences, split, num_sentences)
    changed = has_label & (change_draws < 0.5)
    a, b = _where(changed, second, first), _where(changed, first, second)
    opens = has_label & (segments["opens_document"][:, 0] > 0)
    return Pairs(a, b, changed, has_label, opens)


def lay_out(
    pairs: Pairs, segments: dict[str, tf.Tensor], max_seq_length: int, cls_id: int, sep_id: int
) -> dict[str, tf.Tensor]:
    """Builds model inputs `[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]` if B is empty.

    Example: if the pieces [a b c d e] are split after c and the parts are swapped, the result is
    `[CLS] d e [SEP] a b c [SEP]` with label 1.

    Returns:
      dict: int32 [b, L] `input_word_ids`, `input_mask` (1 = real), `input_type_ids` (1 = B and its
      [SEP]); int32 [b] `sentence_order_labels` (1 = changed) and `opens_document` (1 = a labelled
      pair at the start of a document); float32 [b] `sentence_order_weights` (0 = no label).
    """
    pieces = segments["input_ids"]
    row_starts = tf.cast(pieces.row_starts(), tf.int32)
    begin_a, begin_b = (tf.gather(row_starts, p.row) + p.begin for p in (pairs.a, pairs.b))
    len_b = tf.where(pairs.b.length > 0, pairs.b.length, -1)
    parts, special_ids = (begin_a, pairs.a.length, begin_b, len_b), (cls_id, sep_id)
    ids, mask, types = packing.lay_out(pieces.flat_values, parts, max_seq_length, special_ids)
    return {
        "input_word_ids": ids,
        "input_mask": mask,
        "input_type_ids": types,
        "sentence_order_labels": tf.cast(pairs.changed, tf.int32),
        "sentence_order_weights": tf.cast(pairs.has_label, tf.float32),
        "opens_document": tf.cast(pairs.opens, tf.int32),
    }


def _sentences(segments: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the lengths of all sentences in pieces, int32 [b, m]; 0 means no sentence."""
    total = tf.cast(segments["input_ids"].row_lengths(), tf.int32)[:, tf.newaxis]
    begins = segments["sentence_starts"].to_tensor(-1)
    begins = tf.where(begins < 0, total, begins)
    return tf.concat([begins[:, 1:], total], axis=1) - begins


def _parts(sentences: tf.Tensor, split: tf.Tensor, num_sentences: tf.Tensor) -> tuple[Part, Part]:
    """Splits the sentences of each row into two parts before sentence number `split`."""
    rows = tf.range(tf.shape(sentences)[0])
    total = tf.reduce_sum(sentences, axis=1)
    before = tf.range(tf.shape(sentences)[1]) < split[:, tf.newaxis]
    length = tf.reduce_sum(tf.where(before, sentences, 0), axis=1)
    zero = tf.zeros_like(split)
    return (
        Part(rows, zero, split, zero, length),
        Part(rows, split, num_sentences, length, total - length),
    )


def _where(condition: tf.Tensor, one: Part, other: Part) -> Part:
    return Part(*(tf.where(condition, x, y) for x, y in zip(one, other)))


def _draw_split(can_open: tf.Tensor, draws: tf.Tensor, num_sentences: tf.Tensor) -> tf.Tensor:
    """Draws the sentence with which B starts; returns `num_sentences` if there is no candidate."""
    rank = tf.cumsum(tf.cast(can_open, tf.int32), axis=1)
    # The product of a float32 below 1 and an integer n is less than n, even after rounding.
    chosen = tf.cast(draws * tf.cast(rank[:, -1], tf.float32), tf.int32)
    before = tf.reduce_sum(tf.cast(rank <= chosen[:, tf.newaxis], tf.int32), axis=1)
    return tf.minimum(before, num_sentences)


def _next_sentence(
    segments: dict[str, tf.Tensor],
    sentences: tf.Tensor,
    split_draws: tf.Tensor,
    change_draws: tf.Tensor,
    max_seq_length: int,
) -> Pairs:
    """Splits two neighbouring rows so that their Bs differ least in length; cuts the longer B.

    Bs are cut whether or not they are exchanged, so lengths are distributed equally for both
    labels. If several splits are equally good, one is drawn. Two rows get no labels if their Bs
    differ by more than max_seq_length / 16 pieces or both are from the same document.
    """
    num_sentences = tf.reduce_sum(tf.cast(sentences > 0, tf.int32), axis=1)
    rows = tf.shape(sentences)[0]
    # Rows 0 and 1, 2 and 3, ... are neighbours. An unpaired last row is its own neighbour.
    neighbour = tf.minimum(tf.bitwise.bitwise_xor(tf.range(rows), 1), rows - 1)
    is_even = tf.range(rows) % 2 == 0
    # [b / 2, 2, width]: length of B if B starts at this sentence.
    paired = tf.pad(sentences, [[0, rows % 2], [0, 0]])
    paired = tf.reshape(paired, [-1, 2, tf.shape(sentences)[1]])
    width = tf.minimum(tf.shape(sentences)[1], _SPLITS_COMPARED)
    len_b = tf.cumsum(paired, axis=2, reverse=True)[:, :, :width]
    can_open = (paired[:, :, :width] > 0) & (tf.range(width) > 0)
    can_open = can_open[:, 0, :, tf.newaxis] & can_open[:, 1, tf.newaxis, :]
    difference = tf.abs(len_b[:, 0, :, tf.newaxis] - len_b[:, 1, tf.newaxis, :])
    difference = tf.where(can_open, difference, max_seq_length)
    least = tf.reduce_min(difference, axis=[1, 2], keepdims=True)
    alike = (difference == least) & (least <= max_seq_length // 16)
    flat = tf.reshape(alike, [-1, width * width])
    found = _draw_split(flat, split_draws[::2], width * width)
    has_split = tf.repeat(found < width * width, 2)[:rows]
    splits = tf.reshape(tf.stack([found // width, found % width], axis=1), [-1])[:rows]

    document = segments["document_id"][:, 0]
    has_label = has_split & (tf.gather(document, neighbour) != document)
    first, second = _parts(sentences, tf.where(has_label, splits, num_sentences), num_sentences)
    shorter = tf.minimum(second.length, tf.gather(second.length, neighbour))
    # Both rows of a pair change together, so that each B is used exactly once.
    draw_of_both = tf.where(is_even, change_draws, tf.gather(change_draws, neighbour))
    changed = has_label & (draw_of_both < 0.5)
    source = tf.where(changed, neighbour, tf.range(rows))
    second = Part(*(tf.gather(values, source) for values in second))
    length = tf.where(has_label, shorter, second.length)
    opens = tf.zeros_like(has_label)
    return Pairs(first, second._replace(length=length), changed, has_label, opens)
