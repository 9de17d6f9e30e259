"""Turns the best spans of a question's windows into texts of the paragraph."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from albert_tf.answering.spans import NO_SPAN_SCORE, best_spans, null_odds
from albert_tf.text.in_graph import on_host
from ..reading.squad_windows import Window

# Maximum number of windows whose spans are scored at once. All spans of one take up to 500 kB.
_WINDOWS_AT_ONCE = 128


@dataclasses.dataclass(frozen=True)
class Answer:
    """A model's answer to a question.

    `candidates` are distinct texts with their scores, best first. They are empty if there is no
    valid span. `score` is the score of the best. For `null_odds` see albert_tf.answering.spans.
    """

    candidates: list[tuple[str, float]]
    score: float
    null_odds: float

    @property
    def text(self) -> str:
        """The best text, even if "no answer" is more likely."""
        return self.candidates[0][0] if self.candidates else ""


def find_answers(
    contexts: Sequence[str],
    windows: Sequence[Window],
    outputs: Sequence[dict[str, np.ndarray]],
    max_answer_length: int,
    n_best_size: int,
) -> Iterator[Answer]:
    """Yields the answer to each question, given its context.

    A span is only considered in the window where its start has the maximum context. `windows` are
    in the order of the questions. `outputs` are the model's outputs for them; see best_spans.
    """
    has_beams = "start_logits" not in outputs[0]
    # Several spans give the same answer if they only differ in a space.
    count = len(outputs[0]["end_top_index"]) if has_beams else n_best_size * 4

    def spans_of_windows():
        for begin in range(0, len(windows), _WINDOWS_AT_ONCE):
            part = slice(begin, begin + _WINDOWS_AT_ONCE)
            with on_host():
                found = best_spans(*_inputs(windows[part], outputs[part]), max_answer_length, count)
            yield from zip(windows[part], *(values.numpy().tolist() for values in found))

    of_question = itertools.groupby(spans_of_windows(), key=lambda row: row[0].example)
    for context, (_, rows) in zip(contexts, of_question, strict=True):
        spans: list[tuple] = []
        lowest = np.inf
        for window, scores, firsts, lasts, no_answer_score in rows:
            spans += zip(scores, firsts, lasts, itertools.repeat(window))
            lowest = min(lowest, no_answer_score)
        candidates = _as_texts(context, spans, n_best_size)
        score = candidates[0][1] if candidates else NO_SPAN_SCORE
        yield Answer(candidates, score, null_odds(lowest, score, has_beams))


def _inputs(
    windows: Sequence[Window], outputs: Sequence[dict[str, np.ndarray]]
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns the first three arguments of best_spans, as long as the longest window."""
    sizes = [window.last - window.first for window in windows]
    length = max(window.offset + size for window, size in zip(windows, sizes)) + 1
    may_start, may_end = np.zeros([2, len(windows), length], bool)
    for row, (window, size) in enumerate(zip(windows, sizes)):
        may_start[row, window.offset : window.offset + size] = window.is_max_context
        may_end[row, window.offset : window.offset + size] = True
    batch = {}
    for name in outputs[0]:
        values = [output[name] for output in outputs]
        if name in ("start_logits", "end_logits"):  # What resize adds is not in the window.
            values = [np.resize(of_window, length) for of_window in values]
        # Positions behind the longest window are no answers, and neither is its last one.
        is_index = name.endswith("_index")
        batch[name] = np.minimum(values, length - 1) if is_index else np.stack(values)
    return batch, may_start, may_end


def _as_texts(context: str, spans: list[tuple], n_best_size: int) -> list[tuple[str, float]]:
    """Returns the distinct texts of spans (score, first, last, window), best first."""
    texts: dict[str, float] = {}
    for score, first, last, window in sorted(spans, key=lambda span: -span[0]):
        if score == -np.inf:
            break
        before = window.first - window.offset
        start, end = window.paragraph.starts[before + first], window.paragraph.ends[before + last]
        text = context[start : end + 1].strip()
        if text and text not in texts:
            texts[text] = score
            if len(texts) == n_best_size:
                break
    return list(texts.items())
