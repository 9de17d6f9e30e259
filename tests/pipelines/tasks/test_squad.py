"""The SQuAD tasks: sequences and labels, scores of answers that are known, files, both models."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from pipelines.tasks.reading.split_report import describe_split
from pipelines.tasks.reading.squad_files import Question
from pipelines.tasks.running.batches import make_batch
from pipelines.tasks.scoring.squad_metrics import normalize_answer
from pipelines.tasks.squad import SquadTask
from tests.builders import tiny_config

CONTEXT = (
    "The quick brown fox jumps over a lazy dog, while (seven) small birds sing in óld green trees. "
    "And every river 🦊🦊 runs down to some distant sea\u0000 under bright 日本 summer skies."
)
ANSWERS = ["The quick", "seven", "óld green", "🦊🦊", "日本", "summer skies.", "sea"]


def ask(number, context, answer=None, text="where do the birds sing"):
    answers = () if answer is None else ((answer, context.index(answer)),)
    return Question(f"q{number}", text, context, answers, answer is None)


@pytest.fixture(scope="module")
def questions():
    return [ask(i, CONTEXT, answer) for i, answer in enumerate(ANSWERS)]


def sequence(sequences, i):
    return sequences.pieces[sequences.row_splits[i] : sequences.row_splits[i + 1]].tolist()


def test_windows_as_sequences(tokenizer, questions):
    task = SquadTask({}, doc_stride=11, max_query_length=5)
    sequences, windows = task.encode(questions[1:3], tokenizer, 31, training=False)
    query = tokenizer.encode(questions[1].text)[:5]
    text = tokenizer.encode(CONTEXT)
    room = 31 - 5 - 3
    firsts = [*range(0, len(text) - room, 11)]
    firsts.append(firsts[-1] + 11)
    assert len(sequences) == len(windows) == 2 * len(firsts) > 4
    assert sequences.labels == {}
    for i, window in enumerate(windows):
        first = firsts[i % len(firsts)]
        assert window.question == i // len(firsts)
        assert sequence(sequences, i) == [
            tokenizer.cls_id,
            *query,
            tokenizer.sep_id,
            *text[first : first + room],
            tokenizer.sep_id,
        ]
        assert sequences.first_lengths[i] == window.offset == 7


@pytest.mark.parametrize("max_seq_length", range(41, 50))
def test_labels_point_at_the_answer(tokenizer, questions, max_seq_length):
    task = SquadTask({}, may_be_impossible=True, doc_stride=9)
    impossible = Question("no", "why", CONTEXT, (("fox", CONTEXT.index("fox")),), True)
    examples = [*questions, impossible]
    sequences, windows = task.encode(examples, tokenizer, max_seq_length, training=True)
    found = dict.fromkeys(range(len(examples)), 0)
    for i, window in enumerate(windows):
        start, end, none = (
            int(sequences.labels[name][i])
            for name in ("start_positions", "end_positions", "is_impossible")
        )
        pieces = sequence(sequences, i)
        if none:
            assert start == end == 0
            continue
        found[window.question] += 1
        [(answer, _)] = examples[window.question].answers
        read = tokenizer.decode(pieces[start : end + 1])
        if answer.isascii():
            assert tokenizer.preprocess(answer) in read and len(read) <= len(answer) + 2
        place = slice(*(window.first - window.offset + np.array([start, end + 1])))
        first, last = window.paragraph.starts[place][0], window.paragraph.ends[place][-1]
        assert answer in CONTEXT[first : last + 1]
    assert all(found[i] for i in range(len(questions))) and not found[len(questions)]
    assert any(
        sequences.labels["is_impossible"][i] for i, w in enumerate(windows) if w.question < 2
    )
    assert sequences.lost_answers == 0


def test_answers_longer_than_a_window_are_told(tokenizer):
    context = " ".join(["the fox ran home"] * 30)
    long = Question("long", "what", context, ((context[:200], 0),), False)
    short = Question("short", "what", context, (("fox", context.index("fox")),), False)
    impossible = Question("no", "what", context, (), True)
    task = SquadTask({}, may_be_impossible=True)
    examples = [long, short, impossible]
    sequences, windows = task.encode(examples, tokenizer, 24, training=True)
    assert sequences.lost_answers == 1
    assert all(
        sequences.labels["is_impossible"][i] for i, w in enumerate(windows) if not w.question
    )
    [warning] = [
        line
        for line in describe_split("train", 3, sequences, tokenizer, 24, [], 512)
        if "window" in line
    ]
    assert warning.startswith("warning: 1 answers of train fit into no window: the model learns")
    assert task.encode(examples, tokenizer, 512, training=True)[0].lost_answers == 0


def perfect_outputs(sequences):
    """What a model would say that knows the labels."""
    outputs = []
    for i in range(len(sequences)):
        length = len(sequence(sequences, i)) + 5  # padded
        output = {}
        for name in ("start", "end"):
            output[f"{name}_logits"] = np.zeros(length, np.float32)
            output[f"{name}_logits"][sequences.labels[f"{name}_positions"][i]] = 9.0
        outputs.append(output)
    return outputs


def test_the_right_positions_are_the_right_answers(tokenizer, questions):
    task = SquadTask({}, doc_stride=9)
    sequences, windows = task.encode(questions, tokenizer, 41, training=True)
    figures = task.score(questions, windows, perfect_outputs(sequences))
    assert figures == {"exact_match": 100.0, "f1": 100.0}
    # And they are worth something: of the others' positions nothing is right.
    shifted = perfect_outputs(sequences)
    for output in shifted:
        output["start_logits"] = np.roll(output["start_logits"], 4)
        output["end_logits"] = np.roll(output["end_logits"], 4)
    assert task.score(questions, windows, shifted)["exact_match"] == 0


def test_unanswerable_questions_and_the_files(tokenizer, questions, tmp_path):
    task = SquadTask({}, may_be_impossible=True, doc_stride=128)
    examples = [*questions, ask(98, CONTEXT), ask(99, "")]
    sequences, windows = task.encode(examples, tokenizer, 128, training=True)
    outputs = perfect_outputs(sequences)
    figures = task.score(examples, windows, outputs)
    assert figures["f1"] == figures["best_f1"] == figures["no_answer_f1"] == 100
    assert figures["null_threshold"] == 0

    paths = task.write_predictions(str(tmp_path), "dev", examples, windows, outputs)
    names = ["dev_predictions.json", "dev_nbest_predictions.json", "dev_null_odds.json"]
    assert paths == [str(tmp_path / name) for name in names]
    predictions, nbest, odds = (json.loads((tmp_path / name).read_text("utf-8")) for name in names)
    assert list(predictions) == list(nbest) == list(odds) == [q.id for q in examples]
    for question in examples:
        answer = question.answers[0][0] if question.answers else ""
        assert normalize_answer(predictions[question.id]) == normalize_answer(answer)
        assert predictions[question.id] in question.context
        assert (odds[question.id] > 0) == question.is_impossible
    assert len(nbest["q0"]) == 20 and nbest["q99"] == []
    assert nbest["q0"][0]["text"] == "The quick"
    assert sum(entry["probability"] for entry in nbest["q0"]) == pytest.approx(1)

    # The threshold decides, in the file and in the figures.
    strict = SquadTask({}, may_be_impossible=True, null_threshold=-1e9)
    strict.write_predictions(str(tmp_path / "strict"), "test", examples, windows, outputs)
    written = json.loads((tmp_path / "strict/test_predictions.json").read_text())
    assert set(written.values()) == {""}
    figures = strict.score(examples, windows, outputs)
    assert figures["has_answer_f1"] == 0 and figures["best_f1"] == 100


def test_v1_answers_every_question(tokenizer, questions, tmp_path):
    task = SquadTask({})
    sequences, windows = task.encode(questions, tokenizer, 128, training=True)
    outputs = perfect_outputs(sequences)
    for output in outputs:
        output["start_logits"][0] = output["end_logits"][0] = 99  # [CLS] is no answer here
    paths = task.write_predictions(str(tmp_path), "dev", questions, windows, outputs)
    assert len(paths) == 2
    assert all(json.loads((tmp_path / "dev_predictions.json").read_text("utf-8")).values())
    assert task.score(questions, windows, outputs)["exact_match"] == 100
    # A test file of SQuAD 2.0 has questions that 1.1 has no score for.
    impossible = dataclasses.replace(questions[0], answers=(), is_impossible=True)
    assert task.score([impossible, *questions[1:]], windows, outputs) == {}


@pytest.mark.parametrize(
    ("context", "text"),
    [("", "who"), (" \n ", "who"), ("\u0301", "who"), ("", ""), (CONTEXT, ""), ("fox", "who")],
)
@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_out(tokenizer, context, text, training):
    task = SquadTask({}, may_be_impossible=True)
    example = Question("q", text, context, (), True)
    sequences, windows = task.encode([example], tokenizer, 128, training=training)
    assert len(sequences) == len(windows) == 1
    pieces = [*tokenizer.encode(text), tokenizer.sep_id, *tokenizer.encode(context)]
    assert sequence(sequences, 0) == [tokenizer.cls_id, *pieces, tokenizer.sep_id]


def test_a_question_that_leaves_no_room_is_truncated(tokenizer, questions):
    long = ask("long", CONTEXT, "fox", text="the quick brown fox jumps over a lazy dog" * 9)
    task = SquadTask({}, max_query_length=25)
    assert len(task.encode([questions[0], long], tokenizer, 29, training=True)[0]) > 20
    sequences, windows = task.encode([questions[0], long], tokenizer, 20, training=True)
    assert np.diff(sequences.row_splits).max() == 20
    assert {len(window.is_max_context) for window in windows if window.question == 1} == {1}


@pytest.mark.parametrize("has_answerability_head", [False, True])
def test_the_models_take_what_the_task_gives(tokenizer, questions, has_answerability_head):
    task = SquadTask({}, True, has_answerability_head, doc_stride=20)
    examples = [*questions[:3], ask(9, CONTEXT)]
    config = tiny_config(
        vocab_size=tokenizer.vocab_size, num_hidden_layers=1, max_position_embeddings=64
    )
    tf.random.set_seed(3)
    model = task.create_model(config, recompute=False)
    sequences, windows = task.encode(examples, tokenizer, 64, training=True)
    batch = make_batch(sequences, np.arange(len(sequences)), 64)
    batch = {name: tf.constant(value) for name, value in batch.items()}
    loss = task.losses(model(batch, dropout_seed=tf.constant([3, 5])), batch)
    assert loss.shape == [len(windows)] and np.isfinite(loss).all()

    sequences, windows = task.encode(examples, tokenizer, 64, training=False)
    batch = make_batch(sequences, np.arange(len(sequences)), 64)
    outputs = model({name: tf.constant(value) for name, value in batch.items()})
    rows = [
        {name: value[i].numpy() for name, value in outputs.items()} for i in range(len(windows))
    ]
    figures = task.score(examples, windows, rows)
    assert 0 <= figures["f1"] <= figures["best_f1"] <= 100
    assert figures["best_f1"] >= 25  # to answer nothing
    assert (
        all(
            answer.text and answer.text in CONTEXT
            for _, answer in task._answers(examples, windows, rows)
        )
        or has_answerability_head
    )


def test_questions_some_of_which_have_no_answer_are_told(tmp_path, capsys):
    def write(*answers):
        qas = [
            {"id": str(n), "question": "who", "answers": [{"text": "fox", "answer_start": 4}] * a}
            for n, a in enumerate(answers)
        ]
        content = {"data": [{"paragraphs": [{"context": "the fox", "qas": qas}]}]}
        (tmp_path / "q.json").write_text(json.dumps(content))
        return str(tmp_path / "q.json")

    task = SquadTask({"test": write(1, 1, 0)})
    expected = "1 of 3 questions have no answer, so none is scored"
    for _ in range(2):
        assert [example.answers for example in task.read_file(write(1, 1, 0))] == [()] * 3
    said = capsys.readouterr().out
    assert said.startswith("warning: ") and said.count(f"q.json: {expected}") == 1
    assert any(expected in note for note in task.summarise(task.read("test")))
    for answers in ((1, 1), (0, 0)):
        task = SquadTask({"test": write(*answers)})
        list(task.read_file(write(*answers)))
        assert "warning" not in capsys.readouterr().out
        assert not any("scored" in note for note in task.summarise(task.read("test")))
