"""Reading SQuAD's JSON: what is in it, and one clear line for what is wrong with it."""

from __future__ import annotations

import collections
import json

import pytest

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.tasks.reading.squad_files import is_squad_file, read_questions
from pipelines.tasks.squad import SquadTask


def question(question_id="q1", text="When?", answers=(("fox", 4),), **more):
    answers = [{"text": answer, "answer_start": start} for answer, start in answers]
    return {"id": question_id, "question": text, "answers": answers, **more}


def write(path, *questions, context="the fox ran", data=None):
    if data is None:
        data = [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]
    path.write_text(json.dumps({"version": "x", "data": data}))
    return str(path)


def test_questions_in_the_files_order(tmp_path):
    data = [
        {"paragraphs": []},
        {
            "paragraphs": [
                {"context": "the fox ran", "qas": [question("b"), question("a", "Who?", [])]},
                {"context": "", "qas": [question("c", answers=[], is_impossible=True)]},
            ]
        },
    ]
    b, a, c = read_questions(write(tmp_path / "squad.json", data=data))
    assert [b.id, a.id, c.id] == ["b", "a", "c"]
    assert (b.text, b.answers, b.is_impossible) == ("When?", (("fox", 4),), False)
    assert a.text == "Who?" and a.answers == () and a.context is b.context
    assert c.is_impossible and c.context == ""


def test_a_byte_order_mark_is_none_of_the_file(tmp_path):
    path = tmp_path / "squad.json"
    write(path, question())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_questions(str(path))) == 1


def test_an_ending_in_capitals(tmp_path):
    assert is_squad_file(write(tmp_path / "DEV.JSON", question()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"data": [', r":1:11: not JSON .*whole"),
        (b'{"data":\n\xff[', r":2: byte 0xFF is not UTF-8"),
        (100_000 * b"[", r": not JSON of SQuAD's"),
        (b'{"data": [], "data": []}', r": not JSON of SQuAD's \(the field 'data' twice"),
        (b"[]", r": expected an object with 'data', a list"),
        (b'{"data": []}', r": no question in it"),
        (b'{"data": ["x"]}', r": article 1: expected an object with 'paragraphs', a list"),
        (b'{"data": [{"paragraphs": [{}]}]}', r": article 1, paragraph 1: .*'context', a string"),
        (
            b'{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": 3}]}]}]}',
            r": article 1, paragraph 1: .*'id', a string",
        ),
        (
            b'{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "x"}]}]}]}',
            r": question 'x': .*'question', a string",
        ),
        (
            b'{"data": [{"paragraphs": [{"context": "\\ud83d", "qas": []}]}]}',
            r": article 1, paragraph 1: 'context' .*surrogate",
        ),
    ],
)
def test_files_that_are_none(tmp_path, content, message):
    path = tmp_path / "squad.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"squad\.json" + message):
        read_questions(str(path))


@pytest.mark.parametrize(
    ("split", "version_2", "entry", "message"),
    [
        ("train", False, question(answers=[]), "'q1' has no answers; are"),
        ("dev", False, question(answers=[]), "'q1' has no answers; are"),
        ("dev", True, question(answers=[]), "'q1' has no answers, and is not is_impossible either"),
        ("train", False, question(is_impossible=True), r"'q1' is_impossible.*2\.0"),
        (
            "train",
            True,
            question(answers=[("fox", 3)]),
            "'q1': its answer 'fox' is not at answer_start 3.*' fo'",
        ),
        (
            "dev",
            True,
            question(is_impossible=True),
            "'q1' is_impossible and has answers, such as 'fox'",
        ),
        ("train", True, question(answers=[("fox", -7)]), "'q1': .* not at answer_start -7"),
        ("train", True, question(answers=[("fox", 5000)]), "'q1': .* not at answer_start 5000.*''"),
        ("train", True, question(answers=[(" ", 3)]), "'q1': its answer ' ' is not at"),
    ],
)
def test_answers_that_cannot_be(tmp_path, split, version_2, entry, message):
    path = write(tmp_path / "squad.json", entry)
    with pytest.raises(ValueError, match=rf"squad\.json: question {message}"):
        SquadTask({split: path}, may_be_impossible=version_2).read(split)


def test_what_may_be(tmp_path):
    path = write(
        tmp_path / "squad.json",
        question(answers=[("fox", 4), ("the", 77)]),  # only the first is trained on
        question("q2", answers=[], is_impossible=True),
    )
    assert len(SquadTask({"train": path}, may_be_impossible=True).read("train")) == 2
    unknown = write(tmp_path / "test.json", {"id": "q", "question": "Who?"})
    task = SquadTask({"test": unknown})
    assert task.read("train") is None and task.other_splits() == ["test"]
    assert task.read("test")[0].answers == ()
    wrong = write(tmp_path / "dev.json", question(answers=[("fox", 3)]))
    assert SquadTask({"dev": wrong}).read("dev")[0].answers == (("fox", 3),)


def test_an_id_twice(tmp_path):
    path = write(tmp_path / "squad.json", question("x"), question("y"), question("x"))
    with pytest.raises(ValueError, match="two questions have the id 'x'"):
        read_questions(path)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("path", "version_2", "questions", "impossible", "answers"),
    [
        ("v1.1/dev-v1.1.json", False, 10570, 0, {3: 8490, 5: 1147, 4: 759, 2: 136, 6: 35, 1: 3}),
        ("v1.1/train-v1.1.subset-44articles.json", False, 11877, 0, {1: 11877}),
        ("v2.0/dev-v2.0.reconstructed.json", True, 11873, 5945, None),
        ("v2.0/train-v2.0.subset-10articles.json", True, 4719, 348, {1: 4371, 0: 348}),
    ],
)
@pytest.mark.parametrize("split", ["train", "dev"])
def test_published_counts(shared, path, version_2, questions, impossible, answers, split):
    task = SquadTask({split: str(shared / "data/squad" / path)}, may_be_impossible=version_2)
    found = task.read(split)
    assert len(found) == questions
    assert sum(q.is_impossible for q in found) == impossible
    assert sum(not q.answers for q in found) == impossible
    if answers:
        assert collections.Counter(len(q.answers) for q in found) == answers


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("squad_nasty.json", "two questions have the id 'n1'"),
        ("squad_truncated.json", r":\d+:\d+: not JSON"),
        ("empty.txt", ":1:1: not JSON"),
        ("latin1.txt", ":1: byte 0xE9 is not UTF-8"),
        ("crlf_bom.tsv", ":1:1: not JSON"),
    ],
)
def test_nasty_files(nasty, name, message):
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        read_questions(str(nasty / name))


