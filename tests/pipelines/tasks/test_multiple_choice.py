import csv

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.storage.errors import UserError
from albert_tf.text.choices import questions_with_options
from pipelines.tasks.multiple_choice import MultipleChoiceExample as Example
from pipelines.tasks.multiple_choice import MultipleChoiceTask
from pipelines.tasks.race import RaceTask
from tests.builders import write_json_lines
from tests.jobs import run_code
from tests.pipelines.tasks.test_classification import logits, pieces_of

COLUMNS = {"context": "passage", "options": "endings", "label": "gold"}
COLUMNS.update(question="query", id="name")
RECORD = {"name": "n1", "passage": "Text.", "query": "Why _?", "endings": [*"abc"], "gold": 2}


def test_reading(tmp_path):
    spellings = [2, "2", "C", " c "]
    train = write_json_lines(tmp_path / "a.jsonl", [{**RECORD, "gold": gold} for gold in spellings])
    unknown = {name: RECORD[name] for name in RECORD if name != "gold"}
    ids = [{**unknown, "name": name} for name in (7, "\ud83d")]
    test = write_json_lines(tmp_path / "b.jsonl", ids)
    task = MultipleChoiceTask("own", {"train": train, "test": test}, COLUMNS)
    expected = Example("n1", "Text.", "Why _?", ("a", "b", "c"), 2)
    assert task.read("train") == [expected] * 4
    assert task.read("dev") is None and task.other_splits() == ["test"]
    read = [(example.id, example.label) for example in task.read("test")]
    assert read == [("7", None), ("\ufffd", None)]
    assert task.num_choices == 3
    labels, warning = task.summarise([expected] * 2)
    assert labels == "3 labels: 'A' 0, 'B' 0, 'C' 2"
    assert warning == "warning: 1 rows repeat an id, such as 'n1', 2 times"
    with pytest.raises(
        UserError, match="--quoting does not apply to a model of kind multiple_choi"
    ):
        MultipleChoiceTask.restore(task.description().model, {}, quoting="none")
    restored = MultipleChoiceTask.restore({"task": "own"}, {"text_pair": "q", "text": "t"}, None)
    assert (restored.columns["question"], restored.columns["context"]) == ("q", "t")
    bare = {**COLUMNS, "question": None, "id": None}
    example = MultipleChoiceTask("own", {"train": train}, bare).read("train")[3]
    assert (example.id, example.question) == ("3", "")
    for count in (1, 27):
        path = write_json_lines(tmp_path / "c.jsonl", [{**RECORD, "endings": ["x"] * count}])
        with pytest.raises(ValueError, match=f":1: {count} 'endings', expected 2 to 26"):
            MultipleChoiceTask("own", {"dev": path}, COLUMNS).read("dev")


def test_columns_of_flags(tmp_path):
    train = write_json_lines(tmp_path / "train.jsonl", [RECORD])
    code = """from absl import flags
from pipelines.tasks import task_flags
task_flags.define_task_flags()
columns = "--text_column=passage --text_pair_column=query --options_column=endings".split()
columns += ["--label_column=gold", "--id_column=name"]
flags.FLAGS(["", "--task=multiple_choice", *columns, "--train_file=%s"])
task = task_flags.create_task(flags.FLAGS)
[example] = task.read("train")
print(example.context, example.question)"""
    assert run_code(code % train)[0] == "Text. Why _?\n"


def test_faults(tmp_path):
    for change, problem in (
        ({"endings": ["a", "b"]}, r":2: 2 'endings', expected 3 as in the other questions"),
        ({"endings": "abc"}, r":2: 'endings' is no list"),
        ({"endings": ["a", "b", 3]}, r":2: 'endings' is 3, expected text"),
        ({"gold": 3}, r":2: 'gold' is '3', expected 0 to 2 or A to C"),
        ({"gold": "D"}, r":2: 'gold' is 'D', expected 0 to 2 or A to C"),
        ({"gold": True}, r":2: 'gold' is 'True'"),
        ({"query": ["x"]}, r":2: 'query' is \[\"x\"\], expected text"),
    ):
        path = write_json_lines(tmp_path / "a.jsonl", [RECORD, {**RECORD, **change}])
        with pytest.raises(UserError, match=problem):
            MultipleChoiceTask("own", {"dev": path}, COLUMNS).read("dev")


