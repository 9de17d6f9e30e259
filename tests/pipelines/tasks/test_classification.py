import csv
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.storage.errors import UserError
from pipelines import finetune
from pipelines.tasks.classification import Answering, ClassificationTask, Example
from pipelines.tasks.running import seed_run
from pipelines.tasks.task import create_model
from tests.builders import raises_one_line, run_task, tiny_config
from tests.conftest import WORDS

PNG = b"\x89PNG"


def table(path, header, *rows):
    path.write_text("".join("\t".join(row) + "\n" for row in (header, *rows)), encoding="utf-8")
    return str(path)


@pytest.fixture
def train(tmp_path):
    rows = [("the fox", "good", "a"), ("a dog", "bad", "b"), ("", "good", "c"), ("x", "odd", "d")]
    return table(tmp_path / "train.tsv", ("text", "label", "name"), *rows)


def task_of(train=None, dev=None, test=None, columns=None, **arguments):
    files = {"train": train, "dev": dev, "test": test}
    files = {split: path for split, path in files.items() if path}
    return ClassificationTask("own", files, columns or {}, **arguments)


def logits(*rows):
    return [{"logits": np.array(row, np.float32)} for row in rows]


def test_labels_are_those_of_the_training_file_or_given(train, tokenizer, tmp_path):
    dev = table(tmp_path / "dev.tsv", ("label", "text"), ("bad", "a"), ("Good", "b"))
    task = task_of(train, dev)
    assert task.labels == ("bad", "good", "odd")
    texts, labels = ("the fox", "a dog", "", "x"), ("good", "bad", "good", "odd")
    expected = zip("0123", texts, [None] * 4, labels)
    assert task.read("train") == [Example(*values) for values in expected]
    assert task.other_splits() == [] and task_of(train).read("dev") is None
    problem = r"dev\.tsv:3: unknown label 'Good' .* 'bad', 'good', 'odd'; it is almost 'good'$"
    with pytest.raises(UserError, match=problem):
        task.read("dev")
    # They may be given, in another order and with more.
    task = task_of(train, labels=["odd", "new", "good", "bad"])
    sequences, _ = task.encode(task.read("train"), tokenizer, 9, training=True)
    np.testing.assert_array_equal(sequences.labels["labels"], [2, 3, 2, 0])
    assert len(task.encode([], tokenizer, 9, training=False)[0]) == 0
    with pytest.raises(ValueError, match=r"train\.tsv:3: unknown label 'bad' .*'odd', 'good'$"):
        task_of(train, labels=["odd", "good"]).read("train")


def test_pairs_names_and_other_columns(tmp_path):
    header = ("id", "label", "b", "unused", "a")
    path = table(tmp_path / "t.tsv", header, ("q7", "yes", "Two", "-", "One"))
    columns = {"text": "a", "text_pair": "b", "id": "id"}
    task = task_of(train=path, test=path, columns=columns, labels=["no", "yes"])
    assert task.read("train") == [Example("q7", "One", "Two", "yes")]
    assert task.read("test") == task.read("train"), "answers that are there are read"
    assert task.other_splits() == ["test"]
    nobody_names_them = task_of(test=table(tmp_path / "test.tsv", ("text",), ("a",)))
    with pytest.raises(ValueError, match="labels of own are not known: give the training file"):
        create_model(nobody_names_them, tiny_config())


def test_sequences(tokenizer, monkeypatch):
    monkeypatch.setattr(ClassificationTask, "block_size", 2)
    texts = ["the quick fox", "", "birds sing " * 9]
    task = task_of(labels=["x", "y"])
    examples = [Example(str(i), text, None, "xyx"[i]) for i, text in enumerate(texts)]
    sequences, features = task.encode(examples, tokenizer, 11, training=True)
    cls_id, sep_id = tokenizer.cls_id, tokenizer.sep_id
    pieces = [tokenizer.encode(text)[:9] for text in texts]
    assert pieces_of(sequences) == [[cls_id, *ids, sep_id] for ids in pieces]
    assert [len(row) for row in pieces_of(sequences)][1:] == [2, 11]
    np.testing.assert_array_equal(sequences.first_lengths, [len(ids) + 2 for ids in pieces])
    np.testing.assert_array_equal(sequences.labels["labels"], [0, 1, 0])
    assert features == examples

    # How pairs are truncated: export/test_serving_module.py.
    pairs = [Example("0", a, b, None) for a, b in (texts[:2], texts[1:], [texts[0], None])]
    sequences, _ = task.encode(pairs, tokenizer, 15, training=False)
    first = tokenizer.encode(texts[0])
    assert pieces_of(sequences) == [
        [cls_id, *first, sep_id, sep_id],
        [cls_id, sep_id, *tokenizer.encode(texts[2])[:12], sep_id],
        [cls_id, *first, sep_id],
    ]
    assert sequences.first_lengths.tolist() == [len(first) + 2, 2, len(first) + 2]
    full_lengths = [len(first) + 3, 3 + len(tokenizer.encode(texts[2])), len(first) + 2]
    assert sequences.full_lengths.tolist() == full_lengths
    assert sequences.labels == {} and len(sequences) == 3


def pieces_of(sequences):
    return [row.tolist() for row in np.split(sequences.pieces, sequences.row_splits[1:-1])]


