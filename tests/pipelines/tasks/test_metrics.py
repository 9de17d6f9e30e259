import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from pipelines.tasks.running import seed_run
from pipelines.tasks.scoring import metrics
from pipelines.tasks.scoring.metrics import METRICS

LABELS = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
PREDICTIONS = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("name", METRICS)
def test_a_model_that_always_says_the_same_gets_a_number(name):
    correlates = name in ("pearson", "spearman", "matthews_correlation")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = METRICS[name](LABELS, np.zeros_like(LABELS))
        expected = {"accuracy": 0.5, "micro_f1": 0.5, "macro_f1": (10 / 15) / 2}
        assert figure == pytest.approx(expected.get(name, 0.0))
        assert METRICS[name](LABELS[:1], PREDICTIONS[:1]) == (not correlates)
        if correlates:  # labels that are all the same correlate with nothing
            assert METRICS[name](np.ones(10), PREDICTIONS) == 0


def rows(number, num_labels, seed):
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, num_labels, number)
    guesses = rng.integers(0, num_labels, number)
    return answers, np.where(rng.random(number) < 0.6, answers, guesses)


@pytest.mark.parametrize("name", metrics.FIGURES)
def test_figures_of_confusion_matrices_are_those_of_rows(name):
    num_labels = 2 if name == "f1" else 4
    pairs = [rows(number, num_labels, number) for number in (3, 4, 5, 40, 41)]
    pairs.append((np.zeros(3, int), np.zeros(3, int)))  # one label only
    matrices = np.stack([confusion_matrix(*pair, labels=range(num_labels)) for pair in pairs])
    right = np.diagonal(matrices, axis1=1, axis2=2)
    counts = metrics.Counts(right, matrices.sum(axis=2), matrices.sum(axis=1))
    expected = [METRICS[name](*pair) for pair in pairs]
    np.testing.assert_allclose(metrics.FIGURES[name](counts), expected, atol=1e-9)


def test_figures_of_labels():
    answers, predictions = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 0])
    found = metrics.figures_of_labels(
        confusion_matrix(answers, predictions, labels=range(3)), "abc"
    )
    precision, recall, f1, number = precision_recall_fscore_support(answers, predictions)
    for place, label in enumerate("ab"):
        expected = (precision[place], recall[place], f1[place], number[place])
        assert tuple(found[label][k] for k in ("precision", "recall", "f1", "rows")) == expected
    assert found["a"]["recall_interval"] == pytest.approx([0.2077, 0.9385], abs=1e-4)
    nothing = {"rows": 0, "precision": None, "recall": None, "f1": None}
    assert nothing.items() <= found["c"].items() and found["c"]["recall_interval"] == [0.0, 1.0]


def test_the_loss_on_dev_is_the_mean_over_batches_of_all_lengths():
    """As token classification has it: outputs of other lengths, labels of the longest."""
    task = SimpleNamespace(
        losses=lambda outputs, batch: tf.reduce_sum(outputs["logits"], 1) + batch["labels"][:, 0]
    )
    outputs = [{"logits": np.full(size, 0.5, np.float32)} for size in (2, 4, 2)]
    labels = {"labels": np.array([[1, 9], [2, 9], [6, 9]], np.float32)}
    assert seed_run.mean_loss(task, outputs, labels) == (1 + 2 + 1 + 1 + 2 + 6) / 3
