"""What the programs know of a task: its examples, their pieces, its answers and its methods."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.kinds import KINDS
from albert_tf.storage.errors import UserError
from albert_tf.text.in_graph import on_host
from albert_tf.text.limits import chars_of_sequence
from albert_tf.text.tokenization import AlbertTokenizer

Outputs = list[dict[str, np.ndarray]]
_Columns = TypeVar("_Columns")


class AnyExample(abc.ABC):
    """A row of a task's data: a frozen dataclass, whose `repr` no other row has.

    Attributes:
      id: its name in the file, or the number of its row, from 0.
    """

    id: str

    @property
    @abc.abstractmethod
    def is_answered(self) -> bool:
        """Whether the right answer is known."""

    @property
    @abc.abstractmethod
    def group(self) -> str:
        """A text that examples share which must not be divided between train and dev.

        It is compared after dev_split.comparable.
        """

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels of an answered example, whose shares train and dev have in common; or none."""
        return ()

    @abc.abstractmethod
    def inputs(self) -> dict[str, str | Sequence[str]]:
        """Returns its texts under the names that the signatures of exports give them."""

    def texts(self) -> Iterator[str]:
        """Yields its texts."""
        for value in self.inputs().values():
            yield from [value] if isinstance(value, str) else value

    def num_chars(self) -> int:
        """Returns the number of characters of all its texts."""
        return sum(map(len, self.texts()))


class Answers(NamedTuple):
    """What a model answers to examples, as columns of one value for each example.

    Attributes:
      columns: JSON values: `id`, `label` if all examples are answered, `prediction`, and more.
      exact: what figures and files of fine-tuning need beside these.
    """

    columns: dict[str, list]
    exact: dict[str, Sequence]

    def rows(self) -> Iterator[dict]:
        """Yields the values of each example by name."""
        columns = {**self.columns, **self.exact}
        for values in zip(*columns.values()):
            yield dict(zip(columns, values))


class Description(NamedTuple):
    """The content of task.json in three parts.

    Attributes:
      model: what decides the weights, or an export needs to know; `kind` is one of KINDS.
      decoding: what decides the answers that are made of the model's outputs, if anything.
      source: how files to predict are read.
    """

    model: dict[str, Any]
    decoding: dict[str, Any]
    source: dict[str, Any]


_BLOCK_CHARS = 1_000_000
_INPUTS = ("input_ids", "input_mask", "segment_ids")


@dataclasses.dataclass(frozen=True)
class Sequences:
    """What the model reads: `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, unpadded.

    Attributes:
      pieces: int32 [all pieces], one sequence after the other.
      row_splits: int64 [sequences + 1]: sequence i is pieces[row_splits[i]:row_splits[i + 1]].
      first_lengths: int32 [sequences]: its pieces of type 0, [CLS] and the first [SEP] among them.
      labels: name -> array [sequences / sequences_per_example]; empty where answers are not known.
      sequences_per_example: sequences that are scored together, such as the choices of a question.
      full_lengths: int32 [sequences]: what they were before truncation, [CLS] and [SEP] included.
      lost_answers: examples whose answer is in no sequence as a whole; their label is "no answer".
    """

    pieces: np.ndarray
    row_splits: np.ndarray
    first_lengths: np.ndarray
    labels: dict[str, np.ndarray]
    sequences_per_example: int = 1
    full_lengths: np.ndarray | None = None
    lost_answers: int = 0

    def __len__(self) -> int:
        return (len(self.row_splits) - 1) // self.sequences_per_example


def in_blocks(
    items: Sequence, size: int, num_chars: Callable[[Any], int] = lambda item: item.num_chars()
) -> Iterator[Sequence]:
    """Yields neighbouring items, at most `size` at a time, and of long texts fewer.

    While a text becomes sequences, each of its characters takes some 200 bytes of memory.
    """
    begin, chars = 0, 0
    for place, item in enumerate(items):
        chars_of_item = num_chars(item)
        if place - begin == size or (place > begin and chars + chars_of_item > _BLOCK_CHARS):
            yield items[begin:place]
            begin, chars = place, 0
        chars += chars_of_item
    if begin < len(items):
        yield items[begin:]


