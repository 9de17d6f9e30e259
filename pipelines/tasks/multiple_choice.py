"""Multiple choice: selects one of several answers to a question about a text."""

import array
import collections
import dataclasses
import functools
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.answering import classes
from albert_tf.storage.errors import UserError
from albert_tf.text.choices import questions_with_options
from albert_tf.text.packing import NUM_SPECIAL_PIECES
from .reading.examples import AnyExample, id_and_label, required
from .reading.sequences import Encoder, Packed
from .reading.split_report import describe_labels, describe_texts
from .reading.tables import Row, as_text, read_rows
from .scoring.metrics import rounded_down
from .task import Answers, Columns, Description, Files, Outputs, Task, final_answers

_FIELDS = {"context": "text", "options": "options", "label": "label", "question": None, "id": None}


@dataclasses.dataclass(frozen=True)
class MultipleChoiceExample(AnyExample):
    """A question about a text, with its options.

    `label` is the index of the correct option, or None if it is not known. `part` names a part of
    the split that is also scored separately.
    """

    id: str
    context: str
    question: str
    options: tuple[str, ...]
    label: int | None
    part: str = ""

    @property
    def separated(self) -> tuple[str, ...]:
        """See AnyExample: the context, or all other texts of a question without a context."""
        return (self.context if self.context.strip() else " ".join(self.texts()),)

    def inputs(self) -> dict[str, str | Sequence[str]]:
        return {"context": self.context, "question": self.question, "options": self.options}


class MultipleChoiceTask(Task):
    """Selects one of several options for each question. Reads JSON lines.

    In each row the options are a list of texts, and the label is a number from 0 or a letter. If a
    question and an option are too long together, their last `max_qa_length` pieces are kept.

    Args:
      max_qa_length: maximum length of a question plus an option, in pieces.
      num_choices: number of options per question. Default: as in the first file.
      blank: the character in a cloze question that is replaced by the option. If None, the option
        is appended to the question. Only RACE sets it; in other data `_` may be part of a name.
    """

    fields = _FIELDS
    stored = ("max_qa_length", "num_choices", "blank")
    best_metric = "accuracy"

    def __init__(
        self,
        name: str,
        files: Files,
        columns: Columns | None = None,
        max_qa_length: int = 128,
        num_choices: int | None = None,
        blank: str | None = None,
    ):
        super().__init__(name, files, columns)
        self.max_qa_length = max_qa_length
        self._num_choices = num_choices
        self.blank = blank

    @classmethod
    def restore(cls, description: dict, columns: Mapping[str, str], quoting: str | None) -> Task:
        """See Task.restore. The first text is the context, the second one the question."""
        fields = {"text": "context", "text_pair": "question"}
        columns = {fields.get(name, name): column for name, column in columns.items()}
        return super().restore(description, columns, quoting)

    @functools.cached_property
    def num_choices(self) -> int:
        """Number of options per question, by default from the first row of the first file."""
        if self._num_choices:
            return self._num_choices
        path, column = next(iter(self.files.values()))[0], self.column("options")
        row = next(read_rows(path, 0, False, {"options": column}))
        return len(as_options(row.cells["options"], column, row.where))

    def examples(self, rows: Iterable[Row], part: str = "") -> Iterator[MultipleChoiceExample]:
        for row in rows:
            cells, names, where = row.cells, row.columns, row.where
            options = as_options(cells["options"], names["options"], where, self.num_choices)
            question = row.text("question") if "question" in cells else ""
            label = None
            if "label" in cells:
                label = as_choice(cells["label"], names["label"], where, len(options))
            context = row.text("context")
            yield MultipleChoiceExample(row.id, context, question, options, label, part)

    def pack(self, examples: list[MultipleChoiceExample], first: int, encoder: Encoder) -> Packed:
        """See Task.pack. Each option is one sequence. The features are the examples."""
        # Several questions may share a text: tokenize each text once.
        texts = list(dict.fromkeys(example.context for example in examples))
        contexts, full_lengths = encoder.tokenize(texts)
        place_of = {text: place for place, text in enumerate(texts)}
        places = np.repeat([place_of[e.context] for e in examples], self.num_choices)
        in_graph = encoder.tokenizer.in_graph()
        answers = in_graph(
            questions_with_options(
                in_graph.preprocess,
                tf.constant([example.question for example in examples]),
                tf.constant([option for example in examples for option in example.options]),
                self.max_qa_length,
                self.blank,
            )
        )
        # Truncate before repeating the texts, to save memory.
        contexts = tf.gather(contexts[:, : encoder.max_seq_length], places)
        tokens = encoder.pack_choices(contexts, answers, self.max_qa_length)
        lengths = full_lengths[places] + answers.row_lengths().numpy() + NUM_SPECIAL_PIECES
        return tokens, lengths, examples

    def targets(self, examples: list, features: list, max_seq_length: int) -> dict[str, np.ndarray]:
        """See Task.targets. `labels` are the indices of the correct options, int32 [n]."""
        return {"labels": np.array([example.label for example in examples], np.int32)}

    def summarise(self, examples: list[MultipleChoiceExample]) -> list[str]:
        notes = describe_texts(examples)
        if any(example.label is None for example in examples):
            return ["without answers", *notes]
        counts = collections.Counter(string.ascii_uppercase[required(e.label)] for e in examples)
        return [describe_labels(string.ascii_uppercase[: self.num_choices], counts), *notes]

    def description(self) -> Description:
        model = {
            "kind": "multiple_choice",
            "num_choices": self.num_choices,
            "max_qa_length": self.max_qa_length,
            "blank": self.blank,
        }
        return Description(model, {}, {"columns": self.columns})

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(batch["labels"], outputs["logits"])

    def answers(self, examples: list, features: list | None, outputs: Outputs) -> Answers:
        """See Task.answers. Columns: letters, probabilities, and the text of the chosen option."""
        letters = string.ascii_uppercase[: self.num_choices]
        columns = id_and_label(examples, lambda example: letters[example.label])
        probabilities = final_answers(classes.softmax, features, outputs)
        places = probabilities.argmax(axis=1)
        columns["prediction"] = [letters[place] for place in places]
        for letter, of_letter in zip(letters, rounded_down(probabilities).T):
            columns[f"probability_{letter}"] = of_letter.tolist()
        columns["option"] = [example.options[i] for example, i in zip(examples, places)]
        return Answers(columns, {"part": [example.part for example in examples]})

    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """See Task.score. Returns `accuracy`, and `accuracy_PART` for each part."""
        right = array.array("b")
        parts: dict[str, array.array] = collections.defaultdict(lambda: array.array("b"))
        for row in rows:
            if "label" not in row:
                return {}
            right.append(row["label"] == row["prediction"])
            if row.get("part"):
                parts[f"accuracy_{row['part']}"].append(right[-1])
        found = {"accuracy": right, **parts}
        return {name: float(np.mean(values)) for name, values in found.items() if values}


def as_options(
    value: object, column: str, where: str, num_choices: int | None = None
) -> tuple[str, ...]:
    """Converts a value to options. It must be a list of 2 to 26 texts, one for each letter."""
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
    """Converts a letter, or a number from 0, to the index of an option."""
    letters = string.ascii_uppercase[:num_choices]
    text = str(value).strip().upper()
    for place, letter in enumerate(letters):
        if text in (letter, str(place)):
            return place
    raise UserError(
        f"{where}: {column!r} is {str(value)[:60]!r}, expected 0 to {num_choices - 1} or A to "
        f"{letters[-1]}"
    )
