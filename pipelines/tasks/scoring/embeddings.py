"""Figures of embeddings: ranks of second texts, and vectors of words for comparison."""

import array
import collections
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import sparse, stats
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.preprocessing import normalize
from sklearn.utils import gen_batches
from sklearn.utils.extmath import safe_sparse_dot

from .word_baseline import WORD, has_words

_CELLS = 4_000_000  # cosines that are in memory at once, 8 bytes each


def _pearson(columns: Sequence[np.ndarray], axis: int) -> np.ndarray:
    x, y = (values - values.mean(axis=axis, keepdims=True) for values in columns)
    norms = np.sqrt((x * x).sum(axis=axis) * (y * y).sum(axis=axis))
    return (x * y).sum(axis=axis) / np.maximum(norms, 1e-12)


# Metrics of the ranks of second texts, float64 [..., n]. Higher values are better.
_OF_RANKS: dict[str, Any] = {
    "mrr_at_10": lambda ranks, axis=-1: np.where(ranks <= 10, 1 / ranks, 0).mean(axis=axis),
    "recall_at_1": lambda ranks, axis=-1: (ranks <= 1).mean(axis=axis),
    "recall_at_10": lambda ranks, axis=-1: (ranks <= 10).mean(axis=axis),
}
# Metrics of known scores and cosines, float64 [..., n] each; 0 if either is constant.
_OF_SCORES: dict[str, Any] = {
    "spearman": lambda *xy, axis=-1: _pearson(stats.rankdata(xy, axis=axis), axis),
    "pearson": lambda *xy, axis=-1: _pearson(xy, axis),
}


def _scored(rows: Iterable[dict]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Returns the metrics that apply to the rows, none without ranks and labels, and their data."""
    found: dict[str, array.array] = collections.defaultdict(functools.partial(array.array, "d"))
    for row in rows:
        for n in ["rank"] if "rank" in row else ["label", "prediction"] if "label" in row else []:
            found[n].append(row[n])
    metrics = _OF_RANKS if "rank" in found else _OF_SCORES if found else {}
    return metrics, [*map(np.array, found.values())]


def figures(rows: Iterable[dict]) -> dict[str, float]:
    """Returns the metrics of rows with a `rank`, or with a `label` and a `prediction`."""
    metrics, columns = _scored(rows)
    return {name: float(metric(*columns)) for name, metric in metrics.items()}


def intervals(rows: Iterable[dict]) -> dict[str, list[float]]:
    """Returns 95 % intervals of `figures` by bootstrap of the rows, if there are several."""
    metrics, columns = _scored(rows)
    if not columns or len(columns[0]) == 1:
        return {}
    settings: dict[str, Any] = {"paired": True, "method": "percentile", "n_resamples": 1000}
    settings.update(batch=1 + _CELLS // len(columns[0]), random_state=0)
    found = {name: stats.bootstrap(columns, of, **settings) for name, of in metrics.items()}
    return {name: [*map(float, of.confidence_interval)] for name, of in found.items()}


def ranks(first: Any, second: Any, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Returns the rank of each second text among all different second texts, float64 [n], from 1.

    Other second texts of an equal first text are ignored. Texts of equal cosine have their mean
    rank; NaN has the last. `first` and `second` are vectors of the texts of `pairs`, [n, width].
    """
    texts = np.array(pairs, object)
    of_first = np.unique(texts[:, 0], return_inverse=True)[1]
    _, places, of_second = np.unique(texts[:, 1], return_index=True, return_inverse=True)
    partners = sparse.csr_array((np.ones(len(texts), bool), (of_first, of_second)))
    found = np.zeros(len(texts))
    for rows in gen_batches(len(texts), max(1, _CELLS // len(places))):
        block = safe_sparse_dot(first[rows], second[places].T, dense_output=True)
        own = block[np.arange(len(block)), of_second[rows]][:, np.newaxis]
        block[partners[of_first[rows]].nonzero()] = -np.inf
        higher, equal = ~(block <= own), block == own
        found[rows] = 1 + higher.sum(axis=1) + equal.sum(axis=1) / 2
    return found


def vectors_of_words(texts: Sequence[str]) -> dict[str, sparse.csr_array]:
    """Maps two baselines to vectors of length 1 or 0 of the texts.

    The cosine of "words in common" is the number of words that two texts share, divided by the
    geometric mean of their numbers of different words. Without spaces, 2 to 5 characters are words.
    """
    analyzer, ngrams = ("word", (1, 1)) if has_words(texts) else ("char_wb", (2, 5))
    words = CountVectorizer(analyzer=analyzer, ngram_range=ngrams, token_pattern=WORD, dtype=float)
    counts = words.fit_transform(texts)
    vectors = {"words in common": counts.sign(), "TF-IDF": TfidfTransformer().fit_transform(counts)}
    return {name: sparse.csr_array(normalize(found)) for name, found in vectors.items()}