def join(
    blocks: Iterable[tuple[dict[str, tf.Tensor], np.ndarray | None]],
    labels: dict[str, np.ndarray],
    sequences_per_example: int = 1,
) -> Sequences:
    """Returns packed sequences without their padding.

    Fine-tuning, `predict` and exports make sequences by the same code, albert_tf.text. It takes 1.0
    to 1.5 times as long as the Python tokenizer (tests/benchmarks/README.md, finetune).

    Args:
      blocks: what albert_tf.text.packing.Packer returns, and Sequences.full_lengths of them.
      labels: as of Sequences.
      sequences_per_example: sequences that belong to one example, one after the other.
    """
    pieces, lengths, first_lengths, full_lengths = columns = [[], [], [], []]
    with on_host():
        for tokens, of_block in blocks:
            ids, mask, types = (tokens[name].numpy() for name in _INPUTS)
            pieces.append(ids[mask == 1])
            lengths.append(mask.sum(axis=1))
            first_lengths.append(lengths[-1] - types.sum(axis=1))
            full_lengths.append(lengths[-1] if of_block is None else of_block)
    pieces, lengths, first_lengths, full_lengths = (
        np.concatenate([np.zeros(0, np.int32), *column]).astype(np.int32, copy=False)
        for column in columns
    )
    return Sequences(
        pieces=pieces,
        row_splits=np.cumsum([0, *lengths], dtype=np.int64),
        first_lengths=first_lengths,
        labels=labels,
        sequences_per_example=sequences_per_example,
        full_lengths=full_lengths,
    )


