"""SQuAD's metrics, as defined by the official evaluate-v1.1.py and evaluate-v2.0.py."""

import collections
import functools
import re
import string
from collections.abc import Callable, Iterable, Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@functools.lru_cache(maxsize=1 << 17)  # each metric and evaluation normalises the same truths
def normalize_answer(text: str) -> str:
    """Normalises an answer: lower case, without ASCII punctuation, articles and extra spaces."""
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, truth: str) -> float:
    """Returns 1 if the answers are equal after normalisation, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(truth))


def f1(prediction: str, truth: str, empty_score: float = 0.0) -> float:
    """Returns the harmonic mean of precision and recall over the words of the answers.

    `empty_score` is returned if both answers have no words. It is 0 in SQuAD 1.1 and 1 in 2.0.
    """
    predicted, true = normalize_answer(prediction).split(), normalize_answer(truth).split()
    if not predicted and not true:
        return empty_score
    common = sum((collections.Counter(predicted) & collections.Counter(true)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(true)
    return 2 * precision * recall / (precision + recall)


def score_v1(
    truths: Sequence[Sequence[str]], predictions: Sequence[str | None]
) -> dict[str, float]:
    """Returns SQuAD 1.1's `exact_match` and `f1` in per cent.

    Each question has one or more answers, and the best match counts. If a prediction is None, its
    score is 0.
    """
    metrics = {"exact_match": exact_match, "f1": f1}
    return {n: _percentage(_best_of_each(of, truths, predictions)) for n, of in metrics.items()}


def _best_of_each(
    compare: Callable[[str, str], float],
    truths: Iterable[Sequence[str]],
    predictions: Sequence[str | None],
) -> np.ndarray:
    return np.array(
        [
            0.0 if prediction is None else max(compare(prediction, truth) for truth in of_question)
            for of_question, prediction in zip(truths, predictions)
        ]
    )


def score_v2(
    truths: Sequence[Sequence[str]],
    predictions: Sequence[str | None],
    null_odds: Sequence[float] | None = None,
    null_threshold: float = 1.0,
) -> dict[str, float]:
    """Returns SQuAD 2.0's metrics in per cent: `exact_match` and `f1`.

    With the prefixes `has_answer_` and `no_answer_`, they cover questions with and without an
    answer, if there are any. Given `null_odds`, `best_exact_match`, `best_f1` and
    `best_..._threshold` use the threshold that is best for these questions.

    Args:
      truths: the correct answers of each question. Questions without any are unanswerable.
      predictions: the predicted text of each question, "" for no answer, None for no prediction.
      null_odds: a number for each question. A higher number means that an answer is less likely.
      null_threshold: if null_odds exceeds it, "no answer" is predicted. The official default is 1.

    Deviation: a question without a prediction scores 0. The official script raises a KeyError.
    """
    has_answer = np.array([bool(of_question) for of_question in truths])
    answered = np.array([bool(prediction) for prediction in predictions])
    metrics, best = {}, {}
    for name, compare in (
        ("exact_match", exact_match),
        ("f1", functools.partial(f1, empty_score=1.0)),
    ):
        raw = scores = _best_of_each(compare, map(_with_words, truths), predictions)
        if null_odds is not None:
            odds = np.array(null_odds)
            scores = np.where(odds > null_threshold, ~has_answer, raw)
            best[f"best_{name}"], best[f"best_{name}_threshold"] = _best_threshold(
                raw, odds, has_answer, answered
            )
        metrics[name] = _percentage(scores)
        for part, chosen in (("has_answer", has_answer), ("no_answer", ~has_answer)):
            if chosen.any():
                metrics[f"{part}_{name}"] = _percentage(scores[chosen])
    return {**metrics, **best}


def _with_words(truths: Sequence[str]) -> list[str]:
    # Skip gold answers that normalise to the empty string: an empty prediction would match them.
    return [text for text in truths if normalize_answer(text)] or [""]


def _best_threshold(
    raw: np.ndarray, odds: np.ndarray, has_answer: np.ndarray, answered: np.ndarray
) -> tuple[float, float]:
    """Returns the best value of a metric over all thresholds on `odds`, and the best threshold.

    Source: evaluate-v2.0.py, find_best_thresh.
    Deviation: if it is best to answer no question, the threshold is the lowest odds minus 1. The
    official script returns 0, which is only suitable for probabilities.
    """
    order = np.argsort(odds, kind="stable")
    change = np.where(has_answer, raw, -1.0 * answered)[order]
    scores = np.cumsum([(~has_answer).sum(), *change])
    best = int(scores.argmax())
    threshold = odds[order[best - 1]] if best else odds[order[0]] - 1.0
    return 100.0 * float(scores[best]) / len(raw), float(threshold)


def _percentage(scores: np.ndarray) -> float:
    # Add in order, as the official scripts do. np.sum rounds differently, and so does sum() from
    # Python 3.12.
    return 100.0 * float(np.cumsum(scores, dtype=np.float64)[-1]) / len(scores)
