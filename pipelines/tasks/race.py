"""RACE: reading comprehension questions from English exams, read from a directory tree."""

import os
import re
from collections.abc import Iterator

import tensorflow as tf

from albert_tf.storage.errors import UserError
from .multiple_choice import MultipleChoiceExample, MultipleChoiceTask
from .reading.rows import read_json_objects
from .reading.tables import Row, as_text, require_fields
from .task import Description

# Maps the fields of MultipleChoiceTask to those of RACE's passages.
_COLUMNS = {"context": "article", "question": "questions", "options": "options", "label": "answers"}


class RaceTask(MultipleChoiceTask):
    """The RACE task. Accuracy is also computed separately for middle and high school exams.

    The directories train, dev and test each contain the directories middle and high. Each passage
    is a JSON object, either in its own numbered file or in a line of all.txt. Numbered files are
    read in numerical order.

    Source: Lai et al. 2017; the reference's race_utils.
    """

    def __init__(self, data_dir: str):
        super().__init__("race", {}, num_choices=4, blank="_")
        inner = os.path.join(data_dir, "RACE")
        self.directory = inner if tf.io.gfile.isdir(inner) else data_dir

    def read(self, split: str) -> list[MultipleChoiceExample] | None:
        """See Task.read. In the test split, answers are optional."""
        directory = os.path.join(self.directory, split)
        if split != "train" and not tf.io.gfile.isdir(directory):
            return None
        examples: list[MultipleChoiceExample] = []
        for level in ("middle", "high"):
            for path in _passage_files(os.path.join(directory, level)):
                for number, passage in read_json_objects(path, may_be_array=False):
                    rows = _questions(passage, f"{path}:{number}", split == "test")
                    examples += self.examples(rows, level)
        if not examples:
            raise UserError(
                f"--data_dir: no passages in {directory!r}; expected middle/*.txt and high/*.txt"
            )
        return examples

    def other_splits(self) -> list[str]:
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


def _questions(passage: dict, where: str, may_lack_answers: bool) -> Iterator[Row]:
    """Yields the questions of a passage as rows, with ids of the form PASSAGE-NUMBER."""
    fields = dict(_COLUMNS)
    if may_lack_answers and "answers" not in passage:
        del fields["label"]
    context, *lists = fields.values()
    require_fields(passage, ["id", context, *lists], where)
    counts = {len(passage[name]) if isinstance(passage[name], list) else None for name in lists}
    if len(counts) > 1 or None in counts:
        raise UserError(f"{where}: {', '.join(lists)} are not lists of one length")
    passage_id = as_text(passage["id"], "id", where)
    for i, values in enumerate(zip(*(passage[name] for name in lists))):
        cells = dict(zip(fields, (passage[context], *values)))
        yield Row(f"{where}, question {i}", f"{passage_id}-{i}", fields, cells)
