import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import precision_recall_fscore_support

from pipelines.tasks.running import results, seed_run
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
@pytest.mark.parametrize("number", [3, 40])
def test_figures_of_confusion_matrices_are_those_of_rows(name, number):
    num_labels = 2 if name == "f1" else 4
    pairs = [rows(number, num_labels, seed) for seed in range(20)]
    pairs.append((np.zeros(number, int), np.zeros(number, int)))  # one label only
    matrices = np.stack([metrics.confusion_matrix(*pair, num_labels) for pair in pairs])
    right = np.diagonal(matrices, axis1=1, axis2=2)
    counts = metrics.Counts(right, matrices.sum(axis=2), matrices.sum(axis=1))
    expected = [METRICS[name](*pair) for pair in pairs]
    np.testing.assert_allclose(metrics.FIGURES[name](counts), expected, atol=1e-9)


def test_rows_are_drawn_again_and_all_right_have_no_bootstrap():
    counts = np.array([[9, 1, 0], [0, 6, 2], [3, 0, 0]])
    right, of_labels, predicted = (sums.mean(axis=0) for sums in metrics.draw_again(counts, 5000))
    assert right == pytest.approx(np.diag(counts), abs=0.2)
    assert of_labels == pytest.approx(counts.sum(axis=1), abs=0.2)
    assert predicted == pytest.approx(counts.sum(axis=0), abs=0.2)
    assert metrics.intervals(counts, ["pearson"]) == {}
    all_right = np.diag([12, 8])
    drawn = metrics.draw_again(all_right, 50)
    assert (drawn.rows.sum(axis=1) == 20).all() and (drawn.predicted == drawn.rows).all()
    assert 1.5 < drawn.rows[:, 0].std() < 3  # binomial: 2.2
    assert metrics.intervals(all_right, ["macro_f1"]) == {}
    accuracy = metrics.intervals(all_right, ["accuracy"])["accuracy"]
    assert accuracy[0] == pytest.approx(0.8389, abs=1e-4)


def test_figures_of_labels():
    answers, predictions = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 0])
    found = metrics.figures_of_labels(metrics.confusion_matrix(answers, predictions, 3), "abc")
    precision, recall, f1, number = precision_recall_fscore_support(answers, predictions)
    for place, label in enumerate("ab"):
        expected = (precision[place], recall[place], f1[place], number[place])
        assert tuple(found[label][k] for k in ("precision", "recall", "f1", "rows")) == expected
    assert found["a"]["recall_interval"] == pytest.approx([0.2077, 0.9385], abs=1e-4)
    nothing = {"rows": 0, "precision": None, "recall": None, "f1": None}
    assert nothing.items() <= found["c"].items() and found["c"]["recall_interval"] == [0.0, 1.0]


def test_one_seed_has_an_interval_and_several_have_a_spread(tmp_path, capsys):
    threshold = {"min_probability": 0.81, "share": 0.5, "precision": 0.96, "interval": [0.9, 0.99]}
    confidence = {"thresholds": {"0.95": threshold}}
    labels = {f"l{i}": metrics.figures_of_label(i, i, i) for i in range(13)}
    details = {"intervals": {"accuracy": [0.7, 0.9]}, "confidence": confidence, "labels": labels}
    for seed in (1, 2):
        (tmp_path / f"seed_{seed}").mkdir()
        stored = {"metrics": {}, "details": {"dev": details}, "predicted": {}}
        (tmp_path / f"seed_{seed}/results.json").write_text(json.dumps(stored))
    dev = {"dev": {"accuracy": 0.8, "f1": 0.5}}
    results.write_summary(str(tmp_path), results.summarise("t", "accuracy", {1: dev}))
    out = capsys.readouterr().out
    assert "0.8000   95 % interval 0.7000 to 0.9000\n" in out and "0.5000\n" in out
    title, first, *others = out[out.index("labels of seed 1") :].splitlines()
    assert title.split()[4:] == ["rows", "precision", "recall", "F1"]
    assert first.split() == ["l12", "12", "1.0000", "1.0000", "1.0000"]
    assert others[10].split()[0] == "l1" and others[11] == "  1 more labels in results.json"
    assert "chosen for seed 1 on these rows" in out
    assert "  precision 0.95  needs --min_probability=0.81: 50.0 % of the rows, 96.0 %" in out
    results.write_summary(str(tmp_path), results.summarise("t", "accuracy", {1: dev, 2: dev}))
    assert "median   0.8000   0.8000 to 0.8000\n" in capsys.readouterr().out


def test_details_are_kept_as_metrics_are():
    stored = {part: {"dev": {"x": 1}, "test": {"x": 2}} for part in ("metrics", "details")}
    stored["predicted"] = {"decoding": {}, "dev": "a", "test": "b"}
    kept = seed_run.kept_results(stored, {"decoding": {}, "dev": "a", "test": "other"})
    assert kept["metrics"] == kept["details"] == {"dev": {"x": 1}}


def test_the_loss_on_dev_is_the_mean_over_batches_of_all_lengths():
    """As token classification has it: outputs of other lengths, labels of the longest."""
    task = SimpleNamespace(
        losses=lambda outputs, batch: tf.reduce_sum(outputs["logits"], 1) + batch["labels"][:, 0]
    )
    outputs = [{"logits": np.full(size, 0.5, np.float32)} for size in (2, 4, 2)]
    labels = {"labels": np.array([[1, 9], [2, 9], [6, 9]], np.float32)}
    assert seed_run.mean_loss(task, outputs, labels) == (1 + 2 + 1 + 1 + 2 + 6) / 3
