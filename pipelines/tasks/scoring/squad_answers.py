"""Decodes a model's outputs for windows into answers, which are texts from the paragraph."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..reading.squad_windows import Window

# Number of spans per answer to consider in a window. Several spans may give the same answer, if
# they only differ in a space.
_SPANS_PER_ANSWER = 4
# The score if there is no valid span, as in the reference.
_NO_SPAN_SCORE = -2e6


@dataclasses.dataclass(frozen=True)
class Answer:
    """A model's answer to a question.

    `candidates` are distinct texts with their scores, best first. They are empty if there is no
    valid span. A higher `null_odds` means that the text is less likely to contain an answer.
    """

    candidates: list[tuple[str, float]]
    null_odds: float

    @property
    def text(self) -> str:
        """The best text, even if "no answer" is more likely."""
        return self.candidates[0][0] if self.candidates else ""

    @property
    def score(self) -> float:
        """The score of the best text."""
        return self.candidates[0][1] if self.candidates else _NO_SPAN_SCORE


def answer_by_spans(
    context: str,
    windows: Sequence[Window],
    outputs: Sequence[dict[str, np.ndarray]],
    max_answer_length: int,
    n_best_size: int,
) -> Answer:
    """Decodes AlbertForQuestionAnswering: compares the best span with the span at [CLS].

    A span is only considered in the window where its start has the maximum context. `windows` are
    all windows of a question. `outputs` contains `start_logits` and `end_logits`, float [L], for
    each window. `max_answer_length` is in pieces.

    Source: BERT's and the reference's run_squad.
    Deviation: they only consider pairs of the n_best_size best starts and ends, and answer "empty"
    if no pair is valid. Here all pairs are considered.
    """
    spans, null_scores = [], []
    for window, output in zip(windows, outputs):
        place = slice(window.offset, window.offset + window.last - window.first)
        best = _best_spans(
            np.where(window.is_max_context, output["start_logits"][place], -np.inf),
            output["end_logits"][place].astype(np.float64),
            max_answer_length,
            n_best_size * _SPANS_PER_ANSWER,
        )
        spans += [(score, window, first, last) for score, first, last in best]
        null_scores.append(float(output["start_logits"][0]) + float(output["end_logits"][0]))
    candidates = _as_texts(context, spans, n_best_size)
    best_score = candidates[0][1] if candidates else _NO_SPAN_SCORE
    return Answer(candidates, min(null_scores) - best_score)


def answer_by_beams(
    context: str,
    windows: Sequence[Window],
    outputs: Sequence[dict[str, np.ndarray]],
    max_answer_length: int,
    n_best_size: int,
) -> Answer:
    """Decodes AlbertForAnswerableQuestionAnswering. It has the best starts, and ends for each.

    For each window, `outputs` contains `start_top_log_probs` and `start_top_index` [starts],
    `end_top_log_probs` and `end_top_index` [starts * ends], and `cls_logits` []. For other
    arguments see answer_by_spans.

    Source: the reference's squad_utils.write_predictions_v2.
    """
    spans = []
    for window, output in zip(windows, outputs):
        ends_of_start = len(output["end_top_index"]) // len(output["start_top_index"])
        firsts = np.repeat(output["start_top_index"], ends_of_start) - window.offset
        lasts = output["end_top_index"] - window.offset
        scores = np.repeat(output["start_top_log_probs"].astype(np.float64), ends_of_start)
        scores += output["end_top_log_probs"]
        for score, first, last in zip(scores.tolist(), firsts.tolist(), lasts.tolist()):
            is_in_window = 0 <= first <= last < window.last - window.first
            if (
                is_in_window
                and window.is_max_context[first]
                and last - first < max_answer_length
                and np.isfinite(score)
            ):
                spans.append((score, window, first, last))
    null_odds = min(float(output["cls_logits"]) for output in outputs)
    return Answer(_as_texts(context, spans, n_best_size), null_odds)


def _best_spans(
    starts: np.ndarray, ends: np.ndarray, max_length: int, count: int
) -> list[tuple[float, int, int]]:
    """Returns (score, first, last) of the spans with the highest starts[first] + ends[last].

    `starts` and `ends` are float64 [pieces]. No span begins where `starts` is -inf. `max_length` is
    in pieces.
    """
    if not len(starts):
        return []
    width = min(max_length, len(ends))
    padded = np.concatenate([ends, np.full(width - 1, -np.inf)])
    # scores[first, length - 1]
    scores = starts[:, np.newaxis] + np.lib.stride_tricks.sliding_window_view(padded, width)
    scores = scores.reshape(-1)
    count = min(count, len(scores))
    best = np.sort(np.argpartition(-scores, count - 1)[:count])  # ties: earlier first
    best = best[np.argsort(-scores[best], kind="stable")]
    return [
        (float(scores[i]), int(i) // width, int(i) // width + int(i) % width)
        for i in best
        if np.isfinite(scores[i])
    ]


def _as_texts(
    context: str, spans: list[tuple[float, Window, int, int]], n_best_size: int
) -> list[tuple[str, float]]:
    """Returns the distinct texts of spans with their scores, best first."""
    texts: dict[str, float] = {}
    for score, window, first, last in sorted(spans, key=lambda span: -span[0]):
        start = window.paragraph.starts[window.first + first]
        end = window.paragraph.ends[window.first + last]
        text = context[start : end + 1].strip()
        if text and text not in texts:
            texts[text] = score
            if len(texts) == n_best_size:
                break
    return list(texts.items())