def tokenize(
    texts: Sequence[str], tokenizer: AlbertTokenizer, max_seq_length: int
) -> tuple[tf.RaggedTensor, np.ndarray]:
    """Returns as many pieces of texts as can matter to a sequence, and how many there are in all.

    The number is an estimate where less than the text was read, and then more than was returned.

    Returns:
      int32 [texts, (pieces)] and int64 [texts].
    """
    read = chars_of_sequence(tf.constant(texts), max_seq_length)
    pieces = tokenizer.in_graph()(read)
    counts = pieces.row_lengths().numpy()
    written = np.array([len(text.strip()) for text in texts], np.int64)
    chars = tf.strings.length(read, "UTF8_CHAR").numpy()
    estimates = np.maximum(counts + 1, counts * written // np.maximum(chars, 1))
    return pieces, np.where(written > chars, estimates, counts)


def file_lists(files: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """Returns the files of each split that has any; a split may have one or several."""
    return {
        split: [paths] if isinstance(paths, str) else list(paths)
        for split, paths in files.items()
        if paths
    }


class Task(abc.ABC):
    """A task with its files. Whoever makes one has checked its flags; `read` checks the files.

    A task whose models predict files also has a class method `restore`: (content of task.json,
    field -> column where it differs from fine-tuning, quoting) -> the task without files.

    Attributes:
      name: as of --task.
      best_metric: the metric of `score` that selects the best checkpoint; more is better.
      files: split -> its files, of tasks that are read by `read_file`.
    """

    name: str
    best_metric: str
    files: Mapping[str, list[str]]

    def read(self, split: str) -> list | None:
        """Returns the examples of a split, in the files' order; None if there is no such split.

        Args:
          split: "train", "dev" or one of `other_splits`. All but the latter must have answers.

        Raises:
          UserError: what is wrong in which file and line.
        """
        paths = self.files.get(split)
        return paths and list(read_files(self, paths, needs_answers=split != "test"))

    def other_splits(self) -> list[str]:
        """Returns the splits to predict beside dev, with answers or without."""
        return ["test"] if "test" in self.files else []

    def read_file(self, path: str, first: int = 0, needs_answers: bool = False) -> Iterator:
        """Yields the examples of a file one by one, with answers or all without.

        A task without `files` needs none: it overrides `read` and `other_splits`.

        Args:
          path: a local path or gs://.
          first: the number of its first row.
          needs_answers: whether the answers must be there.

        Raises:
          UserError: what is wrong in which line.
        """
        raise NotImplementedError

    def summarise(self, examples: list) -> list[str]:
        """Returns lines on the examples' answers, and on what is odd about them."""
        return []

    @abc.abstractmethod
    def encode(
        self, examples: list, tokenizer: AlbertTokenizer, max_seq_length: int, training: bool
    ) -> tuple[Sequences, list]:
        """Returns sequences, and for each example of them what `answers` needs to know of it.

        Args:
          examples: as of `read`.
          tokenizer: of the model that reads the pieces.
          max_seq_length: pieces of a sequence at most, [CLS] and [SEP] included.
          training: without it nothing may be left out, and there need be no labels.
        """

    def owners(self, features: list) -> Sequence[int]:
        """Returns the place of each feature's example among the examples, in ascending order."""
        return range(len(features))

    @abc.abstractmethod
    def description(self) -> Description:
        """Returns what task.json holds."""

    @abc.abstractmethod
    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the loss of each example, float32 [b]; `batch` holds the labels by name."""

    @abc.abstractmethod
    def answers(self, examples: list, features: list, outputs: Outputs) -> Answers:
        """Returns what a model answers.

        Args:
          examples: as of `read`.
          features: as of `encode`; without use where an export answers.
          outputs: the model's, one dict for each unit, in order; arrays of [L, ...] may be padded.
            Or an export's, one dict for each example.
        """

    @abc.abstractmethod
    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """Returns the task's metrics; none if the rows have no `label`.

        Args:
          rows: of Answers.rows, or of their columns alone: then what needs `exact` is missing.
        """

    def details(self, examples: list, answers: Answers) -> dict:
        """Returns what results.json has of a split beside its metrics: JSON values, or nothing."""
        return {}

    @abc.abstractmethod
    def write(self, directory: str, split: str, examples: list, answers: Answers) -> list[str]:
        """Writes the answers in the task's own format, and pictures; returns the former's paths."""


def create_model(task: Task, config: AlbertConfig, recompute: bool = False) -> tf.keras.Model:
    """Returns the model: (inputs, dropout_seed) -> dict of outputs, each [examples, ...]."""
    description = task.description().model
    return KINDS[description["kind"]].create_model(config, description, recompute)


def read_files(task: Task, paths: Sequence[str], needs_answers: bool = False) -> Iterator:
    """Yields the examples of files one by one; rows without a name are numbered through.

    Raises:
      UserError: what is wrong in which file and line; or that some of the files have answers.
    """
    number, first = 0, {}  # whether a file has answers -> the first such file
    for path in paths:
        is_answered = None
        for example in task.read_file(path, number, needs_answers):
            if is_answered is None:
                is_answered = example.is_answered
                first.setdefault(is_answered, path)
                if len(first) > 1:
                    raise UserError(
                        f"{first[True]} has answers, {first[False]} has none: give files of "
                        "one kind at a time"
                    )
            yield example
            number += 1


def columns_of_model(
    columns_class: type[_Columns], description: dict, columns: Mapping[str, str]
) -> _Columns:
    """Returns the columns that a finished model reads.

    Args:
      columns_class: a dataclass whose defaults hold for models that name no columns.
      description: the content of task.json.
      columns: field -> column, where it differs from fine-tuning; "": there is no such column.

    Raises:
      UserError: for a field that the class lacks, or for "" where the model reads the column.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(columns_class)}
    names = defaults.keys()
    for field, column in columns.items():
        if field not in names:
            raise UserError(
                f"--{field}_column does not apply to a model of kind {description['kind']}"
            )
        if not column and field != "label" and defaults[field]:
            raise UserError(f"--{field}_column=: the model reads this column; give its name")
    given = {**description.get("columns", {}), **columns}
    return columns_class(**{name: given[name] or None for name in given if name in names})
