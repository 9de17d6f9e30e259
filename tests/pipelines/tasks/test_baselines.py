"""Baselines beside a model's figures, compared with a script that uses scikit-learn alone."""

import json
import random
import re

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, f1_score
from sklearn.multiclass import OneVsRestClassifier

from pipelines.tasks.classification import ClassificationTask, Example
from pipelines.tasks.multilabel import MultiLabelTask
from pipelines.tasks.reading.token_files import TokenExample
from pipelines.tasks.running import baselines, results
from pipelines.tasks.scoring import embeddings, figures, word_baseline
from pipelines.tasks.token_classification import TokenClassificationTask

QUEUES = {"billing": "invoice refund charge", "login": "password account reset", "bug": "crash !"}
FILLER = "please help me with the thing I saw in my last order today".split()


def predicted_by_script(model, train, dev, known, **ngrams):
    pattern = r"\w+|[^\w\s]+"
    words = TfidfVectorizer(**(ngrams or {"ngram_range": (1, 2)}), token_pattern=pattern)
    words.fit([text for example in train for text in example.separated])

    def features(rows):
        columns = [words.transform(texts) for texts in zip(*(row.separated for row in rows))]
        if len(columns) == 2:
            shared = columns[0].multiply(columns[1])
            columns += [shared, shared.sum(axis=1)]
        return sparse.hstack(columns)

    return model.fit(features(train), known).predict(features(dev))


def tickets(number, seed, has_pairs):
    rng = random.Random(seed)
    rows = []
    for i in range(number):
        queue = rng.choices(list(QUEUES), [5, 3, 1])[0]
        words = rng.choice(list(QUEUES)) if rng.random() < 0.2 else queue
        texts = [
            " ".join([*rng.sample(FILLER, 5), rng.choice(QUEUES[words].split())]) for _ in "ab"
        ]
        rows.append(Example(str(i), texts[0], texts[1] if has_pairs else None, queue))
    return rows


@pytest.mark.parametrize("has_pairs", [False, True])
def test_labels_equal_a_script(has_pairs):
    train, dev = tickets(300, 0, has_pairs), tickets(99, 1, has_pairs)
    task = ClassificationTask("own", {}, labels=sorted(QUEUES))
    rows = {name: [*found] for name, found in task.baselines(train, dev).items()}
    known, answers = ([row.label for row in examples] for examples in (train, dev))
    found = predicted_by_script(LogisticRegression(), train, dev, known)
    accuracy, f1 = accuracy_score(answers, found), f1_score(answers, found, average="macro")
    assert task.score(rows["words alone"]) == {"accuracy": accuracy, "macro_f1": f1}
    assert 0.5 < accuracy < 0.95
    assert task.score(rows["majority"])["accuracy"] == answers.count("billing") / 99
    low, high = task.intervals(rows["words alone"])["accuracy"]
    assert low < accuracy < high


@pytest.mark.filterwarnings("ignore:Label not")
def test_numbers_and_several_labels_equal_a_script():
    train, dev = tickets(300, 0, False), tickets(99, 1, False)
    numbers = np.array([len(row.label) + 0.5 for row in train])
    task = ClassificationTask("own", {}, is_regression=True)
    of_numbers = [
        [Example("", row.text, None, len(row.label) + 0.5) for row in rows] for rows in (train, dev)
    ]
    [(name, rows)] = task.baselines(*of_numbers).items()
    expected = predicted_by_script(Ridge(), train, dev, numbers)
    assert name == "words alone" and [row["prediction"] for row in rows] == expected.tolist()

    names = sorted(QUEUES)
    several = [  # no row has the label login
        [Example("", row.text, None, () if row.label == "login" else (row.label,)) for row in rows]
        for rows in (train, dev)
    ]
    task = MultiLabelTask("several", {}, labels=names)
    known, answers = map(task.label_array, several)
    found = predicted_by_script(OneVsRestClassifier(LogisticRegression()), train, dev, known)
    f1 = {
        f"{of}_f1": f1_score(answers, found, average=of, zero_division=0)
        for of in ("micro", "macro")
    }
    rows = task.baselines(*several)
    assert task.score(rows["words alone"]) == pytest.approx(f1, abs=0)
    assert {row["prediction"] for row in rows["majority"]} == {"billing"}


def test_texts_without_spaces_or_words():
    labels = ["a", "b"] * 20
    train = [
        Example("", f"去年{'天氣' if of == 'a' else '股票'}{i}", None, of)
        for i, of in enumerate(labels)
    ]
    task = ClassificationTask("own", {}, labels=["a", "b"])
    assert task.score(task.baselines(train, train)["words alone"])["accuracy"] == 1
    for of in labels[:3], ["b"] * 3:
        blank = [Example("", " ", None, label) for label in of]
        for rows in task.baselines(blank, blank).values():
            assert {row["prediction"] for row in rows} == {of[0]}