def test_options_fill_blanks_or_follow(tokenizer):
    def answers(question, *options, blank="_"):
        texts = tf.constant([question]), tf.constant(options)
        found = questions_with_options(tokenizer.in_graph().preprocess, *texts, 9, blank)
        return [text.decode() for text in found.numpy()]

    assert answers("The  _  sings .", " Fox ", "") == ["the fox sings .", "the  sings ."]
    assert answers("Who sings?", "The fox") == ["who sings? the fox"]
    assert answers("\uff3f and _", "X") == ["x and x"]  # a full-width blank is one
    # Of a set of one's own `_` is a character like others.
    own = MultipleChoiceTask("own", {}, COLUMNS)
    assert answers("What is a_b?", "X", blank=own.blank) == ["what is a_b? x"]
    assert RaceTask("").blank == "_"


def test_sequences(tokenizer, monkeypatch):
    monkeypatch.setattr(MultipleChoiceTask, "block_size", 2)
    task = MultipleChoiceTask("own", {}, COLUMNS, 7, 2, "_")
    long, short = "seven small birds sing in old green trees " * 2, "a river"
    examples = [
        Example("0", long, "who sings?", (long, "fox"), 1),
        Example("1", short, "_ runs", ("it", "dog"), 0),
        Example("2", long, "", ("sea", "sky"), 1),
    ]
    sequences, features = task.encode(examples, tokenizer, 21, training=True)
    assert features == examples and len(sequences) == 3
    assert sequences.labels["labels"].tolist() == [1, 0, 1]
    cls_id, sep_id = tokenizer.cls_id, tokenizer.sep_id
    expected, first_lengths = [], []
    for example in examples:
        for option in example.options:
            question = example.question
            answer = question.replace("_", option) if "_" in question else f"{question} {option}"
            answer = tokenizer.encode(answer)[-7:]
            context = tokenizer.encode(example.context)[: 18 - len(answer)]
            expected.append([cls_id, *context, sep_id, *answer, sep_id])
            first_lengths.append(len(context) + 2)
    rows = pieces_of(sequences)
    assert rows == expected and max(map(len, rows)) == 21
    assert sequences.first_lengths.tolist() == first_lengths
    # However short the sequence, it holds an answer's end.
    rows = task.encode(examples[:1], tokenizer, 8, training=False)[0]
    assert np.diff(rows.row_splits).tolist() == [8, 8]
    assert rows.first_lengths.tolist() == [2, 2]


def test_figures_losses_and_predictions(tmp_path):
    task = MultipleChoiceTask("own", {}, COLUMNS, num_choices=3)
    options, labels = ("x", "y\ty", "z"), [(0, "p"), (1, "q"), (2, "p"), (1, "p")]
    examples = [Example(str(i), "", "", options, *label) for i, label in enumerate(labels)]
    outputs = logits([2, 1, 0], [0, 1, 0], [0, 0, 3], [1, 0, 0])
    answers = task.answers(examples, examples, outputs)
    figures = task.score(answers.rows())
    assert figures == pytest.approx({"accuracy": 3 / 4, "accuracy_p": 2 / 3, "accuracy_q": 1})
    (path,) = task.write(str(tmp_path), "dev", examples, answers)
    assert path == str(tmp_path / "dev_predictions.tsv")
    with open(path, newline="") as file:
        lines = list(csv.reader(file, delimiter="\t"))
    header = "id label prediction probability_A probability_B probability_C option"
    assert lines[0] == header.split()
    assert lines[2] == ["1", "B", "B", "0.211941", "0.576116", "0.211941", "y\ty"]
    assert lines[4][:3] == ["3", "B", "A"]
    losses = task.losses({"logits": tf.zeros([2, 3])}, {"labels": tf.constant([2, 0])})
    np.testing.assert_allclose(losses, np.log([3, 3]), rtol=1e-6)
