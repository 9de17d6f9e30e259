import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from pipelines.tasks.reading.token_files import TokenExample, of_text
from pipelines.tasks.token_classification import TokenClassificationTask
from tests.conftest import WORDS
from tests.pipelines.tasks.test_classification import pieces_of

LABELS = ("O", "B-a", "I-a", "B-b", "I-b")


def task(labels=LABELS, doc_stride=5, **files):
    return TokenClassificationTask("tags", files, {}, labels, doc_stride)


def write(path, rows):
    path.write_text("\n\n".join("\n".join(row) for row in rows) + "\n")
    return str(path)


def encode_and_answer(task, examples, tokenizer):
    """Returns the windows, and what a model would say that knows the answers."""
    _, windows = task.encode(examples, tokenizer, 40, training=False)
    outputs = []
    for window in windows:
        logits = np.zeros([40, len(task.labels)], np.float32)
        places = [task.labels.index(examples[window.example].tags[word]) for word in window.words]
        logits[window.positions, places] = 5.0  # 0.9737556 of five labels
        outputs.append({"logits": logits})
    return windows, outputs


def rows_of(answers):
    """The rows of pipelines.predict, as they come back from its files."""
    return json.loads(json.dumps([*answers._replace(exact={}).rows()]))


def test_labels_stand_at_first_pieces_and_the_loss_is_of_them(tokenizer):
    words = ("the", "quickly", "\u0301", "fox")
    examples = [TokenExample("0", words, ("O", "B-a", "I-a", "B-b"))]
    sequences, [window] = task().encode(examples, tokenizer, 40, training=True)
    pieces = [tokenizer.encode(word) or [tokenizer.unk_id] for word in words]
    assert len(pieces[1]) > 1 and pieces[2] == [tokenizer.unk_id]
    assert sequences.pieces.tolist() == [tokenizer.cls_id, *sum(pieces, []), tokenizer.sep_id]
    expected = np.full(40, -1)
    expected[np.cumsum([1, *map(len, pieces[:-1])])] = 0, 1, 2, 3
    assert sequences.labels["labels"].tolist() == [expected.tolist()]
    assert window.words.tolist() == [0, 1, 2, 3]
    labels = tf.constant([[-1, 3, -1, 2], [-1, -1, -1, -1]])
    found = task().losses({"logits": tf.zeros([2, 3, 5])}, {"labels": labels})
    np.testing.assert_allclose(found, [np.log(5), 0])


def test_every_word_of_a_long_text_is_tagged_once(tokenizer):
    words = tuple(WORDS * 2)
    examples = [TokenExample("0", (), ()), TokenExample("1", words, ("O",) * len(words))]
    sequences, windows = task().encode(examples, tokenizer, 12, training=False)
    assert len(windows) == len(sequences) > 9 and windows[0].words.size == 0
    assert sorted(np.concatenate([window.words for window in windows])) == list(range(len(words)))
    for row, window in enumerate(windows):
        sequence = pieces_of(sequences)[row]
        assert len(sequence) <= 12
        for word, position in zip(window.words, window.positions):
            assert sequence[position] == tokenizer.encode(words[word])[0]


def test_labels_are_those_of_training(tmp_path):
    def parts_of(*rows):
        return task(None, train=write(tmp_path / "a.conll", rows))

    assert parts_of(["x B-b", "y O"], ["z I-a"]).labels == ("O", "B-a", "I-a", "B-b", "I-b")
    parts = parts_of(["x VB", "y NN"], ["z NN"])
    assert (parts.labels, parts.best_metric) == (("NN", "VB"), "accuracy")
    assert task().best_metric == "f1"
    with pytest.raises(ValueError, match=r"a.conll: text 0: labels 'B-PER' and 'B-per' differ"):
        _ = parts_of(["x B-PER", "y B-per"]).labels


def test_the_plan_says_what_is_scored(tmp_path):
    for tags, lines in (
        ("B-a I-a O", ["3 words, scored as entities", "1 labels: 'a' 1"]),
        (
            "PER-B PER-I O",
            [
                "3 words, scored as word classes (entities have tags such as B-PER, I-PER and O)",
                "3 labels: 'O' 1, 'PER-B' 1, 'PER-I' 1",
            ],
        ),
    ):
        train = write(tmp_path / "train.conll", [[f"x {tag}" for tag in tags.split()]])
        mine = task(None, train=train)
        assert mine.summarise(mine.read("train")) == lines


