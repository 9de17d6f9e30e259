"""Accuracy of a classifier that sees only sentence lengths: the baseline of sentence order.

Labels are drawn so that they do not depend on lengths (see sentence_pairs). In real texts some
dependence remains: the opening of a document may be short, and dialogues group short sentences.
Only accuracy above this baseline shows that a model uses the text itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_predict

from albert_tf.tokenization import AlbertTokenizer
from pipelines.data.examples import ExampleOptions
from pipelines.data.pretraining_dataset import evaluation_dataset

# Training examples that the classifier is fitted on.
_TRAINING_EXAMPLES = 20_000
# Examples that are told, at most: a sample of more.
_MOST_EXAMPLES = 200_000
_FOLDS = 5
_ROWS = 256


class Accuracy(NamedTuple):
    """How many of some labels were told."""

    correct: int
    total: int


def lengths_alone(
    record_dir: str,
    split: str,
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    num_examples: int = _MOST_EXAMPLES,
) -> Accuracy | None:
    """Tells the labels of evaluation_dataset's examples by boosted trees on their lengths.

    The trees are fitted on a sample of the training split; those for "train" on four fifths of the
    very examples, in turn, for the other fifth.

    Returns:
      None if there are too few labels to learn from.
    """

    def labelled(of_split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        dataset = evaluation_dataset(
            record_dir, of_split, options, tokenizer, _ROWS, count, with_lengths=True
        )
        return labelled_lengths(dataset)

    features, labels = labelled(split, min(num_examples, _MOST_EXAMPLES))
    others = (features, labels) if split == "train" else labelled("train", _TRAINING_EXAMPLES)
    if not len(labels) or np.bincount(others[1], minlength=2).min() < _FOLDS:
        return None
    # Few leaves of many pairs: lengths tell little, and must not be learnt by heart.
    trees = HistGradientBoostingClassifier(
        max_iter=50, max_leaf_nodes=8, min_samples_leaf=50, early_stopping=False, random_state=0
    )
    if split == "train":
        told = cross_val_predict(trees, features, labels, cv=_FOLDS)
    else:
        told = trees.fit(*others).predict(features)
    return Accuracy(int((told == labels).sum()), len(labels))


def labelled_lengths(dataset: tf.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Returns `length_features` and labels, int32, of the pairs of a dataset that have a label."""
    features, labels = [], []
    for batch in dataset.as_numpy_iterator():
        has_label = batch["sentence_order_weights"] > 0
        features.append(batch["length_features"][has_label])
        labels.append(batch["sentence_order_labels"][has_label])
    if not labels:
        return np.zeros([0, 1], np.int32), np.zeros(0, np.int32)
    return np.concatenate(features), np.concatenate(labels)
