"""Multiple choice: one of several answers to a question about a text."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import os
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.storage.errors import UserError
from albert_tf.text.choices import questions_with_options
from albert_tf.text.packing import NUM_SPECIAL_PIECES, Packer
from albert_tf.text.tokenization import AlbertTokenizer
from .reading.split_report import describe_labels, warn_of_rows
from .reading.tables import as_text, columns_of_file, read_table, write_table
from .scoring.classes import probabilities_of
from .task import (
    Answers,
    AnyExample,
    Description,
    Outputs,
    Sequences,
    Task,
    columns_of_model,
    file_lists,
    in_blocks,
    join,
    tokenize,
)

# Examples tokenized at a time.
_BLOCK_EXAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class MultipleChoiceExample(AnyExample):
    """A question and its options.

    Attributes:
      context: the text that the question is about.
      question: an option follows it or fills its blanks, see MultipleChoiceTask.blank.
      options: the same number for every question of a task.
      label: index of the right option, from 0; None: not known.
      part: name of a part of the split that is also scored separately, if there are several.
    """

    id: str
    context: str
    question: str
    options: tuple[str, ...]
    label: int | None
    part: str = ""

    @property
    def is_answered(self) -> bool:
        """See AnyExample."""
        return self.label is not None

    @property
    def group(self) -> str:
        """Returns the context, whose questions stay together."""
        return self.context

    def inputs(self) -> dict[str, str | Sequence[str]]:
        """See AnyExample."""
        return {"context": self.context, "question": self.question, "options": self.options}


@dataclasses.dataclass(frozen=True)
class MultipleChoiceColumns:
    """Names of the fields; None: there is no such field.

    A file without answers needs no label field.
    """

    context: str = "text"
    options: str = "options"
    label: str = "label"
    question: str | None = None
    id: str | None = None


@dataclasses.dataclass(eq=False)
class MultipleChoiceTask(Task):
    """Choices between texts from JSON lines.

    Attributes:
      name: as of --task.
      files: "train", "dev", "test" -> its file or files; test may be without answers. What there is
        not is left out.
      columns: the fields; options are a list of texts, a label is a number from 0 or a letter.
      max_qa_length: the longest question with an option, in pieces; the end of a longer one counts.
      blank: the character in a question that an option replaces; None: every option follows its
        question. Only RACE has cloze questions: elsewhere `_` is part of a name.
    """

    name: str
    files: Mapping[str, str | Sequence[str]]
    columns: MultipleChoiceColumns
    max_qa_length: int = 128

    kinds = ("multiple_choice",)
    best_metric = "accuracy"
    blank = None

    def __post_init__(self):
        self.files = file_lists(self.files)

    @classmethod
    def restore(
        cls, description: dict, columns: Mapping[str, str], quoting: str | None
    ) -> MultipleChoiceTask:
        """Returns the task of a finished model; see Task. The field `text` is also the context."""
        columns = {"context" if name == "text" else name: columns[name] for name in columns}
        named = columns_of_model(MultipleChoiceColumns, description, columns)
        task = cls(description["task"], {}, named, description["max_qa_length"])
        task.num_choices = description["num_choices"]
        task.blank = description.get("blank")
        return task

    @functools.cached_property
    def num_choices(self) -> int:
        """Number of options per question, from the first row of the first file."""
        path, column = next(iter(self.files.values()))[0], self.columns.options
        number, row = next(read_table(path, [column]))
        return len(as_options(row[column], column, f"{path}:{number}"))

    def read_file(
        self, path: str, first: int = 0, needs_answers: bool = False
    ) -> Iterator[MultipleChoiceExample]:
        """See Task.read_file."""
        columns = columns_of_file(path, self.columns, needs_answers)
        names = [column for column in dataclasses.astuple(columns) if column]
        rows = read_table(path, names, absent=None if columns.label else self.columns.label)
        for place, (number, row) in enumerate(rows, start=first):
            where, name, question, label = f"{path}:{number}", str(place), "", None
            if columns.id:
                name = as_text(str(row[columns.id]), columns.id, where)
            options = as_options(row[columns.options], columns.options, where, self.num_choices)
            if columns.question:
                question = as_text(row[columns.question], columns.question, where)
            if columns.label:
                label = as_choice(row[columns.label], columns.label, where, len(options))
            context = as_text(row[columns.context], columns.context, where)
            yield MultipleChoiceExample(name, context, question, options, label)

    def encode(
        self,
        examples: list[MultipleChoiceExample],
        tokenizer: AlbertTokenizer,
        max_seq_length: int,
        training: bool,
    ) -> tuple[Sequences, list[MultipleChoiceExample]]:
        """See Task.encode; the feature of an example is the example itself."""
        labels = {}
        if all(example.label is not None for example in examples):
            labels["labels"] = np.array([example.label for example in examples], np.int32)
        blocks = self._blocks(examples, tokenizer, max_seq_length)
        return join(blocks, labels, self.num_choices), examples

    def summarise(self, examples: list[MultipleChoiceExample]) -> list[str]:
        """See Task.summarise."""
        warnings = warn_of_rows(0, [example.id for example in examples])
        if any(example.label is None for example in examples):
            return ["without answers", *warnings]
        counts = collections.Counter(string.ascii_uppercase[e.label] for e in examples)
        return [describe_labels(string.ascii_uppercase[: self.num_choices], counts), *warnings]

    def _blocks(
        self,
        examples: Sequence[MultipleChoiceExample],
        tokenizer: AlbertTokenizer,
        max_seq_length: int,
    ) -> Iterator[tuple[dict[str, tf.Tensor], np.ndarray]]:
        """Yields packed sequences, one per option, and their lengths before truncation."""
        in_graph, packer = tokenizer.in_graph(), Packer(tokenizer, max_seq_length)
        for block in in_blocks(examples, _BLOCK_EXAMPLES):
            # Several questions share a text, so tokenize each text once.
            texts = list(dict.fromkeys(example.context for example in block))
            contexts, full_lengths = tokenize(texts, tokenizer, max_seq_length)
            place_of = {text: place for place, text in enumerate(texts)}
            places = np.repeat([place_of[e.context] for e in block], self.num_choices)
            answers = in_graph(
                questions_with_options(
                    in_graph.preprocess,
                    tf.constant([example.question for example in block]),
                    tf.constant([option for example in block for option in example.options]),
                    self.max_qa_length,
                    self.blank,
                )
            )
            contexts = tf.gather(contexts[:, :max_seq_length], places)
            tokens = packer.pack_choices(contexts, answers, self.max_qa_length)
            lengths = full_lengths[places] + answers.row_lengths().numpy() + NUM_SPECIAL_PIECES
            yield tokens, lengths

    def description(self) -> Description:
        """See Task.description."""
        model = {
            "kind": self.kinds[0],
            "num_choices": self.num_choices,
            "max_qa_length": self.max_qa_length,
            "blank": self.blank,
        }
        return Description(model, {}, {"columns": dataclasses.asdict(self.columns)})

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """See Task.losses."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(batch["labels"], outputs["logits"])

    def answers(
        self,
        examples: list[MultipleChoiceExample],
        features: list[MultipleChoiceExample],
        outputs: Outputs,
    ) -> Answers:
        """See Task.answers: letters, probabilities, the text of the chosen option."""
        letters = string.ascii_uppercase[: self.num_choices]
        probabilities = probabilities_of(outputs)
        places = probabilities.argmax(axis=1)
        columns = {"id": [example.id for example in examples]}
        if all(example.is_answered for example in examples):
            columns["label"] = [letters[example.label] for example in examples]
        columns["prediction"] = [letters[place] for place in places]
        for letter, of_letter in zip(letters, probabilities.T):
            columns[f"probability_{letter}"] = [round(number, 6) for number in of_letter.tolist()]
        columns["option"] = [example.options[i] for example, i in zip(examples, places)]
        return Answers(columns, {"part": [example.part for example in examples]})

    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """See Task.score; `accuracy`, and `accuracy_PART` for each part."""
        right, parts = array.array("b"), collections.defaultdict(lambda: array.array("b"))
        for row in rows:
            if "label" not in row:
                return {}
            right.append(row["label"] == row["prediction"])
            if row.get("part"):
                parts[f"accuracy_{row['part']}"].append(right[-1])
        found = {"accuracy": right, **parts}
        return {name: float(np.mean(values)) for name, values in found.items() if values}

    def write(
        self,
        directory: str,
        split: str,
        examples: list[MultipleChoiceExample],
        answers: Answers,
    ) -> list[str]:
        """Writes SPLIT_predictions.tsv with the columns of `answers`."""
        path = os.path.join(directory, f"{split}_predictions.tsv")
        write_table(path, answers.columns)
        return [path]


