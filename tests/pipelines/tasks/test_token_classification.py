"""Tags of words: windows, labels of first pieces, figures, predictions."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from pipelines.tasks.reading.token_files import TokenColumns, TokenExample, of_text
from pipelines.tasks.token_classification import TokenClassificationTask
from tests.conftest import WORDS

LABELS = ("O", "B-a", "I-a", "B-b", "I-b")


def task(labels=LABELS, doc_stride=5, **files):
    return TokenClassificationTask(
        "token_classification", files, TokenColumns(), labels, doc_stride
    )


def write(path, rows):
    path.write_text("\n\n".join("\n".join(row) for row in rows) + "\n")
    return str(path)


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def rows_of(columns):
    """The rows of pipelines.predict, as they come back from its files."""
    rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    return json.loads(json.dumps(rows))


def perfect_outputs(task, examples, windows):
    """Logits that say what is known, with a probability of 1."""
    outputs = []
    for window in windows:
        logits = np.full([40, len(task.labels)], -9.0, np.float32)
        places = [task.labels.index(examples[window.example].tags[word]) for word in window.words]
        logits[window.positions, places] = 9.0
        outputs.append({"logits": logits})
    return outputs


def test_labels_stand_at_first_pieces(tokenizer):
    words = ("the", "quickly", "\u0301", "fox")
    examples = [TokenExample("0", words, ("O", "B-a", "I-a", "B-b"))]
    sequences, [window] = task().encode(examples, tokenizer, 40, training=True)
    pieces = [tokenizer.encode(word) or [tokenizer.unk_id] for word in words]
    assert len(pieces[1]) > 1 and pieces[2] == [tokenizer.unk_id]
    flat = [piece for row in pieces for piece in row]
    assert sequences.pieces.tolist() == [tokenizer.cls_id, *flat, tokenizer.sep_id]
    [labels] = sequences.labels["labels"]
    expected = [-1] * 40
    for place, start in zip((0, 1, 2, 3), np.cumsum([1, *map(len, pieces)])):
        expected[start] = place
    assert labels.tolist() == expected
    assert window.words.tolist() == [0, 1, 2, 3]


def test_every_word_of_a_long_text_is_tagged_once(tokenizer):
    words = tuple(WORDS * 2)
    examples = [TokenExample("0", (), ()), TokenExample("1", words, ("O",) * len(words))]
    sequences, windows = task().encode(examples, tokenizer, 12, training=False)
    assert len(windows) == len(sequences) > 9 and windows[0].words.size == 0
    tagged = np.concatenate([window.words for window in windows])
    assert sorted(tagged) == list(range(len(words)))
    for row, window in enumerate(windows):
        sequence = sequences.pieces[sequences.row_splits[row] : sequences.row_splits[row + 1]]
        assert len(sequence) <= 12
        for word, position in zip(window.words, window.positions):
            assert sequence[position] == tokenizer.encode(words[word])[0]


def test_labels_are_those_of_training(tmp_path):
    path = write(tmp_path / "a.conll", [["x B-b", "y O"], ["z I-a"]])
    assert task(None, train=path).labels == ("O", "B-a", "I-a", "B-b", "I-b")
    path = write(tmp_path / "b.conll", [["x VB", "y NN"], ["z NN"]])
    parts = task(None, train=path)
    assert (parts.labels, parts.best_metric) == (("NN", "VB"), "accuracy")
    assert task().best_metric == "f1"
    with pytest.raises(ValueError, match=r"a.conll: every tag is 'O'"):
        _ = task(None, train=write(tmp_path / "a.conll", [["x O"]])).labels
    with pytest.raises(ValueError, match=r"labels 'B-PER' and 'B-per' differ only in case"):
        _ = task(None, train=write(tmp_path / "a.conll", [["x B-PER", "y B-per"]])).labels
    with pytest.raises(ValueError, match="are not known: give the training file"):
        _ = task(None).labels
    with pytest.raises(ValueError, match="--labels=a,a: expected two different"):
        task(["a", "a"])


def test_what_the_plan_says_of_it():
    examples = [TokenExample("0", ("x", "y", "z"), ("O", "B-b", "I-b"))]
    words, labels = task().summarise(examples)
    assert words == "3 words" and "'b' 1" in labels
    assert "'y' 2" in task(("x", "y")).summarise([TokenExample("0", ("a", "b"), ("y", "y"))])[1]
    assert task().summarise([TokenExample("0", ("a",), None)]) == ["1 words, without answers"]
    twice = [TokenExample("0", ("a",), None), TokenExample("0", (), None)]
    assert task().summarise(twice)[1:] == [
        "warning: 1 rows without text",
        "warning: 1 rows repeat an id, such as '0', 2 times",
    ]


def test_the_plan_tells_of_spans_that_no_prediction_can_equal():
    def notes(*spans):
        spans = [{"start": start, "end": end, "label": name} for start, end, name in spans]
        example = of_text("0", "see 10kg of fox", spans)
        return [note for note in task().summarise([example]) if note.startswith("warning")]

    assert notes((4, 8, "a"), (12, 15, "b")) == notes((4, 9, "a")) == notes((3, 8, "a")) == []
    [note] = notes((4, 6, "a"), (6, 8, "b"), (12, 15, "b"))
    assert "2 of 3 spans do not begin and end with a word, or share one" in note


def test_white_space_is_no_part_of_a_span(tokenizer):
    text, scores = "see the fox now", []
    for start, end in ((8, 11), (7, 12)):
        spans = [{"start": start, "end": end, "label": "a"}]
        examples = [of_text("0", text, spans, "label", "f:1")]
        own = task()
        _, windows = own.encode(examples, tokenizer, 40, training=False)
        scores.append(own.score(examples, windows, perfect_outputs(own, examples, windows)))
    assert scores[0] == scores[1] and scores[0]["f1"] == 1.0
    with pytest.raises(ValueError, match=r"f:1: 'label' holds .* marks no text"):
        of_text("0", text, [[7, 8, "a"]], "label", "f:1")


def test_the_plan_tells_when_words_are_scored_in_place_of_entities():
    def warnings_of(*labels):
        notes = task(labels).summarise([TokenExample("0", ("a",), (labels[0],))])
        return [note for note in notes if note.startswith("warning")]

    [note] = warnings_of("O", "B-water", "X", "M-per")
    assert "the words' tags are scored, not entities, as X, M-per begin with none" in note
    assert warnings_of("O", "B-water", "I-water") == []
    for tags in (
        ("o", "b-per", "i-per"),
        ("O", "b-per", "I-per"),
        ("o", "B-per"),
        ("none", "b-per"),
    ):
        [note] = warnings_of(*tags)
        wrong = next((tag for tag in tags if tag[:2] == "b-"), tags[0])
        assert f"not entities: {wrong!r} begins in lower case" in note
    assert warnings_of("b", "i", "o") == warnings_of("nn-x", "VB") == []
    assert warnings_of("B-per", "x") == warnings_of("nn", "b-per") == []
    assert warnings_of("NN", "VB", "O", "S") == [], "parts of speech"


def test_an_unknown_tag(tmp_path):
    path = write(tmp_path / "dev.conll", [["x O"], ["x O", "y B-c"]])
    problem = r"dev\.conll: text 1, 'x y': unknown tag 'B-c'; "
    for split in ("train", "dev", "test"):
        with pytest.raises(ValueError, match=problem + "the labels are 'O', "):
            task(**{split: path}).read(split)
    with pytest.raises(ValueError, match=problem):
        list(task().read_file(path))
    train = write(tmp_path / "train.conll", [["x O", "y B-a"]])
    with pytest.raises(ValueError, match=problem + "the training file has 'O', 'B-a'; --labels"):
        task(None, train=train, dev=path).read("dev")


def test_the_loss_is_of_labelled_positions():
    logits = tf.constant(np.random.RandomState(0).normal(size=[2, 6, 5]), tf.float32)
    labels = np.full([2, 8], -1, np.int16)
    labels[0, [1, 4]] = 3, 2
    found = task().losses({"logits": logits}, {"labels": tf.constant(labels)}).numpy()
    log_probs = tf.nn.log_softmax(logits).numpy()
    assert found[0] == pytest.approx(-(log_probs[0, 1, 3] + log_probs[0, 4, 2]) / 2)
    assert found[1] == 0.0


def test_figures_and_predictions_of_words(tokenizer, tmp_path):
    a = TokenExample("0", ("New York", "is", "big"), ("B-a", "O", "B-b"))
    b = TokenExample("1", ("fox",), ("I-a",))
    mine, examples = task(), [a, b]
    _, windows = mine.encode(examples, tokenizer, 40, training=False)
    outputs = perfect_outputs(mine, examples, windows)
    metrics = mine.score(examples, windows, outputs)
    assert metrics == dict.fromkeys(["f1", "precision", "recall", "f1_a", "f1_b", "accuracy"], 1.0)
    outputs[1]["logits"][:] = np.eye(5, dtype=np.float32)[0] * 9  # O everywhere
    metrics = mine.score(examples, windows, outputs)
    assert metrics["f1"] == pytest.approx(0.8) and metrics["accuracy"] == 0.75
    [path] = mine.write_predictions(str(tmp_path), "dev", examples, windows, outputs)
    assert path.endswith("dev_predictions.conll")
    rows = [line.rpartition("\t")[0] for line in read_lines(path)]
    expected = ["NewYork\tB-a\tB-a", "is\tO\tO", "big\tB-b\tB-b", "", "fox\tI-a\tO", ""]
    assert rows == expected
    assert mine.score([TokenExample("0", ("x",), None)], windows[1:], outputs[1:]) == {}
    rows = rows_of(mine.answers(examples, windows, outputs))
    assert rows[0] == {
        "id": "0",
        "words": ["New York", "is", "big"],
        "label": ["B-a", "O", "B-b"],
        "prediction": ["B-a", "O", "B-b"],
        "probabilities": [1.0, 1.0, 1.0],
    }
    assert mine.score_rows(rows) == metrics
    unknown = [TokenExample("0", ("x",), None)]
    _, windows = mine.encode(unknown, tokenizer, 40, training=False)
    rows = rows_of(mine.answers(unknown, windows, outputs[1:]))
    assert "label" not in rows[0] and mine.score_rows(rows) == {}


def test_figures_and_predictions_of_raw_text(tokenizer, tmp_path):
    exact = of_text("p", "Ada  Lovelace met.", [[0, 13, "a"]])
    inside = of_text("q", "unbelievable fox", [[2, 9, "b"]])
    mine, examples = task(), [exact, inside]
    _, windows = mine.encode(examples, tokenizer, 40, training=False)
    outputs = perfect_outputs(mine, examples, windows)
    metrics = mine.score(examples, windows, outputs)
    assert metrics["accuracy"] == 1.0
    assert metrics["f1"] == 0.5, "what no words have for bounds cannot be found"
    [path] = mine.write_predictions(str(tmp_path), "test", examples, windows, outputs)
    first, second = map(json.loads, read_lines(path))
    span = {"start": 0, "end": 13, "label": "a", "text": "Ada  Lovelace", "probability": 1.0}
    assert first == {"id": "p", "text": exact.text, "spans": [span]}
    assert [span["text"] for span in second["spans"]] == ["unbelievable"]
    rows = rows_of(mine.answers(examples, windows, outputs))
    known = {"start": 0, "end": 13, "label": "a"}
    assert rows[0] == {"id": "p", "text": exact.text, "label": [known], "prediction": [span]}
    assert {**mine.score_rows(rows), "accuracy": 1.0} == metrics


def test_parts_of_speech(tokenizer, tmp_path):
    mine = task(("NN", "VB"))
    examples = [TokenExample("0", ("fox", "runs"), ("NN", "VB")), of_text("1", "fox, fox")]
    _, windows = mine.encode(examples, tokenizer, 40, training=False)
    logits = np.zeros([40, 2], np.float32)
    outputs = [{"logits": logits}, {"logits": logits}]
    assert mine.score(examples[:1], windows[:1], outputs) == {
        "accuracy": 0.5,
        "macro_f1": pytest.approx(1 / 3),
    }
    rows = rows_of(mine.answers(examples[:1], windows[:1], outputs[:1]))
    assert mine.score_rows(rows) == mine.score(examples[:1], windows[:1], outputs[:1])
    _, path = mine.write_predictions(str(tmp_path), "test", examples, windows, outputs)
    [row] = map(json.loads, read_lines(path))
    assert [(s["text"], s["start"], s["label"]) for s in row["spans"]] == [
        ("fox", 0, "NN"),
        (",", 3, "NN"),
        ("fox", 5, "NN"),
    ]
