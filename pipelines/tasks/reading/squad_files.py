"""Reads questions from JSON files in the official format of SQuAD 1.1 and 2.0."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from albert_tf.storage.errors import UserError, shown
from ...data.text_files import ending
from .examples import AnyExample
from .rows import first_character, parse_json, read_text
from .tables import as_text


@dataclasses.dataclass(frozen=True)
class Question(AnyExample):
    """A question about the text `context`.

    `answers` contains pairs of an answer's text and the index of its first character in the
    context. Dev questions have several answers. `answers` is empty if there is no answer or it is
    not known. `is_impossible` is True if the context does not answer the question (SQuAD 2.0).
    """

    id: str
    text: str
    context: str
    answers: tuple[tuple[str, int], ...]
    is_impossible: bool

    @property
    def is_answered(self) -> bool:
        return bool(self.answers) or self.is_impossible

    @property
    def separated(self) -> tuple[str, ...]:
        """See AnyExample: the context, so that all questions about it are in the same split."""
        return (self.context,)

    def inputs(self) -> dict[str, str]:
        return {"question": self.text, "context": self.context}


def is_squad_file(path: str) -> bool:
    """Returns whether a file is in SQuAD's format, based on its name and first character."""
    return ending(path) == ".json" and first_character(path) == "{"


def read_questions(path: str) -> list[Question]:
    """Returns the questions of a file in file order. The file may be compressed."""
    content = parse_json(read_text(path), path, "is it a whole file of SQuAD's?")
    questions = []
    for a, article in enumerate(_get(path, content, "data", list), start=1):
        for p, paragraph in enumerate(_get(f"{path}: article {a}", article, "paragraphs", list), 1):
            where = f"{path}: article {a}, paragraph {p}"
            context = _get(where, paragraph, "context", str)
            qas = _get(where, paragraph, "qas", list)
            questions += [_read_question(path, where, entry, context) for entry in qas]
    if not questions:
        raise UserError(f"{path}: no question in it")
    return questions


def _read_question(path: str, paragraph: str, entry: Any, context: str) -> Question:
    question_id = _get(paragraph, entry, "id", str)
    where = f"{path}: question {shown(question_id)}"
    answers = _get(where, {"answers": [], **entry}, "answers", list)
    return Question(
        id=question_id,
        text=_get(where, entry, "question", str),
        context=context,
        answers=tuple(
            (_get(where, answer, "text", str), _get(where, answer, "answer_start", int))
            for answer in answers
        ),
        is_impossible=_get(where, {"is_impossible": False, **entry}, "is_impossible", bool),
    )


def _get(where: str, owner: object, name: str, kind: type):
    if not isinstance(owner, dict) or not isinstance(owner.get(name), kind):
        names = {list: "a list", str: "a string", int: "a whole number", bool: "true or false"}
        raise UserError(
            f"{where}: expected an object with {name!r}, {names[kind]}, as SQuAD's files have it"
        )
    return as_text(owner[name], name, where) if kind is str else owner[name]


def check_answers(
    path: str, questions: Sequence[Question], may_be_impossible: bool, for_training: bool
) -> None:
    """Raises a UserError for the first question that training or scoring cannot use.

    If `for_training`, the first answer of each question must be found at its answer_start.
    """
    for question in questions:
        where = f"{path}: question {shown(question.id)}"
        if question.is_impossible:
            if not may_be_impossible:
                raise UserError(
                    f"{where} is_impossible, which only SQuAD 2.0 allows: use --task=squad_v2 (if "
                    "the model was trained on SQuAD 2.0 elsewhere, pipelines.predict needs "
                    "--null_threshold=0), or remove such questions"
                )
            continue
        if not question.answers:
            hint = ", and is not is_impossible either" if may_be_impossible else ""
            raise UserError(f"{where} has no answers{hint}; are these the questions of a test?")
        text, start = question.answers[0]
        found = question.context[start : start + len(text)] if start >= 0 else ""
        if for_training and (not text.strip() or found != text):
            raise UserError(
                f"{where}: its answer {text[:40]!r} is not at answer_start {start}, where its "
                f"context has {found[:40]!r}: correct it or remove the question"
            )
