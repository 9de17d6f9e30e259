"""A linear model of words: the baseline that every fine-tuned model has to beat."""

import unicodedata
import warnings
from collections.abc import Sequence

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from threadpoolctl import threadpool_limits

# A fit takes some ten seconds and 0.7 GB at most. Weights are those of all labels together.
_MOST_FEATURES, _MOST_WEIGHTS = 50_000, 1_000_000
MOST_ROWS, _MOST_ROWS_TIMES_LABELS = 20_000, 100_000
_MOST_CHARACTERS, _MOST_WITHOUT_SPACES = 6_000_000, 300_000
# Vowel signs, accents and joiners, which \w lacks, belong to the word before them. All are above
# U+02FF. The lookahead makes matching about five times as fast.
_MARKS = "".join(c for c in map(chr, range(0x20000)) if unicodedata.category(c)[0] == "M")
_MARK = rf"(?=[^\0-\u02ff])[{_MARKS}\u200c\u200d]"
WORD = rf"\w+(?:{_MARK}\w*)*|[^\w\s]+"  # punctuation, too: a text may have nothing else

Texts = Sequence[tuple[str, ...]]  # a text or a pair of texts in each row


def answers_from_words(train: Texts, answers: np.ndarray, texts: Texts) -> np.ndarray:
    """Predicts the answers of `texts` with a linear model of TF-IDF features, fitted on `train`.

    `answers` are classes, int [n] (logistic regression); numbers, float64 [n] (ridge regression);
    or several labels a row, multi-hot [n, labels] (a logistic regression for each label). The
    result has the same form. The settings of the linear models are scikit-learn's defaults.
    """
    if len(np.unique(answers)) == 1 or not any(text.strip() for row in train for text in row):
        return constant_answers(answers, len(texts))
    if answers.ndim == 2:
        model, labels = OneVsRestClassifier(LogisticRegression()), answers.shape[1]
    elif np.issubdtype(answers.dtype, np.floating):
        model, labels = Ridge(), 1
    else:
        model, labels = LogisticRegression(), answers.max() + 1
    known = [text for row in train for text in row]
    analyzer, ngrams = ("word", (1, 2)) if has_words(known) else ("char_wb", (2, 5))
    most = min(_MOST_FEATURES, _MOST_WEIGHTS // labels)
    vectorizer = TfidfVectorizer(
        analyzer=analyzer, ngram_range=ngrams, token_pattern=WORD, max_features=most
    )
    # Several threads of BLAS only wait for each other: seven times the CPU time of one.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of 100 steps, and of labels that all rows or none have
        vectorizer.fit(known)
        model.fit(_features(vectorizer, train), answers)
    return model.predict(_features(vectorizer, texts))


def constant_answers(answers: np.ndarray, number: int) -> np.ndarray:
    """Repeats the most frequent class, the mean, or the labels of at least half of the rows.

    For `answers` see answers_from_words. The result has the same form, with `number` rows.
    """
    if answers.ndim == 2 or np.issubdtype(answers.dtype, np.floating):
        mean = answers.mean(axis=0)
        return np.stack([mean >= 0.5 if answers.ndim == 2 else mean] * number)
    return np.full(number, np.bincount(answers).argmax())


def sampled_places(rows: Texts, labels: int) -> np.ndarray:
    """Returns the places of the rows to fit on, int64 [at most rows], ascending: all, or a sample.

    `labels` is their number, 1 for numbers.
    """
    texts = [text for row in rows for text in row]
    most = _MOST_CHARACTERS if has_words(texts) else _MOST_WITHOUT_SPACES
    by_length = 1 + most * len(rows) // max(1, sum(map(len, texts)))
    number = min(MOST_ROWS, by_length, max(1, _MOST_ROWS_TIMES_LABELS // labels))
    return np.sort(np.random.default_rng(0).permutation(len(rows))[:number])


def has_words(texts: Sequence[str]) -> bool:
    """Whether texts have a space per 20 characters, unlike single words and some scripts."""
    return sum(map(len, texts)) < 20 * sum(text.count(" ") for text in texts)


def _features(vectorizer: TfidfVectorizer, rows: Texts) -> sparse.csr_matrix:
    """Returns [rows, features]. Pairs: of both texts, their products, the sum of the products."""
    columns = [vectorizer.transform(texts) for texts in zip(*rows)]
    if len(columns) == 2:
        shared = columns[0].multiply(columns[1])
        columns += [shared, sparse.csr_matrix(shared.sum(axis=1))]
    return sparse.hstack(columns).tocsr()
