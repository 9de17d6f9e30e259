"""Trains two simple sentence-order classifiers as baselines for a model's accuracy.

`words` uses the first pieces of A and of B, so it learns how documents start. `overlap` uses two
numbers: the word overlap at the junction of A and B, and the word overlap of their outer ends. If a
model beats both, it must be comparing the two parts.
"""

from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from albert_tf.text.tokenization import AlbertTokenizer
from .examples import ExampleOptions
from .masking import unmask
from .pretraining_dataset import evaluation_dataset

_TRAINING_EXAMPLES = 50_000
_CLASSIFIED_EXAMPLES = 200_000  # a larger split is sampled
_FOLDS = 5
_WINDOW = 20  # number of pieces at each end of a part that `words` and `overlap` use
_NO_PIECE = -1


class Pairs(NamedTuple):
    """Labelled pairs."""

    labels: np.ndarray  # int32 [n], 1 = changed
    opens: np.ndarray  # bool [n], True for the first segment of a document
    # int32 [n, 4, 20], the pieces at the end of A, the start of B, the end of B and the start of A.
    # Shorter parts are padded with -1.
    windows: np.ndarray


BASELINES = {
    "words": LogisticRegression(C=0.1),  # strong regularisation for thousands of features
    "overlap": LogisticRegression(),
}


def order_baselines(
    record_dir: str,
    split: str,
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    num_examples: int = _CLASSIFIED_EXAMPLES,
) -> dict[str, dict[str, tuple[int, int]]]:
    """Computes the accuracy of each baseline on the examples of evaluation_dataset.

    For each kind of pair, separate classifiers are fitted on a sample of the training split, or by
    five-fold cross-validation if `split` is "train".

    Returns {kind of pair: {baseline: (correct predictions, labels)}}. The kinds are "openings"
    (first segments of documents) and "inside" (other segments), or only "pairs" if no labelled
    segment is the first of its document. Kinds with too few labels for training are omitted.
    """
    count = min(num_examples, _CLASSIFIED_EXAMPLES)
    pairs = fitted_on = labelled_pairs(record_dir, split, options, tokenizer, count)
    if split != "train":
        fitted_on = labelled_pairs(record_dir, "train", options, tokenizer, _TRAINING_EXAMPLES)
    found: dict[str, dict[str, tuple[int, int]]] = {}
    kinds = {"openings": True, "inside": False} if pairs.opens.any() else {"pairs": False}
    for kind, opens in kinds.items():
        known, asked = (Pairs(*(v[of.opens == opens] for v in of)) for of in (fitted_on, pairs))
        # Cross-validation needs at least one example of each label per fold.
        if not len(asked.labels) or np.bincount(known.labels, minlength=2).min() < _FOLDS:
            continue
        pieces = known.windows[known.windows != _NO_PIECE]
        frequencies = np.bincount(pieces, minlength=tokenizer.vocab_size)
        found[kind] = {}
        for name, classifier in BASELINES.items():
            evidence = features(name, asked, frequencies)
            if split == "train":
                answers = cross_val_predict(classifier, evidence, asked.labels, cv=_FOLDS)
            else:
                classifier.fit(features(name, known, frequencies), known.labels)
                answers = classifier.predict(evidence)
            found[kind][name] = int((answers == asked.labels).sum()), len(answers)
    return found


def labelled_pairs(
    record_dir: str, split: str, options: ExampleOptions, tokenizer: AlbertTokenizer, count: int
) -> Pairs:
    """Returns the labelled pairs among `count` examples of evaluation_dataset."""
    nothing = np.zeros(0, np.int32)
    batches = [Pairs(nothing, nothing > 0, np.zeros([0, 4, _WINDOW], int))]
    data = evaluation_dataset(record_dir, split, options, tokenizer, 256, count)
    for batch in data.as_numpy_iterator():
        rows = {name: values[batch["sentence_order_weights"] > 0] for name, values in batch.items()}
        windows = _windows(unmask(rows), rows["input_mask"], rows["input_type_ids"])
        opens = rows["opens_document"] > 0
        batches.append(Pairs(rows["sentence_order_labels"], opens, windows))
    return Pairs(*(np.concatenate(parts) for parts in zip(*(batches[1:] or batches))))


def features(name: str, pairs: Pairs, frequencies: np.ndarray) -> np.ndarray | sparse.csr_matrix:
    """Returns the features of a baseline, [n, features].

    `words` has 1 for the first 20 pieces of A, -1 for the first 20 of B, 0 for both and for others.
    """
    if name == "overlap":
        return overlaps(pairs.windows, frequencies)
    among = []
    for pieces in (pairs.windows[:, 3], pairs.windows[:, 1]):
        rows, places = np.nonzero(pieces != _NO_PIECE)
        cells = np.ones(len(rows), bool), (rows, pieces[rows, places])  # repeated pieces count once
        among.append(sparse.csr_matrix(cells, (len(pieces), len(frequencies))).astype(np.float64))
    return among[0] - among[1]


def overlaps(windows: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Returns the word overlap of A and B at the junction and at the outer ends, float64 [n, 2].

    Each shared piece counts once, weighted by -log of its relative frequency.
    """
    weights = -np.log((frequencies + 1) / (frequencies.sum() + len(frequencies)))
    found = []
    for part in np.array_split(windows, len(windows) // 4096 + 1):  # limits memory use
        # Compare the end of A with the start of B, and the end of B with the start of A.
        one, other = part[:, [0, 2]], part[:, [1, 3]]
        in_both = (one[..., np.newaxis] == other[..., np.newaxis, :]).any(axis=-1)
        # True for pieces that occur earlier in `one`.
        again = np.tril(one[..., np.newaxis] == one[..., np.newaxis, :], -1).any(axis=-1)
        counts = in_both & ~again & (one != _NO_PIECE)
        found.append(np.where(counts, weights[one], 0.0).sum(axis=-1))
    return np.concatenate(found)


def _windows(ids: np.ndarray, mask: np.ndarray, types: np.ndarray) -> np.ndarray:
    """Returns the `windows` of Pairs for examples of the form [CLS] A [SEP] B [SEP]."""
    last_sep = mask.sum(axis=1) - 1
    first_sep = last_sep - types.sum(axis=1)
    start_a, start_b = np.ones_like(last_sep), first_sep + 1
    begin = np.stack([start_a, start_b, start_b, start_a], axis=1)[..., np.newaxis]
    end = np.stack([first_sep, last_sep, last_sep, first_sep], axis=1)[..., np.newaxis]
    steps = np.arange(_WINDOW)
    place = np.where([[True], [False], [True], [False]], end - 1 - steps, begin + steps)
    pieces = np.take_along_axis(ids[:, np.newaxis], np.clip(place, 0, ids.shape[1] - 1), axis=2)
    return np.where((place >= begin) & (place < end), pieces, _NO_PIECE).astype(np.int32)
