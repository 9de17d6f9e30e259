"""The interface of a task: its examples, their sequences, its answers and its methods."""

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
from albert_tf.text.packing import FEATURES
from albert_tf.text.tokenization import AlbertTokenizer

Outputs = list[dict[str, np.ndarray]]
_Columns = TypeVar("_Columns")


class AnyExample(abc.ABC):
    """A row of a task's data: a frozen dataclass with a unique `repr`.

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
        """A text. Examples with the same text are all in train, or all in dev.

        Texts are compared after dev_split.comparable.
        """

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels of an answered example; train and dev get equal shares of each label."""
        return ()

    @abc.abstractmethod
    def inputs(self) -> dict[str, str | Sequence[str]]:
        """Returns its texts by their names in the signatures of exports."""

    def texts(self) -> Iterator[str]:
        """Yields its texts."""
        for value in self.inputs().values():
            yield from [value] if isinstance(value, str) else value

    def num_chars(self) -> int:
        """Returns the number of characters of all its texts."""
        return sum(map(len, self.texts()))


class Answers(NamedTuple):
    """A model's answers to examples, as columns with one value per example.

    Attributes:
      columns: JSON values: `id`, `label` if all examples have answers, `prediction`, and more.
      exact: further values for metrics and files of fine-tuning.
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
      model: values that decide the weights or that exports need; `kind` is one of KINDS.
      decoding: settings that convert the model's outputs into answers, if any.
      source: settings for reading files to predict.
    """

    model: dict[str, Any]
    decoding: dict[str, Any]
    source: dict[str, Any]


# Most characters of a block of several texts: each takes some 200 bytes while it is tokenized.
_BLOCK_CHARS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Sequences:
    """The model's inputs: `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, unpadded.

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
    """Yields blocks of successive items: at most `size`, and fewer if their texts are long."""
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

    Fine-tuning, `predict` and exports make sequences by the same code, albert_tf.text. This takes
    1.0 to 1.5 times as long as the Python tokenizer (tests/benchmarks/README.md, finetune).

    Args:
      blocks: results of albert_tf.text.packing.Packer, each with its Sequences.full_lengths.
      labels: see Sequences.
      sequences_per_example: number of successive sequences that belong to one example.
    """
    pieces, lengths, first_lengths, full_lengths = columns = [[], [], [], []]
    with on_host():
        for tokens, of_block in blocks:
            ids, mask, types = (tokens[name].numpy() for name in FEATURES)
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
    """Returns the pieces of texts, as many as fit into a sequence, and the texts' full lengths.

    If a text was not read to its end, its full length is an estimate above the returned length.

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
    """A task with its files. The caller has checked the flags; `read` checks the files.

    A task whose models can predict files also has a class method `restore`: (content of task.json,
    field -> column where it differs from fine-tuning, quoting) -> the task without files.

    Attributes:
      name: see --task.
      best_metric: the metric of `score` that selects the best checkpoint; higher is better.
      files: split -> its files, if the task implements `read_file`.
    """

    name: str
    best_metric: str
    files: Mapping[str, list[str]]

    def read(self, split: str) -> list | None:
        """Returns the examples of a split, in the files' order; None if there is no such split.

        Args:
          split: "train", "dev" or one of `other_splits`. "train" and "dev" must have answers.

        Raises:
          UserError: what is wrong in which file and line.
        """
        paths = self.files.get(split)
        return paths and list(read_files(self, paths, needs_answers=split != "test"))

    def other_splits(self) -> list[str]:
        """Returns the splits to predict beside dev, with answers or without."""
        return ["test"] if "test" in self.files else []

    def read_file(self, path: str, first: int = 0, needs_answers: bool = False) -> Iterator:
        """Yields the examples of a file one by one; all or none have answers.

        A task without `files` overrides `read` and `other_splits` instead.

        Args:
          path: a local path or gs://.
          first: the number of its first row.
          needs_answers: whether the answers must be there.

        Raises:
          UserError: what is wrong in which line.
        """
        raise NotImplementedError

    def summarise(self, examples: list) -> list[str]:
        """Returns lines for the plan: notes on the examples' answers, and warnings."""
        return []

    @abc.abstractmethod
    def encode(
        self, examples: list, tokenizer: AlbertTokenizer, max_seq_length: int, training: bool
    ) -> tuple[Sequences, list]:
        """Returns sequences, and the features: per unit, the data that `answers` needs.

        Args:
          examples: as `read` returns them.
          tokenizer: the model's tokenizer.
          max_seq_length: most pieces of a sequence, [CLS] and [SEP] included.
          training: if false, no example may be left out, and labels are optional.
        """

    def owners(self, features: list) -> Sequence[int]:
        """Returns the index of each feature's example, in ascending order."""
        return range(len(features))

    @abc.abstractmethod
    def description(self) -> Description:
        """Returns the content of task.json."""

    @abc.abstractmethod
    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the loss of each example, float32 [b]; `batch` holds the labels by name."""

    @abc.abstractmethod
    def answers(self, examples: list, features: list, outputs: Outputs) -> Answers:
        """Returns a model's answers.

        Args:
          examples: as `read` returns them.
          features: result of `encode`; not used for an export's outputs.
          outputs: the model's outputs, one dict per feature, in order; arrays [L, ...] may be
            padded. Or an export's outputs, one dict per example.
        """

    @abc.abstractmethod
    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """Returns the task's metrics; empty if the rows have no `label`.

        Args:
          rows: Answers.rows, or rows of the columns alone, without the metrics that need `exact`.
        """

    def details(self, examples: list, answers: Answers) -> dict:
        """Returns further JSON values of a split for results.json, besides the metrics."""
        return {}

    @abc.abstractmethod
    def write(self, directory: str, split: str, examples: list, answers: Answers) -> list[str]:
        """Writes the answers in the task's own format, and pictures; returns the answers' paths."""


def create_model(task: Task, config: AlbertConfig, recompute: bool = False) -> tf.keras.Model:
    """Returns the model: (inputs, dropout_seed) -> dict of outputs, each [examples, ...]."""
    description = task.description().model
    return KINDS[description["kind"]].create_model(config, description, recompute)


def read_files(task: Task, paths: Sequence[str], needs_answers: bool = False) -> Iterator:
    """Yields the examples of files one by one; rows without a name are numbered across files.

    Raises:
      UserError: what is wrong in which file and line; or that only some files have answers.
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
      columns_class: a dataclass; its defaults apply to models that name no columns.
      description: the content of task.json.
      columns: field -> column, where it differs from fine-tuning; "": no such column.

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