def test_nasty_answers(nasty, tiny_vocabulary, tmp_path):
    """The nasty file one fault at a time: each is named, and the rest can be read."""
    content = json.loads((nasty / "squad_nasty.json").read_text(encoding="utf-8"))
    questions = content["data"][0]["paragraphs"][0]["qas"]
    assert questions.pop(13)["question"] == "duplicate id"
    path = tmp_path / "nasty.json"
    faults = []
    while True:
        path.write_text(json.dumps(content))
        task = SquadTask({"train": str(path)}, may_be_impossible=True)
        try:
            found = task.read("train")
            break
        except ValueError as error:
            faults.append(next(q for q in questions if f"question {q['id']!r}" in str(error)))
            questions.remove(faults[-1])
    assert [fault["id"] for fault in faults] == ["n6", "n7", "n8", "n9"]
    assert len(found) == 13

    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    sequences, windows = task.encode(found, tokenizer, 96, training=True)
    assert {window.question for window in windows} == set(range(13))
    answered = {w.question for w, no in zip(windows, sequences.labels["is_impossible"]) if not no}
    assert answered == {i for i, q in enumerate(found) if not q.is_impossible}
    for window, start, end in zip(
        windows, sequences.labels["start_positions"], sequences.labels["end_positions"]
    ):
        if end:
            place = slice(window.first - window.offset + start, None)
            first = window.paragraph.starts[place][0]
            last = window.paragraph.ends[place][end - start]
            text, context = found[window.question].answers[0][0], found[window.question].context
            assert text.strip() in context[first : last + 1]
