"""Figures of embeddings: ranks of second texts, and vectors of words for comparison."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse, stats
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.preprocessing import normalize

from .word_baseline import WORD, has_words

_CELLS = 4_000_000  # cosines that are in memory at once, 8 bytes each


def _pearson(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
    x, y = (values - values.mean(axis=axis, keepdims=True) for values in (x, y))
    norms = np.sqrt((x * x).sum(axis=axis) * (y * y).sum(axis=axis))
    return (x * y).sum(axis=axis) / np.maximum(norms, 1e-12)


# Functions of the ranks of second texts, float64 [..., n]. Higher values are better.
OF_RANKS: Mapping[str, Callable[..., np.ndarray]] = {
    "mrr_at_10": lambda ranks, axis=-1: np.where(ranks <= 10, 1 / ranks, 0).mean(axis=axis),
    "recall_at_1": lambda ranks, axis=-1: (ranks <= 1).mean(axis=axis),
    "recall_at_10": lambda ranks, axis=-1: (ranks <= 10).mean(axis=axis),
}
# Functions of the known scores and the cosines, float64 [..., n]; 0 if either is constant.
OF_SCORES: Mapping[str, Callable[..., np.ndarray]] = {
    "spearman": lambda x, y, axis=-1: _pearson(
        stats.rankdata(x, axis=axis), stats.rankdata(y, axis=axis), axis
    ),
    "pearson": _pearson,
}


def intervals_of_rows(
    columns: Sequence[np.ndarray], metrics: Mapping[str, Callable[..., np.ndarray]]
) -> dict[str, list[float]]:
    """Returns 95 % intervals by bootstrap of the rows, if n > 1. `columns` are [n] each."""
    if len(columns[0]) < 2:
        return {}
    settings: dict[str, Any] = {"paired": True, "vectorized": True, "method": "percentile"}
    settings.update(n_resamples=1000, batch=1 + _CELLS // len(columns[0]), random_state=0)
    found = {name: stats.bootstrap(columns, of, **settings) for name, of in metrics.items()}
    return {name: [*map(float, of.confidence_interval)] for name, of in found.items()}


def cosines(first: Any, second: Any) -> np.ndarray:
    """Returns the cosine of each pair of rows, float64 [n]; 0 for a zero vector.

    Both arguments are arrays or sparse matrices, [n, width], with rows of length 1 or 0.
    """
    products = first.multiply(second) if sparse.issparse(first) else first * second
    return np.asarray(products.sum(axis=1), np.float64).ravel()


def ranks(first: Any, second: Any, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Returns the rank of each second text among all different second texts, float64 [n], from 1.

    Other second texts of an equal first text are ignored. Texts of equal cosine have their mean
    rank; NaN has the last. For the vectors see `cosines`. `pairs` has the texts.
    """
    firsts, seconds = (np.array(texts, object) for texts in zip(*pairs))
    of_first = np.unique(firsts, return_inverse=True)[1]
    _, places, of_second = np.unique(seconds, return_index=True, return_inverse=True)
    candidates = second[places]
    partners = sparse.csr_matrix((np.ones(len(firsts), bool), (of_first, of_second)))
    found, size = np.zeros(len(firsts)), max(1, _CELLS // len(places))
    for begin in range(0, len(firsts), size):
        rows = slice(begin, begin + size)
        block = first[rows] @ candidates.T
        block = block.toarray() if sparse.issparse(block) else block
        own = block[np.arange(len(block)), of_second[rows]][:, np.newaxis]
        block[partners[of_first[rows]].nonzero()] = -np.inf
        higher, equal = ~(block <= own), block == own
        found[rows] = 1 + higher.sum(axis=1) + equal.sum(axis=1) / 2
    return found


def vectors_of_words(pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[Any, Any]]:
    """Maps two baselines to sparse vectors of the first and the second texts.

    The cosine of "words in common" is the number of words that two texts share, divided by the
    geometric mean of their numbers of different words. Both know only the texts of `pairs`. For
    scripts without spaces, words are sequences of 2 to 5 characters.
    """
    texts = [text for pair in pairs for text in pair]
    analyzer, ngrams = ("word", (1, 1)) if has_words(texts) else ("char_wb", (2, 5))
    words = CountVectorizer(analyzer=analyzer, ngram_range=ngrams, token_pattern=WORD, dtype=float)
    counts = words.fit_transform(texts)
    vectors = {"words in common": counts.sign(), "TF-IDF": TfidfTransformer().fit_transform(counts)}
    rows = {name: normalize(found) for name, found in vectors.items()}
    return {name: (of_texts[::2], of_texts[1::2]) for name, of_texts in rows.items()}
