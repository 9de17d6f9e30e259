"""Figures of embeddings: ranks of second texts, and vectors of words for comparison."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.preprocessing import normalize

from .word_baseline import has_words

_CELLS = 4_000_000  # cosines that are in memory at once, 8 bytes each


def _pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = (values - values.mean(axis=-1, keepdims=True) for values in (x, y))
    norms = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    return (x * y).sum(axis=-1) / np.maximum(norms, 1e-12)


# Maps names to functions of the ranks, float64 [..., n]; higher values are better.
OF_RANKS: Mapping[str, Callable[..., np.ndarray]] = {
    "mrr_at_10": lambda ranks: np.where(ranks <= 10, 1 / ranks, 0).mean(axis=-1),
    "recall_at_1": lambda ranks: (ranks <= 1).mean(axis=-1),
    "recall_at_10": lambda ranks: (ranks <= 10).mean(axis=-1),
}
# Functions of the known scores and the cosines, float64 [..., n]; 0 if either is constant.
OF_SCORES: Mapping[str, Callable[..., np.ndarray]] = {
    "spearman": lambda *x: _pearson(*(stats.rankdata(values, axis=-1) for values in x)),
    "pearson": _pearson,
}


def cosines(first: Any, second: Any) -> np.ndarray:
    """Returns the cosine of each pair of rows, float64 [n]; 0 for a zero vector.

    Both arguments are arrays or sparse matrices, [n, width], with rows of length 1 or 0.
    """
    products = first.multiply(second) if hasattr(first, "multiply") else first * second
    return np.asarray(products.sum(axis=1), np.float64).ravel()


def ranks(first: Any, second: Any, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Returns the rank of each second text among all different second texts, float64 [n], from 1.

    Other second texts of an equal first text are ignored. Texts of equal cosine have their mean
    rank. For the vectors see `cosines`. `pairs` has the texts.
    """
    (of_first, _), (of_second, places) = map(_numbered, zip(*pairs))
    candidates = second[places]
    partners: dict[int, set[int]] = {}
    for one, other in zip(of_first, of_second):
        partners.setdefault(one, set()).add(other)
    found = np.zeros(len(of_first))
    size = max(1, _CELLS // len(places))
    for begin in range(0, len(found), size):
        rows = slice(begin, begin + size)
        block = first[rows] @ candidates.T
        block = block.toarray() if hasattr(block, "toarray") else np.array(block)
        own = block[np.arange(len(block)), of_second[rows]].copy()
        for row, number in zip(block, of_first[rows]):
            row[[*partners[number]]] = -np.inf
        higher = (block > own[:, np.newaxis]).sum(axis=1)
        equal = (block == own[:, np.newaxis]).sum(axis=1)
        found[rows] = 1 + higher + equal / 2
    return found


def _numbered(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns numbers that are equal for equal texts, int64 [n], and the first place of each."""
    numbers: dict[str, int] = {}
    of_text = np.array([numbers.setdefault(text, len(numbers)) for text in texts])
    return of_text, np.unique(of_text, return_index=True)[1]


def vectors_of_words(pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[Any, Any]]:
    """Maps two baselines to sparse vectors of the first and the second texts.

    The cosine of "words in common" is the number of words that two texts share, divided by the
    geometric mean of their numbers of different words. Both know only the texts of `pairs`. For
    scripts without spaces, words are sequences of 2 to 5 characters.
    """
    texts = [text for pair in pairs for text in pair]
    analyzer, ngrams = ("word", (1, 1)) if has_words(texts) else ("char_wb", (2, 5))
    settings: dict[str, Any] = {"analyzer": analyzer, "ngram_range": ngrams}
    settings["token_pattern"] = r"\w+|[^\w\s]+"  # punctuation, too: a text may have nothing else
    found = {}
    for name, vectorizer in (
        ("words in common", CountVectorizer(binary=True, dtype=np.float64, **settings)),
        ("TF-IDF", TfidfVectorizer(**settings)),
    ):
        vectors = normalize(vectorizer.fit_transform(texts))
        found[name] = vectors[::2], vectors[1::2]
    return found
