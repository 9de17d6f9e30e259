import pytest

from albert_tf.jobs.decision import Decision, decided
from tests.builders import raises_one_line

CLASSIFIER = {"kind": "classifier", "labels": ["a", "b, c", "d=e"]}
MULTILABEL = {**CLASSIFIER, "kind": "multilabel"}


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        (CLASSIFIER, {"min_probability": float("nan")}, "--min_probability=nan: expected a numb"),
        (CLASSIFIER, {"min_probability": 80}, "--min_probability=80: expected a number from 0 to"),
        (CLASSIFIER, {"label_thresholds": "a=1"}, "for models that choose several labels per row"),
        (
            MULTILABEL,
            {"min_probability": 0.5},
            "--min_probability is for models that choose one label",
        ),
        ({"kind": "regressor"}, {"min_probability": 0.5}, "is for models that choose one label"),
        (CLASSIFIER, {"null_threshold": 0.0}, "--null_threshold is for models that answer questio"),
        ({}, {"min_probability": 0.5}, "is for models that choose one label: omit it"),
        ({**CLASSIFIER, "labels": ["unsure"]}, {"min_probability": 0.5}, "'unsure' is a label"),
        (MULTILABEL, {"label_thresholds": "a=0.2,x=1"}, "unknown label 'x'; the model has 'a', 'b"),
        (MULTILABEL, {"label_thresholds": "a=1,d=e=0,a=1"}, "'a' is there twice"),
        (MULTILABEL, {"label_thresholds": {"a": 2}}, "'a' has 2; expected a number from 0 to 1"),
        (MULTILABEL, {"label_thresholds": "a=inf"}, "'a=inf' is no label=number; expected numbers"),
        (MULTILABEL, {"label_thresholds": "runs/x"}, "'runs/x' is no label=number; expected num"),
    ],
)
def test_values_that_do_not_fit_a_model(task, values, message):
    with raises_one_line(message):
        Decision(**values).apply(task)


def test_values_of_a_model():
    assert Decision().apply(MULTILABEL) == MULTILABEL and decided(MULTILABEL) == {}
    decision = Decision(label_thresholds="b, c=0.25, a=1e-05,d=e=.5")
    thresholds = {"b, c": 0.25, "a": 1e-5, "d=e": 0.5}
    task = decision.apply(MULTILABEL)
    assert task == {**MULTILABEL, "label_thresholds": thresholds}
    assert Decision(label_thresholds=thresholds).apply(MULTILABEL) == task
    exported = Decision(min_probability=0.5).apply(CLASSIFIER)
    assert decided(Decision(min_probability=0.0).apply(exported)) == {"min_probability": 0.0}