def as_options(
    value: object, column: str, where: str, num_choices: int | None = None
) -> tuple[str, ...]:
    """Returns the options in a value, which must be a list of texts.

    Without `num_choices`, 2 to 26 options are accepted: each has a letter.

    Raises:
      UserError: if the value is not such a list.
    """
    if not isinstance(value, list):
        raise UserError(f'{where}: {column!r} is no list, expected a list of options: ["a", "b"]')
    if num_choices and len(value) != num_choices:
        raise UserError(
            f"{where}: {len(value)} {column!r}, expected {num_choices} as in the other questions"
        )
    if not 2 <= len(value) <= len(string.ascii_uppercase):
        raise UserError(f"{where}: {len(value)} {column!r}, expected 2 to 26")
    return tuple(as_text(option, column, where) for option in value)


def as_choice(value: object, column: str, where: str, num_choices: int) -> int:
    """Returns the index, from 0, of an option that is given as a number from 0 or as a letter.

    Raises:
      UserError: if there is no such option.
    """
    letters = string.ascii_uppercase[:num_choices]
    spellings = {str(i): i for i in range(num_choices)}
    spellings.update({letter: i for i, letter in enumerate(letters)})
    text = str(value).strip().upper()
    if text not in spellings:
        raise UserError(
            f"{where}: {column!r} is {str(value)[:60]!r}, expected 0 to {num_choices - 1} or A to "
            f"{letters[-1]}"
        )
    return spellings[text]
