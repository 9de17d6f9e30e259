"""The table of kinds: what a graph answers from logits, and which kind a foreign config means."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from albert_tf.checkpoints.fine_tuned import _kind_of
from albert_tf.kinds import KINDS

LOGITS = np.array([[0.5, -2.0, 3.0], [1.0, 0.0, -1.0]], np.float32)


def test_what_a_single_graph_answers():
    found = {
        name: kind.answers(tf.constant(LOGITS)) for name, kind in KINDS.items() if kind.answers
    }
    assert found.keys() == {"classifier", "regressor", "multilabel"}
    np.testing.assert_array_equal(found["regressor"]["value"], LOGITS[:, 0])
    for name, expected in (
        ("classifier", special.softmax(LOGITS, -1)),
        ("multilabel", special.expit(LOGITS)),
    ):
        np.testing.assert_allclose(found[name]["probabilities"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("problem_type", "num_labels", "kind"),
    [
        (None, 3, "classifier"),
        (None, 1, "regressor"),
        ("single_label_classification", 1, "regressor"),
        ("regression", 1, "regressor"),
        ("multi_label_classification", 1, "multilabel"),
    ],
)
def test_kinds_of_one_class_are_told_apart(problem_type, num_labels, kind):
    values = {"architectures": ["AlbertForSequenceClassification"], "problem_type": problem_type}
    assert _kind_of(values, num_labels).name == kind


def test_a_tagger_of_one_label_is_no_regressor():
    assert (
        _kind_of({"architectures": ["AlbertForTokenClassification"]}, 1).name == "token_classifier"
    )