def test_figures_and_predictions_of_labels(train, tmp_path):
    task = task_of(train, columns={"id": "name"})
    examples = task.read("train")  # good, bad, good, odd
    outputs = logits([0, 2, 0], [3, 0, 0], [1, 0, 0], [0, 1, 5])
    answers = task.answers(examples, examples, outputs)
    figures = task.score(answers.rows())
    assert figures == pytest.approx({"accuracy": 3 / 4, "macro_f1": (2 / 3 + 2 / 3 + 1) / 3})
    assert task.best_metric == "accuracy"
    details = task.details(examples, answers)
    assert details["confusion"] == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert details["labels"]["good"]["recall"] == 0.5
    assert details["intervals"].keys() == figures.keys()
    assert all(low <= figures[name] <= high for name, (low, high) in details["intervals"].items())
    assert details["thresholds"] == {}, "of four rows"
    assert task.intervals(answers.rows()) == details["intervals"]
    task.answering = Answering(min_probability=0.6)
    assert task.intervals({**row, "prediction": "unsure"} for row in answers.rows()) == {}
    task.answering = Answering()
    outputs[1] = {"logits": np.array([0, np.nan, 1], np.float32)}
    with raises_one_line("probabilities are not finite"):
        task.answers(examples, examples, outputs)

    out = tmp_path / "out"
    paths = task.write(str(out), "dev", examples, answers)
    assert paths == [str(out / "dev_predictions.tsv"), str(out / "dev_errors.csv")]
    with open(paths[1], newline="") as file:
        rows = list(csv.DictReader(file))
    first = {"line": f"{train}:4", "label": "good", "prediction": "bad", "text": examples[2].text}
    assert first.items() <= rows[0].items()
    likely = [float(row["probability_of_label"]) for row in rows]
    assert likely == sorted(likely) and likely[0] == 0.211941
    lines = [line.split("\t") for line in (out / "dev_predictions.tsv").read_text().splitlines()]
    header = "id label prediction probability_bad probability_good probability_odd"
    assert lines[0] == header.split()
    assert lines[3] == ["c", "good", "bad", "0.576116", "0.211941", "0.211941"]
    assert (out / "dev_confusion.png").read_bytes().startswith(PNG)

    # Without answers nothing of earlier examples stays.
    unknown = [Example("q", "x", None, None)]
    answers = task.answers(unknown, unknown, logits([1, 2, 3]))
    assert task.details(unknown, answers) == {}
    [path] = task.write(str(out), "dev", unknown, answers)
    lines = Path(path).read_text().splitlines()
    assert [line.split("\t")[:2] for line in lines] == [["id", "prediction"], ["q", "odd"]]
    assert [file.name for file in out.iterdir()] == ["dev_predictions.tsv"]


def test_class_weights(train):
    for class_weights, expected in (
        (None, [1, 1, 1, 1]),
        ("balanced", [2 / 3, 4 / 3, 2 / 3, 4 / 3]),
    ):
        task = task_of(train, class_weights=class_weights)
        examples = task.read("train")  # good, bad, good, odd
        task, labels = task.weighted(examples), task.label_array(examples)
        losses = task.losses({"logits": tf.zeros([4, 3])}, {"labels": tf.constant(labels)})
        np.testing.assert_allclose(losses, np.log(3) * np.array(expected), rtol=1e-6)
        assert task.description().model.get("class_weights") == class_weights


def test_numbers(tmp_path, tokenizer):
    path = table(tmp_path / "t.tsv", ("text", "label"), ("a", "1.25"), ("b", "-3"), ("c", "2"))
    task = task_of(path, is_regression=True)
    examples = task.read("train")
    assert [example.label for example in examples] == [1.25, -3.0, 2.0]
    with raises_one_line("'label' is 1.25 in all 1 training rows: there is nothing to learn"):
        task.weighted(examples[:1])
    sequences, _ = task.encode(examples, tokenizer, 8, training=True)
    assert sequences.labels["labels"].dtype == np.float32
    answers = task.answers(examples, examples, logits([0.5], [0.25], [0.375]))
    figures = task.score(answers.rows())
    assert figures["spearman"] == pytest.approx(1 - 6 * 2 / (3 * 8)), "of ranks 2 1 3 and 3 1 2"
    assert figures["pearson"] == pytest.approx(np.corrcoef([1.25, -3, 2], [0.5, 0.25, 0.375])[0, 1])
    assert task.best_metric == "pearson"
    task.write(str(tmp_path), "dev", examples, answers)
    lines = (tmp_path / "dev_predictions.tsv").read_text().splitlines()
    assert lines[1:3] == ["0\t1.25\t0.5", "1\t-3.0\t0.25"]
    losses = task.losses({"logits": tf.constant([[1.0], [4.0]])}, {"labels": [3.0, 3.5]})
    np.testing.assert_allclose(losses, [4, 0.25])


def test_numbers_far_from_zero_begin_at_their_mean(pretrained, tmp_path, monkeypatch):
    """Steps of a learning rate from 0 to the mean would leave none for the texts."""
    rows = [(f"{word} {n}", str(n)) for word in WORDS[:4] for n in (700, 800)]
    train, dev = (table(tmp_path / f"{of}.tsv", ("text", "label"), *rows) for of in ("t", "d"))
    task = task_of(train, dev, is_regression=True)
    monkeypatch.setattr(finetune, "finetune", finetune._prepare)
    job, _, _ = run_task(task, pretrained, tmp_path / "out")
    model, _ = seed_run._create_model(job, seed=1)
    assert model.classifier.output_dense.bias.numpy() == [750]
    [numbers, warning] = task.summarise(task.read("train"))
    assert numbers == "numbers from 700 to 800, mean 750"
    assert warning.startswith("warning: the numbers have the standard deviation 50: scale the col")
