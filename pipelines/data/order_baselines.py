"""Accuracy of three simple classifiers of sentence order, as baselines of a model's accuracy.

`lengths` sees only how long sentences are. Labels are drawn so that they do not depend on lengths
(see sentence_pairs); the text itself may still reveal the order: documents may open with short
sentences. `words` sees which pieces A and B begin with, without comparing them: it learns how
documents open. `overlap` sees two numbers: the overlap of the words at the junction of A and B, and
at the far ends. A model that beats all three compares the parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from albert_tf.text.tokenization import AlbertTokenizer
from .examples import ExampleOptions
from .masking import unmask
from .pretraining_dataset import evaluation_dataset

BASELINES = ("lengths", "words", "overlap")

# Number of training examples for the classifiers.
_TRAINING_EXAMPLES = 50_000
# Largest number of examples to classify; from a larger split a sample is drawn.
_MOST_EXAMPLES = 200_000
_FOLDS = 5
_ROWS = 256
# Pieces at each end of a part that `words` and `overlap` see.
_WINDOW = 20
_NO_PIECE = -1


class Accuracy(NamedTuple):
    """The number of correct predictions and the number of labels."""

    correct: int
    total: int


class Pairs(NamedTuple):
    """Labelled pairs."""

    labels: np.ndarray  # int32 [n], 1 = changed
    opens: np.ndarray  # bool [n], whether the segment opens its document
    lengths: np.ndarray  # int32 [n, features], see sentence_pairs.length_features
    # int32 [n, 4, 20], pieces at the end of A, the beginning of B, the end of B, and the beginning
    # of A; -1 where there are fewer.
    windows: np.ndarray


def order_baselines(
    record_dir: str,
    split: str,
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    num_examples: int = _MOST_EXAMPLES,
) -> dict[str, dict[str, Accuracy]]:
    """Returns the accuracy of each baseline on the labels of evaluation_dataset's examples.

    Each kind of pair has its own classifiers, fitted on a sample of the training split. For the
    split "train" they are cross-validated in five folds.

    Returns:
      kind of pair -> baseline -> accuracy. Kinds: "openings" and "inside" (documents) where some
      labelled segments open their document, otherwise "pairs". A kind with too few labels to learn
      from is absent.
    """

    def labelled(of_split: str, count: int) -> Pairs:
        dataset = evaluation_dataset(
            record_dir, of_split, options, tokenizer, _ROWS, count, with_lengths=True
        )
        return labelled_pairs(dataset)

    pairs = labelled(split, min(num_examples, _MOST_EXAMPLES))
    fitted_on = pairs if split == "train" else labelled("train", _TRAINING_EXAMPLES)
    found = {}
    kinds = {"openings": True, "inside": False} if pairs.opens.any() else {"pairs": False}
    for kind, opens in kinds.items():
        some = _of_kind(pairs, opens)
        known = some if split == "train" else _of_kind(fitted_on, opens)
        if not len(some.labels) or np.bincount(known.labels, minlength=2).min() < _FOLDS:
            continue
        frequencies = np.bincount(
            known.windows[known.windows != _NO_PIECE], minlength=tokenizer.vocab_size
        )
        makers = {
            "lengths": lambda pairs: pairs.lengths,
            "words": lambda pairs: opening_words(pairs.windows, tokenizer.vocab_size),
            "overlap": lambda pairs: overlaps(pairs.windows, frequencies),  # noqa: B023
        }
        found[kind] = {}
        for name in BASELINES:
            classifier, make = _classifier(name), makers[name]
            if split == "train":
                answers = cross_val_predict(classifier, make(some), some.labels, cv=_FOLDS)
            else:
                answers = classifier.fit(make(known), known.labels).predict(make(some))
            right = int((answers == some.labels).sum())
            found[kind][name] = Accuracy(right, len(some.labels))
    return found


def _classifier(name: str):
    if name == "words":
        return LogisticRegression(C=0.1)  # thousands of features: weights must stay small
    if name == "overlap":
        return LogisticRegression()
    # Few leaves with many pairs each: lengths are weak evidence, which is easily overfitted.
    return HistGradientBoostingClassifier(
        max_iter=50, max_leaf_nodes=8, min_samples_leaf=50, early_stopping=False, random_state=0
    )


def labelled_pairs(dataset: tf.data.Dataset) -> Pairs:
    """Returns the pairs of a dataset (`with_lengths`) that have a label."""
    batches = []
    for batch in dataset.as_numpy_iterator():
        has_label = batch["sentence_order_weights"] > 0
        rows = {name: values[has_label] for name, values in batch.items()}
        batches.append(
            Pairs(
                rows["sentence_order_labels"],
                rows["opens_document"] > 0,
                rows["length_features"],
                _windows(unmask(rows), rows["input_mask"], rows["input_type_ids"]),
            )
        )
    if not batches:
        nothing = np.zeros(0, np.int32)
        windows = np.zeros([0, 4, _WINDOW], np.int32)
        return Pairs(nothing, nothing > 0, np.zeros([0, 1], np.int32), windows)
    return Pairs(*(np.concatenate(parts) for parts in zip(*batches)))


def opening_words(windows: np.ndarray, vocab_size: int) -> sparse.csr_matrix:
    """Returns which pieces are among the first 20 of A (+1) and of B (-1), [n, vocab_size]."""
    matrix = sparse.csr_matrix((len(windows), vocab_size))
    for pieces, sign in ((windows[:, 3], 1.0), (windows[:, 1], -1.0)):
        rows, places = np.nonzero(pieces != _NO_PIECE)
        ones = np.ones(len(rows))
        part = sparse.csr_matrix((ones, (rows, pieces[rows, places])), matrix.shape)
        part.data[:] = sign  # a piece counts once
        matrix = matrix + part
    return matrix


def overlaps(windows: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Returns how much the parts overlap at the junction and at the far ends, float64 [n, 2].

    A piece on both sides counts once, weighted by -log of its share of all pieces: a repeated rare
    word is better evidence than a repeated "the". `frequencies` counts each piece.
    """
    weights = -np.log((frequencies + 1) / (frequencies.sum() + len(frequencies)))

    def overlap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        in_both = (one[:, :, np.newaxis] == other[:, np.newaxis, :]).any(axis=2)
        again = np.tril(one[:, :, np.newaxis] == one[:, np.newaxis, :], -1).any(axis=2)
        counts = in_both & ~again & (one != _NO_PIECE)
        return np.where(counts, weights[one], 0.0).sum(axis=1)

    sums = np.zeros([len(windows), 2])
    for first in range(0, len(windows), 4096):  # bounds the memory
        part = windows[first : first + 4096]
        rows = slice(first, first + 4096)
        sums[rows, 0] = overlap(part[:, 0], part[:, 1])
        sums[rows, 1] = overlap(part[:, 2], part[:, 3])
    return sums