def test_spans_that_are_widened_to_words_are_counted(tmp_path):
    (tmp_path / "train.jsonl").write_text(
        '{"text": "unbelievable", "label": [[2, 5, "a"], [5, 9, "b"]]}\n'
        '{"text": "see the fox", "label": [[4, 7, "a"], [9, 11, "b"]]}\n'
    )
    mine = task(None, train=str(tmp_path / "train.jsonl"))
    *_, warning = mine.summarise(mine.read("train"))
    assert warning.startswith("warning: 3 spans do not begin and end with a word: widened to whole")


def test_an_unknown_tag(tmp_path):
    path = write(tmp_path / "dev.conll", [["x O"], ["x O", "y B-c"]])
    train = write(tmp_path / "train.conll", [["x O", "y B-a"]])
    problem = r"dev\.conll: text 1, 'x y': unknown label 'B-c' in 'label'; the training file has"
    with pytest.raises(ValueError, match=problem + " 'O', 'B-a'; --labels"):
        task(None, train=train, dev=path).read("dev")


def test_figures_and_predictions_of_words(tokenizer, tmp_path):
    a = TokenExample("0", ("New York", "is", "10\u00a0000"), ("B-a", "O", "B-b"))
    b = TokenExample("1", ("fox",), ("I-a",))
    unknown = [TokenExample("0", ("x",), None)]
    mine, examples = task(), [a, b]
    windows, outputs = encode_and_answer(mine, examples, tokenizer)
    metrics = mine.score(mine.answers(examples, windows, outputs).rows())
    assert metrics == dict.fromkeys(["f1", "precision", "recall", "f1_a", "f1_b", "accuracy"], 1.0)
    outputs[1]["logits"][:] = np.eye(5, dtype=np.float32)[0] * 9  # O everywhere
    answers = mine.answers(examples, windows, outputs)
    metrics = mine.score(answers.rows())
    assert metrics["f1"] == pytest.approx(0.8) and metrics["accuracy"] == 0.75
    [path] = mine.write(str(tmp_path), "dev", examples, answers)
    assert path.endswith("dev_predictions.conll")
    lines = Path(path).read_text().splitlines()
    assert lines[0].endswith("\t0.973755")
    rows = [line.rpartition("\t")[0] for line in lines]
    rows_of_a = ["NewYork\tB-a\tB-a", "is\tO\tO", "10\u00a0000\tB-b\tB-b"]
    assert rows == [*rows_of_a, "", "fox\tI-a\tO", ""]
    rows, tags = rows_of(answers), ["B-a", "O", "B-b"]
    first = {"id": "0", "words": [*a.words], "label": tags, "prediction": tags}
    assert rows[0] == {**first, "probabilities": [0.973755] * 3}
    assert mine.score(rows) == metrics
    _, windows = mine.encode(unknown, tokenizer, 40, training=False)
    answers = mine.answers(unknown, windows, outputs[1:])
    assert "label" not in answers.columns
    assert mine.score(answers.rows()) == mine.score(rows_of(answers)) == {}


def test_figures_and_predictions_of_raw_text(tokenizer, tmp_path):
    exact = of_text("p", "Ada  Lovelace met.", [[0, 13, "a"]])
    mine, examples = task(), [exact, of_text("q", "unbelievable fox", [[2, 9, "b"]])]
    windows, outputs = encode_and_answer(mine, examples, tokenizer)
    answers = mine.answers(examples, windows, outputs)
    metrics = mine.score(answers.rows())
    assert metrics["accuracy"] == 1.0
    assert metrics["f1"] == 0.5, "what no words have for bounds cannot be found"
    [path] = mine.write(str(tmp_path), "test", examples, answers)
    first, second = map(json.loads, Path(path).read_text().splitlines())
    span = {"start": 0, "end": 13, "label": "a", "text": "Ada  Lovelace", "probability": 0.973755}
    assert first == {"id": "p", "text": exact.text, "spans": [span]}
    assert [span["text"] for span in second["spans"]] == ["unbelievable"]
    rows = rows_of(answers)
    known = {"start": 0, "end": 13, "label": "a"}
    assert rows[0] == {"id": "p", "text": exact.text, "label": [known], "prediction": [span]}
    assert {**mine.score(rows), "accuracy": 1.0} == metrics
    # White space is no part of a span.
    spaced = [of_text("0", "see the fox now", [[7, 12, "a"]])]
    answers = mine.answers(spaced, *encode_and_answer(mine, spaced, tokenizer))
    assert mine.score(answers.rows())["f1"] == 1.0
    with pytest.raises(ValueError, match=r"f:1: 'label' holds .* marks no text"):
        of_text("0", "see the fox now", [[7, 8, "a"]], "label", "f:1")
