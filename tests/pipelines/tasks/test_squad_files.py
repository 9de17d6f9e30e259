import json

import pytest

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
    paragraphs = [
        {"context": "the fox ran", "qas": [question("b"), question("a", "Who?", [])]},
        {"context": "", "qas": [question("c", answers=[], is_impossible=True)]},
    ]
    path = tmp_path / "DEV.JSON"
    write(path, data=[{"paragraphs": []}, {"paragraphs": paragraphs}])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # a byte order mark is not of it
    assert is_squad_file(str(path))
    b, a, c = read_questions(str(path))
    assert [b.id, a.id, c.id] == ["b", "a", "c"]
    assert (b.text, b.answers, b.is_impossible) == ("When?", (("fox", 4),), False)
    assert a.text == "Who?" and a.answers == () and a.context is b.context
    assert c.is_impossible and c.context == ""


def of_paragraph(paragraph):
    return f'{{"data": [{{"paragraphs": [{paragraph}]}}]}}'.encode()


FIRST = r": article 1, paragraph 1: "


def test_files_that_are_none(tmp_path):
    for content, message in (
        (b'{"data": [', r":1: not JSON \(column 11: .*\); is it a whole file of SQuAD's"),
        (b'{"data":\n\xff[', r":2: byte 0xFF is not UTF-8"),
        (100_000 * b"[", r": not JSON \(.*recursion"),
        (b"[]", r": expected an object with 'data', a list"),
        (b'{"data": []}', r": no question in it"),
        (b'{"data": ["x"]}', r": article 1: expected an object with 'paragraphs', a list"),
        (of_paragraph("{}"), FIRST + ".*'context', a string"),
        (of_paragraph('{"context": "a", "qas": [{"id": 3}]}'), FIRST + ".*'id', a string"),
        (of_paragraph('{"context": "a", "qas": [{"id": "x"}]}'), ": question 'x': .*'question', a"),
    ):
        (tmp_path / "squad.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"squad\.json" + message):
            read_questions(str(tmp_path / "squad.json"))


def test_answers_that_cannot_be(tmp_path):
    for split, version_2, entry, message in (
        ("train", False, question(answers=[]), " has no answers; are"),
        ("dev", True, question(answers=[]), " has no answers, and is not is_impossible either"),
        ("train", False, question(is_impossible=True), r" is_impossible.*2\.0"),
        ("train", True, question(answers=[("fox", 3)]), ": .* 'fox' is not at .* 3.*' fo'"),
        ("train", True, question(answers=[("fox", -7)]), ": .* not at answer_start -7"),
        ("train", True, question(answers=[(" ", 3)]), ": its answer ' ' is not at"),
    ):
        path = write(tmp_path / "squad.json", entry)
        with pytest.raises(ValueError, match=rf"squad\.json: question 'q1'{message}"):
            SquadTask({split: path}, may_be_impossible=version_2).read(split)


def test_all_questions_to_predict_have_answers_or_none(tmp_path):
    known, unknown = question(), question("q2", answers=[])
    impossible = question("q2", answers=[], is_impossible=True)
    for other, message in (
        (unknown, "has no answers; are these the questions of a test"),
        (impossible, "is_impossible, which only SQuAD 2.0.*predict needs --null_threshold=0"),
    ):
        path = write(tmp_path / "mixed.json", known, other)
        with pytest.raises(ValueError, match=rf"mixed\.json: question 'q2' {message}"):
            list(SquadTask({}).read_file(path))
        files = [write(tmp_path / "a.json", known), write(tmp_path / "mixed.json", other)]
        with pytest.raises(ValueError, match=rf"mixed\.json: question 'q2' {message}"):
            SquadTask({"test": files}).read("test")
    assert len([*SquadTask({}).read_file(write(tmp_path / "test.json", unknown))]) == 1


def test_what_may_be(tmp_path):
    first = question(answers=[("fox", 4), ("the", 77)])  # only the first is trained on
    path = write(tmp_path / "a.json", first, question("q2", answers=[], is_impossible=True))
    assert len(SquadTask({"train": path}, may_be_impossible=True).read("train")) == 2
    task = SquadTask({"test": write(tmp_path / "test.json", {"id": "q", "question": "Who?"})})
    assert task.read("train") is None and task.other_splits() == ["test"]
    assert task.read("test")[0].answers == ()
    wrong = write(tmp_path / "dev.json", question(answers=[("fox", 3)]))
    assert SquadTask({"dev": wrong}).read("dev")[0].answers == (("fox", 3),)
