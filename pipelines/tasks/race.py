"""RACE: reading comprehension questions from English exams, read from a directory tree."""

import os
import re

import tensorflow as tf

from albert_tf.storage.errors import UserError
from .multiple_choice import MAX_QA_LENGTH, MultipleChoiceExample, MultipleChoiceTask, as_options
from .reading.rows import read_json_objects
from .reading.tables import as_text, require_fields
from .task import Description

_LEVELS = ("middle", "high")
_LETTERS = ["A", "B", "C", "D"]


class RaceTask(MultipleChoiceTask):
    """The RACE task. Accuracy is also computed separately for middle and high school exams.

    The directories train, dev and test each contain the directories middle and high. Each passage
    is a JSON object, either in its own numbered file or in a line of all.txt. Numbered files are
    read in numerical order.

    Source: Lai et al. 2017; the reference's race_utils.
    """

    def __init__(self, data_dir: str, max_qa_length: int = MAX_QA_LENGTH):
        super().__init__("race", {}, None, max_qa_length, len(_LETTERS), blank="_")
        inner = os.path.join(data_dir, "RACE")
        self.directory = inner if tf.io.gfile.isdir(inner) else data_dir

    def read(self, split: str) -> list[MultipleChoiceExample] | None:
        """See Task.read. In the test split, answers are optional."""
        directory = os.path.join(self.directory, split)
        if not tf.io.gfile.isdir(directory):
            if not any(
                tf.io.gfile.isdir(os.path.join(self.directory, name))
                for name in ("train", "dev", "test")
            ):
                raise UserError(
                    f"--data_dir: no directory train, dev or test in {self.directory!r}; expected "
                    "RACE's directories, each with middle and high"
                )
            return None
        examples = []
        for level in _LEVELS:
            for path in _passage_files(os.path.join(directory, level)):
                for number, passage in read_json_objects(path, may_be_array=False):
                    examples += _read_passage(passage, f"{path}:{number}", level, split == "test")
        if not examples:
            raise UserError(
                f"--data_dir: no passages in {directory!r}; expected middle/*.txt and high/*.txt"
            )
        return examples

    def other_splits(self) -> list[str]:
        """See Task.other_splits."""
        return ["test"] if tf.io.gfile.isdir(os.path.join(self.directory, "test")) else []

    def description(self) -> Description:
        """See Task.description. `source` is empty, because RACE's files have no columns."""
        return super().description()._replace(source={})


def _passage_files(directory: str) -> list[str]:
    if not tf.io.gfile.isdir(directory):
        return []
    names = [name for name in tf.io.gfile.listdir(directory) if name.endswith(".txt")]
    if "all.txt" in names:
        return [os.path.join(directory, "all.txt")]

    # Numerical order: 10.txt comes after 9.txt.
    def order(name: str) -> tuple:
        return [int(number) for number in re.findall(r"\d+", name)], name

    return [os.path.join(directory, name) for name in sorted(names, key=order)]


def _read_passage(
    passage: dict, where: str, level: str, may_lack_answers: bool
) -> list[MultipleChoiceExample]:
    """Returns the questions of a passage. Question ids have the form PASSAGE-NUMBER."""
    has_answers = "answers" in passage or not may_lack_answers
    lists = ["questions", "options", *(["answers"] if has_answers else [])]
    require_fields(passage, ["id", "article", *lists], where)
    counts = {len(passage[name]) if isinstance(passage[name], list) else None for name in lists}
    if len(counts) > 1 or None in counts:
        raise UserError(f"{where}: {', '.join(lists)} are not lists of one length")
    passage_id = as_text(passage["id"], "id", where)
    context = as_text(passage["article"], "article", where)
    examples = []
    for i, question in enumerate(passage["questions"]):
        of_question = f"{where}, question {i}"
        label = None
        if has_answers:
            answer = passage["answers"][i]
            if answer not in _LETTERS:
                raise UserError(
                    f"{of_question}: its answer is {str(answer)[:60]!r}, expected A, B, C or D"
                )
            label = _LETTERS.index(answer)
        examples.append(
            MultipleChoiceExample(
                id=f"{passage_id}-{i}",
                context=context,
                question=as_text(question, "questions", of_question),
                options=as_options(passage["options"][i], "options", of_question, len(_LETTERS)),
                label=label,
                part=level,
            )
        )
    return examples
