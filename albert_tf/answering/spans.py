"""Turns the outputs of a question-answering model into the best spans of each window of a text."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# The score if there is no valid span, as in the reference.
NO_SPAN_SCORE = -2e6


class Spans(NamedTuple):
    """The best spans of each window, best first; equal ones in the order of their positions.

    Attributes:
      score: float64 [windows, spans]. -inf marks a span that is no answer.
      first, last: int64 [windows, spans], positions in the sequence.
      no_answer_score: float64 [windows], higher if the window does not contain the answer.
    """

    score: tf.Tensor
    first: tf.Tensor
    last: tf.Tensor
    no_answer_score: tf.Tensor


def best_spans(
    outputs: Mapping[str, tf.Tensor],
    may_start: tf.Tensor,
    may_end: tf.Tensor,
    max_answer_length: int,
    count: int,
    visible: tuple[tf.Tensor, tf.Tensor] | None = None,
) -> Spans:
    """Returns the best spans of each window.

    Args:
      outputs: outputs of AlbertForQuestionAnswering, which scores every span and compares the best
        with the span at [CLS], or of AlbertForAnswerableQuestionAnswering, which has the best
        starts, and ends for each.
      may_start: bool [windows, L], True at pieces of the text that have the maximum context in this
        window.
      may_end: bool [windows, L], True at pieces of the text. False at the last position.
      max_answer_length: maximum number of pieces of a span.
      count: number of spans to return, or fewer if the windows have fewer.
      visible: visible_before and visible_through of AlignedPieces, int64 [windows, L]. If given,
        blank spans are no answers.

    Source: the reference's squad_utils.write_predictions_v1 and _v2, which follow BERT's run_squad.
    Deviation: they only consider pairs of the n_best_size best starts and ends, and answer "empty"
    if no pair is valid. Here all pairs are considered.
    """
    decode = _all_spans if "start_logits" in outputs else _beams
    score, first, last, no_answer_score = decode(outputs, may_start, may_end, max_answer_length)
    if visible is not None:
        before, through = visible
        score = tf.where(_at(through, last) > _at(before, first), score, -np.inf)
    best, places = tf.math.top_k(score, tf.minimum(count, tf.shape(score)[1]))
    first, last = (
        tf.gather(positions, places, axis=-1, batch_dims=positions.shape.rank - 1)
        for positions in (first, last)
    )
    return Spans(best, first, last, no_answer_score)


def null_odds(no_answer_score, best_score, has_answerability_head: bool):
    """Returns a number or tensor that is higher if a text is less likely to contain an answer.

    `no_answer_score` is the lowest of all windows, and `best_score` the highest of all spans.
    """
    return no_answer_score if has_answerability_head else no_answer_score - best_score


def _all_spans(outputs, may_start, may_end, longest: int):
    """Returns scores [windows, spans], first and last positions [spans], and no_answer_score."""
    # Use float64, because different sums may become equal if they are rounded to float32.
    starts, ends = (tf.cast(outputs[f"{end}_logits"], tf.float64) for end in ("start", "end"))
    no_answer_score = starts[:, 0] + ends[:, 0]
    starts, ends = _where(may_start, starts), _where(may_end, ends)
    seq_len = tf.shape(starts, out_type=tf.int64)[1]
    number = tf.range(seq_len * longest)
    first = number // longest
    last = tf.minimum(first + number % longest, seq_len - 1)
    return _at(starts, first) + _at(ends, last), first, last, no_answer_score


def _beams(outputs, may_start, may_end, longest: int):
    """Returns the same as _all_spans, with other positions [windows, spans] for each window."""
    num_ends = tf.shape(outputs["end_top_index"])[1] // tf.shape(outputs["start_top_index"])[1]
    first = tf.repeat(outputs["start_top_index"], num_ends, axis=1)
    score = tf.repeat(tf.cast(outputs["start_top_log_probs"], tf.float64), num_ends, axis=1)
    score += tf.cast(outputs["end_top_log_probs"], tf.float64)
    first, last = (tf.cast(x, tf.int64) for x in (first, outputs["end_top_index"]))
    is_span = (first <= last) & (last - first < longest)
    score = _where(is_span & _at(may_start, first) & _at(may_end, last), score)
    return score, first, last, tf.cast(outputs["cls_logits"], tf.float64)


def _where(is_valid: tf.Tensor, score: tf.Tensor) -> tf.Tensor:
    """Sets scores that are not valid or not finite to -inf."""
    return tf.where(is_valid & tf.math.is_finite(score), score, -np.inf)


def _at(values: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Returns values [windows, L] at positions, [spans] or [windows, spans]."""
    return tf.gather(values, positions, axis=1, batch_dims=positions.shape.rank - 1)
