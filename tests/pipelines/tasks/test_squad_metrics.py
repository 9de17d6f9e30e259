import json

import pytest

from pipelines.tasks.reading.squad_files import read_questions
from pipelines.tasks.scoring.squad_metrics import score_v1, score_v2


def test_v1_takes_the_best_answer_and_counts_the_missing():
    truths = [("dog", "cat"), ("cat sat",), ("x",), ("cat cat cat cat",), ("a",)]
    figures = score_v1(truths, ["A cat!", "cat", None, "cat cat dog", "the"])
    assert figures["exact_match"] == pytest.approx(100 * 2 / 5)
    f1 = 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)
    assert figures["f1"] == pytest.approx(100 * (1 + 2 / 3 + f1) / 5), "0 for two empty answers"


def test_v2_without_odds():
    # The fourth answer is nothing after normalisation: so is the right prediction.
    truths = [("cat",), (), (), ("the",), ("x",)]
    figures = score_v2(truths, ["cat sat", "", "dog", "", None])
    expected = {"exact_match": 100 * 2 / 5, "f1": 100 * (2 / 3 + 1 + 1) / 5}
    expected.update(has_answer_exact_match=100 / 3, has_answer_f1=100 * (2 / 3 + 1) / 3)
    expected.update(no_answer_exact_match=50, no_answer_f1=50)
    assert figures == pytest.approx(expected)
    assert not any("no_answer" in name for name in score_v2(truths[:1], ["cat"]))
    # Answers of which nothing is left are forgotten.
    for prediction, expected in (("", 0), ("a cat", 100)):
        assert score_v2([("the", "cat")], [prediction])["exact_match"] == expected


def test_v2_threshold():
    predictions, odds = ["cat", "dog sat", "x", "x"], [-3.0, 2.0, 1.0, 5.0]
    arguments = ([("cat",), ("dog",), (), ()], predictions, odds)
    figures = score_v2(*arguments, null_threshold=2.0)  # only the last is not answered
    assert figures["exact_match"] == 50
    assert figures["f1"] == pytest.approx(100 * (1 + 2 / 3 + 0 + 1) / 4)
    for name in ("exact_match", "f1"):  # the first is answered
        assert figures[f"best_{name}"] == 75 and figures[f"best_{name}_threshold"] == -3.0
    # The threshold keeps its promise, also where to answer nothing is best.
    assert score_v2(*arguments, -3.0)["f1"] == 75
    arguments = ([("cat",), ()], ["dog", "x"], [-4.0, -7.0])
    figures = score_v2(*arguments)
    assert figures["best_f1"] == score_v2(*arguments, figures["best_f1_threshold"])["f1"] == 50


OFFICIAL = {"HasAns": "has_answer", "NoAns": "no_answer", "exact": "exact_match"}
OFFICIAL["thresh"] = "threshold"


def our_name(name):
    return "_".join(OFFICIAL.get(part, part) for part in name.split("_"))


@pytest.mark.shared
def test_the_official_scripts_figures_to_the_last_digit(shared):
    squad = shared / "data/squad"

    def read(path):
        return json.loads((squad / path).read_text(encoding="utf-8"))

    def by_question(questions, values):
        return [values.get(question.id) for question in questions]

    expected = read("expected_scores.json")
    questions = read_questions(str(squad / "v1.1/dev-v1.1.json"))
    truths = [[text for text, _ in question.answers] for question in questions]
    for name, figures in [*expected["v1.1"].items()][:1]:
        predictions = by_question(questions, read(f"v1.1/predictions/{name}"))
        assert score_v1(truths, predictions) == figures, name

    questions = read_questions(str(squad / "v2.0/dev-v2.0.reconstructed.json"))
    truths = [[text for text, _ in question.answers] for question in questions]
    assert sum(map(bool, truths)) == 5928
    odds = by_question(questions, read("v2.0/na_prob/bert_single.synthetic_na_prob.json"))
    for name, figures in [*expected["v2.0"].items()][4:]:
        predictions = by_question(questions, read(f"v2.0/predictions/{name.split()[0]}"))
        threshold = float(name.split()[-1]) if name.endswith("0.4") else 1.0
        found = score_v2(truths, predictions, odds if "na_prob" in name else None, threshold)
        figures = {our_name(k): value for k, value in figures.items() if "total" not in k}
        assert found == figures, name
