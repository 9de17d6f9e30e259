import json
import warnings

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from pipelines.tasks.running import results, seed_run
from pipelines.tasks.scoring import metrics
from pipelines.tasks.scoring.metrics import METRICS

# 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
LABELS = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
PREDICTIONS = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])


NUMBERS = np.array([0.0, 1.0, 2.0, 5.0]), np.array([1.0, 2.0, 4.0, 3.0])


@pytest.mark.parametrize(
    ("name", "pair", "expected"),
    [
        ("accuracy", (LABELS, PREDICTIONS), 7 / 10),
        ("f1", (LABELS, PREDICTIONS), 2 * 3 / (2 * 3 + 1 + 2)),
        ("macro_f1", (LABELS, PREDICTIONS), (6 / 9 + 8 / 11) / 2),
        ("matthews_correlation", (LABELS, PREDICTIONS), (3 * 4 - 1 * 2) / np.sqrt(4 * 5 * 5 * 6)),
        # Deviations from the means, 2 and 2.5: -2, -1, 0, 3 and -1.5, -0.5, 1.5, 0.5.
        ("pearson", NUMBERS, 5 / np.sqrt(14 * 5)),
        ("spearman", NUMBERS, 1 - 6 * 2 / (4 * 15)),  # of ranks 1, 2, 3, 4 and 1, 2, 4, 3
    ],
)
def test_figures(name, pair, expected):
    assert METRICS[name](*pair) == pytest.approx(expected)


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


def rows(number, num_labels, seed, right=0.6):
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, num_labels, number)
    guesses = rng.integers(0, num_labels, number)
    return answers, np.where(rng.random(number) < right, answers, guesses)


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


def test_intervals_cover_what_is_true():
    """Of 200 samples, some 190 intervals hold the figure of all rows."""
    answers, predictions = rows(100_000, 3, seed=0)
    whole = metrics.confusion_matrix(answers, predictions, 3)
    names = ("accuracy", "macro_f1", "matthews_correlation", "pearson")
    truth = {name: METRICS[name](answers, predictions) for name in names[:3]}
    covered = dict.fromkeys(truth, 0)
    rng = np.random.default_rng(5)
    for _ in range(200):
        drawn = rng.multinomial(300, (whole / whole.sum()).ravel()).reshape(3, 3)
        found = metrics.intervals(drawn, names)
        assert found.keys() == truth.keys()
        for name, (low, high) in found.items():
            covered[name] += low <= truth[name] <= high
    assert all(180 <= number <= 200 for number in covered.values()), covered


def test_rows_that_are_all_right_have_no_bootstrap():
    all_right = np.diag([12, 8])
    drawn = metrics.draw_again(all_right, 50)
    assert (drawn.rows.sum(axis=1) == 20).all() and (drawn.predicted == drawn.rows).all()
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
    details = {"dev": details}
    for seed in (1, 2):
        (tmp_path / f"seed_{seed}").mkdir()
        stored = {"metrics": {}, "details": details, "predicted": {}}
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
    both = results.summarise("t", "accuracy", {1: dev, 2: dev})
    results.write_summary(str(tmp_path), both)
    assert "median   0.8000   0.8000 to 0.8000\n" in capsys.readouterr().out


def test_details_are_kept_as_metrics_are():
    stored = {part: {"dev": {"x": 1}, "test": {"x": 2}} for part in ("metrics", "details")}
    stored["predicted"] = {"decoding": {}, "dev": "a", "test": "b"}
    kept = seed_run.kept_results(stored, {"decoding": {}, "dev": "a", "test": "other"})
    assert kept["metrics"] == kept["details"] == {"dev": {"x": 1}}
    del stored["details"]  # as version 0.6.0 wrote it
    assert seed_run.kept_results(stored, {"decoding": {}, "dev": "a"})["details"] == {}