def test_marks_belong_to_the_word_before_them():
    """Vowel signs are no letters: without them, words of equal consonants would be equal."""
    texts = ["हिन्दी में काम की बात", "हिन्दू मा कम को बेत"] * 2 + ["\u0939िन्दी, cafe\u0301 ❤\ufe0f!"]
    shared = embeddings.vectors_of_words(texts)["words in common"]
    assert (shared @ shared.T).toarray()[0, 1] == 0
    assert re.findall(word_baseline.WORD, texts[-1]) == ["हिन्दी", ",", "cafe\u0301", "❤\ufe0f!"]


def test_tags():
    """Bob is B-per in two of three texts; other words have the most frequent tag, O."""
    labels = ("O", "B-per")
    task = TokenClassificationTask("tags", {}, {}, labels, 5)
    train = [
        TokenExample(str(i), ("Bob", "met", "Ada"), (tag, "O", "O"))
        for i, tag in enumerate([*labels, "B-per"])
    ]
    dev = [TokenExample("0", ("Bob", "saw", "Eve"), ("B-per", "O", "B-per"))]
    rows = {name: [*found] for name, found in task.baselines(train, dev).items()}
    assert rows["words alone"][0]["prediction"] == ["B-per", "O", "O"]
    assert task.score(rows["words alone"])["recall"] == 0.5
    assert task.score(rows["majority"])["f1"] == 0


def test_divisions_are_scored_together_and_long_ones_sampled(monkeypatch, tmp_path, capsys):
    rows, task = tickets(200, 2, False), ClassificationTask("own", {}, labels=sorted(QUEUES))
    halves = rows[:150], rows[150:]
    both = baselines.score_baselines(task, [halves, halves[::-1]])["words alone"]
    found = [row for of in (halves, halves[::-1]) for row in task.baselines(*of)["words alone"]]
    assert both == {"metrics": task.score(found), "intervals": task.intervals(found)}

    for text, labels, number in (("a " * 200, 2, 2000), ("a b", 99, 1010), ("漢" * 999, 2, 301)):
        assert len(word_baseline.sampled_places([(text,)] * 2000, labels)) == number
    monkeypatch.setattr(word_baseline, "MOST_ROWS", 50)
    found = baselines.score_baselines(task, [halves])
    low, high = found["words alone"]["intervals"]["accuracy"]
    words = found["words alone"]["metrics"]["accuracy"]
    seeds = {seed: {"dev": {"accuracy": words + seed / 10}} for seed in (-1, 1, 0)}
    summary = results.summarise("own", "accuracy", seeds)
    summary["dev"]["baselines"] = found
    results.write_summary(str(tmp_path), summary)
    out = capsys.readouterr().out
    assert (
        f"; words alone of 50 rows {words:.4f} ({low:.4f} to {high:.4f}); majority of 50 rows 0.5"
        in out
    )
    assert f"warning: accuracy {words:.4f} is not above {words:.4f} of words alone: " in out
    results.warn_of_baselines(found, "accuracy", words + 0.01)
    assert not capsys.readouterr().out
    results.warn_of_baselines(found, "accuracy", low)
    assert f"{words:.4f} of words alone (but within its interval): try" in capsys.readouterr().out


def test_baselines_are_kept_and_an_error_is_a_warning(monkeypatch, tmp_path, capsys):
    task, rows = ClassificationTask("own", {}, labels=sorted(QUEUES)), tickets(60, 3, False)

    def kept(of):
        return baselines.kept_baselines(
            str(tmp_path / "kept.json"),
            of,
            task.best_metric,
            lambda: baselines.score_baselines(task, [(rows, rows[:20])]),
        )

    first = kept({"dev": 1})
    assert f"baselines    accuracy on dev{results.describe_baselines(first, 'accuracy')}\n" in (
        capsys.readouterr().out
    )
    monkeypatch.setattr(LogisticRegression, "fit", lambda *_: 1 / 0)
    assert kept({"dev": 1}) == first and "warning" not in capsys.readouterr().out
    assert kept({"dev": 2}) == {}
    assert "warning: no baselines: ZeroDivisionError: division by zero" in capsys.readouterr().out


def test_curves_show_the_kept_step_and_the_baselines(tmp_path, monkeypatch):
    values = ({"loss": 0.2}, {"dev_f1": 0.5, "dev_accuracy": 0.6})
    entries = [{"step": step, **of} for of in values for step in (10, 20)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    monkeypatch.setattr(figures.pictures, "write", lambda figure, _: figure)
    drawn = figures.draw_learning_curves(
        str(tmp_path), 10, "f1", {"words alone": {"metrics": {"f1": 0.7}}}
    )
    lines = [[line.get_label() for line in axis.get_lines()][1:] for axis in drawn.axes[:3]]
    assert lines == [[], ["kept: step 10", "words alone"], ["kept: step 10"]]