def _of_kind(pairs: Pairs, opens: bool) -> Pairs:
    return Pairs(*(values[pairs.opens == opens] for values in pairs))


def _windows(ids: np.ndarray, mask: np.ndarray, types: np.ndarray) -> np.ndarray:
    """Returns `windows` of Pairs from laid-out examples: [CLS] A [SEP] B [SEP]."""
    length, len_b = mask.sum(axis=1), types.sum(axis=1)
    begin_a, end_a = np.ones_like(length), length - len_b - 1
    begin_b, end_b = end_a + 1, length - 1
    steps = np.arange(_WINDOW)

    def window(begin: np.ndarray, end: np.ndarray, from_end: bool) -> np.ndarray:
        place = end[:, np.newaxis] - 1 - steps if from_end else begin[:, np.newaxis] + steps
        inside = (place >= begin[:, np.newaxis]) & (place < end[:, np.newaxis])
        pieces = np.take_along_axis(ids, np.clip(place, 0, ids.shape[1] - 1), axis=1)
        return np.where(inside, pieces, _NO_PIECE)

    return np.stack(
        [
            window(begin_a, end_a, True),
            window(begin_b, end_b, False),
            window(begin_b, end_b, True),
            window(begin_a, end_a, False),
        ],
        axis=1,
    ).astype(np.int32)
