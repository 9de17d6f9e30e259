import pytest

from albert_tf.jobs.decision import Decision, decided
from tests.builders import raises_one_line

CLASSIFIER = {"kind": "classifier", "labels": ["a", "b, c", "d=e"]}
MULTILABEL = {**CLASSIFIER, "kind": "multilabel"}


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        (CLASSIFIER, {"temperature": 0.0}, "--temperature=0.0: expected a number from 0.05 to 20"),
        (CLASSIFIER, {"temperature": float("nan")}, "--temperature=nan: expected a number"),
        (CLASSIFIER, {"min_probability": 80}, "--min_probability=80: expected a number from 0 to"),
        (MULTILABEL, {"temperature": 1.5}, "--temperature is for models that choose one label"),
        ({"kind": "regressor"}, {"min_probability": 0.5}, "is for models that choose one label"),
        ({}, {"temperature": 1.5}, "is for models that choose one label: omit it"),
        (
            {**CLASSIFIER, "labels": ["unsure", "b"]},
            {"min_probability": 0.5},
            "'unsure' is a label",
        ),
    ],
)
def test_values_that_do_not_fit_a_model(task, values, message):
    with raises_one_line(message):
        Decision(**values).apply(task)


def test_values_of_a_model():
    assert Decision().apply(MULTILABEL) == MULTILABEL and decided(MULTILABEL) == {}
    exported = Decision(temperature=2.0, min_probability=0.5).apply(CLASSIFIER)
    again = Decision(min_probability=0.0).apply(exported)
    assert decided(again) == {"temperature": 2.0, "min_probability": 0.0}
