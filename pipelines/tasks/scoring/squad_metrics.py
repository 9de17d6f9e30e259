"""SQuAD's metrics as the official evaluate-v1.1.py and evaluate-v2.0.py define them."""

from __future__ import annotations

import collections
import functools
import re
import string
from collections.abc import Mapping, Sequence

import numpy as np

from ..reading.squad_files import Question

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@functools.lru_cache(maxsize=1 << 17)  # the same truths come for each figure at each evaluation
def normalize_answer(text: str) -> str:
    """Returns what is compared of an answer: lower case, no ASCII punctuation, no articles."""
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, truth: str) -> float:
    """Returns 1 if the answers are the same after normalisation, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(truth))


def f1(prediction: str, truth: str, empty_score: float = 0.0) -> float:
    """Returns the harmonic mean of precision and recall over the words of the answers.

    Args:
      prediction: text as the model answers it; it is normalized first.
      truth: one of the right answers; likewise.
      empty_score: what two answers without a word earn: 0 in SQuAD 1.1, 1 in 2.0.
    """
    predicted, true = normalize_answer(prediction).split(), normalize_answer(truth).split()
    if not predicted and not true:
        return empty_score
    common = sum((collections.Counter(predicted) & collections.Counter(true)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(true)
    return 2 * precision * recall / (precision + recall)


def score_v1(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Returns SQuAD 1.1's `exact_match` and `f1` in per cent.

    Each question counts with the best of its answers, and with 0 if it has no prediction.

    Args:
      questions: each with answers.
      predictions: id -> text.
    """
    scores = collections.defaultdict(list)
    for question in questions:
        prediction = predictions.get(question.id)
        for name, compare in (("exact_match", exact_match), ("f1", f1)):
            scores[name].append(
                0.0
                if prediction is None
                else max(compare(prediction, truth) for truth, _ in question.answers)
            )
    return {name: _percentage(values) for name, values in scores.items()}


def score_v2(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    null_threshold: float = 1.0,
) -> dict[str, float]:
    """Returns SQuAD 2.0's metrics in per cent.

    `exact_match`, `f1`, and the same with the prefixes `has_answer_` and `no_answer_` for questions
    with and without an answer, where there are such. With `null_odds` also `best_exact_match`,
    `best_f1` and `best_..._threshold`, at the threshold that is best for these very questions: they
    are optimistic for other questions.

    Args:
      questions: with their right answers; those without any count as unanswerable.
      predictions: id -> text; "" means that the text has no answer.
      null_odds: id -> a number that grows with the doubt that there is an answer.
      null_threshold: no answer where null_odds is above it; the official script's default is 1.

    Deviation: a question without a prediction counts 0; the official script ends in a KeyError.
    """
    has_answer = np.array([bool(question.answers) for question in questions])
    answered = np.array([bool(predictions.get(question.id)) for question in questions])
    metrics, best = {}, {}
    for name, compare in (
        ("exact_match", exact_match),
        ("f1", lambda prediction, truth: f1(prediction, truth, empty_score=1.0)),
    ):
        raw = scores = np.array(
            [
                0.0
                if question.id not in predictions
                else max(compare(predictions[question.id], truth) for truth in _truths(question))
                for question in questions
            ]
        )
        if null_odds is not None:
            odds = np.array([null_odds[question.id] for question in questions])
            scores = np.where(odds > null_threshold, ~has_answer, raw)
            best[f"best_{name}"], best[f"best_{name}_threshold"] = _best_threshold(
                raw, odds, has_answer, answered
            )
        metrics[name] = _percentage(scores)
        for part, chosen in (("has_answer", has_answer), ("no_answer", ~has_answer)):
            if chosen.any():
                metrics[f"{part}_{name}"] = _percentage(scores[chosen])
    return {**metrics, **best}


def _truths(question: Question) -> list[str]:
    # Skip gold answers that normalise to the empty string: an empty prediction would match them.
    return [text for text, _ in question.answers if normalize_answer(text)] or [""]


def _best_threshold(
    raw: np.ndarray, odds: np.ndarray, has_answer: np.ndarray, answered: np.ndarray
) -> tuple[float, float]:
    """Returns the best figure that a threshold on `odds` gives, and that threshold.

    Begins with no question answered, then answers them from the least doubtful on.

    Source: evaluate-v2.0.py, find_best_thresh.
    Deviation: where answering none is best it returns the threshold 0, made for probabilities.
    """
    order = np.argsort(odds, kind="stable")
    change = np.where(has_answer, raw, -1.0 * answered)[order]
    scores = np.cumsum([(~has_answer).sum(), *change])
    best = int(scores.argmax())
    threshold = odds[order[best - 1]] if best else odds[order[0]] - 1.0
    return 100.0 * float(scores[best]) / len(raw), float(threshold)


def _percentage(scores: Sequence[float]) -> float:
    # One after the other, as the official scripts added: np.sum and, from Python 3.12 on, sum()
    # round differently.
    return 100.0 * float(np.cumsum(scores, dtype=np.float64)[-1]) / len(scores)
