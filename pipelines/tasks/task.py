"""The interface between pipelines.finetune and a task, and the pieces of its examples."""

from __future__ import annotations

import abc
import array
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer

Outputs = list[dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Sequences:
    """What the model reads: `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, unpadded.

    Attributes:
      pieces: int32 [all pieces], one sequence after the other.
      row_splits: int64 [sequences + 1]: sequence i is pieces[row_splits[i]:row_splits[i + 1]].
      first_lengths: int32 [sequences]: its pieces of type 0, [CLS] and the first [SEP] among them.
      labels: name -> array [sequences / sequences_per_example]; empty where answers are not known.
      sequences_per_example: sequences that are scored together, such as the choices of a question.
      full_lengths: int32 [sequences]: what they were before truncation, [CLS] and [SEP] included;
        None: nothing was truncated.
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


def join(
    tokenizer: AlbertTokenizer,
    pairs: Iterable[tuple[Sequence[int], Sequence[int] | None]],
    labels: dict[str, np.ndarray],
    sequences_per_example: int = 1,
) -> Sequences:
    """Puts [CLS] and [SEP] around pieces that are already short enough.

    An export makes the same sequences in the graph. Fine-tuning does not use that code: it takes
    more CPU time (tests/benchmarks/README.md, finetune), and the code here is the independent check
    of what an export answers.

    Args:
      tokenizer: gives the ids of [CLS] and [SEP].
      pairs: pieces of the first text and of the second; None: there is no second. Taken one by one,
        so that they need not all be in memory.
      labels: as of Sequences.
      sequences_per_example: pairs that belong to one example, one after the other.
    """
    pieces = array.array("i")  # a list of numbers takes ten times the room
    row_splits, first_lengths = [0], []
    for first, second in pairs:
        row = [tokenizer.cls_id, *first, tokenizer.sep_id]
        first_lengths.append(len(row))
        pieces.extend(row if second is None else [*row, *second, tokenizer.sep_id])
        row_splits.append(len(pieces))
    return Sequences(
        pieces=np.array(pieces, np.int32),
        row_splits=np.array(row_splits, np.int64),
        first_lengths=np.array(first_lengths, np.int32),
        labels=labels,
        sequences_per_example=sequences_per_example,
    )


def file_lists(files: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """Returns the files of each split that has any; a split may have one or several."""
    return {
        split: [paths] if isinstance(paths, str) else list(paths)
        for split, paths in files.items()
        if paths
    }


class Task(abc.ABC):
    """A task with its files. Whoever makes one has checked its flags; `read` checks the files.

    Attributes:
      name: as of --task.
      files: split -> its files. A task without them overrides `other_splits`.
      best_metric: the metric of `score` that selects the best checkpoint; more is better.
    """

    name: str
    best_metric: str
    files: dict[str, list[str]]

    @abc.abstractmethod
    def read(self, split: str) -> list | None:
        """Returns the examples of a split, in the files' order; None if there is no such split.

        Args:
          split: "train", "dev" or one of `other_splits`.

        Raises:
          UserError: what is wrong in which file and line.
        """

    def other_splits(self) -> list[str]:
        """Returns the splits to predict beside dev, with answers or without."""
        return ["test"] if "test" in self.files else []

    def summarise(self, examples: list) -> list[str]:
        """Returns lines on the examples' answers, and on what is odd about them."""
        return []

    def group(self, example) -> str:
        """Returns a text that examples share which must not be divided between train and dev.

        It is compared after dev_split.comparable.
        """
        return repr(example)

    def classes(self, example) -> tuple[str, ...]:
        """Returns the labels of an example, whose shares train and dev have in common; or none."""
        return ()

    @abc.abstractmethod
    def encode(
        self, examples: list, tokenizer: AlbertTokenizer, max_seq_length: int, training: bool
    ) -> tuple[Sequences, list]:
        """Returns sequences, and for each example of them what `score` needs to know of it.

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
    def create_model(self, config: AlbertConfig, recompute: bool) -> tf.keras.Model:
        """Returns the model: (inputs, dropout_seed) -> dict of outputs, each [examples, ...]."""

    @abc.abstractmethod
    def description(self) -> dict:
        """Returns what decides the weights, and an export needs to know.

        `kind` is classifier, regressor, multiple_choice or question_answering.
        """

    def decoding(self) -> dict:
        """Returns what decides the answers that are made of the model's outputs, if anything."""
        return {}

    @abc.abstractmethod
    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the loss of each example, float32 [b]; `batch` holds the labels by name."""

    @abc.abstractmethod
    def score(self, examples: list, features: list, outputs: Outputs) -> dict[str, float]:
        """Returns the task's metrics; none if answers of the examples are not known.

        Args:
          examples: as of `read`.
          features: as of `encode`.
          outputs: the model's, one dict for each unit, in order; arrays of [L, ...] may be padded.
        """

    def details(self, examples: list, outputs: Outputs) -> dict:
        """Returns what results.json has of a split beside its metrics: JSON values, or nothing."""
        return {}

    def draw(self, directory: str, split: str, examples: list, outputs: Outputs) -> list[str]:
        """Writes pictures of the predictions into a directory; returns their paths, if any."""
        return []

    def source(self) -> dict:
        """Returns how the task's files are read, for files to predict later."""
        return {}

    def is_answered(self, example) -> bool:
        """Returns whether an example has an answer."""
        return example.label is not None

    def read_files(self, paths: Sequence[str]) -> Iterator:
        """Yields the examples of files one by one; rows without a name are numbered through.

        Raises:
          UserError: what is wrong in which file and line; or that some of the files have answers.
        """
        number, first = 0, {}  # whether a file has answers -> the first such file
        for path in paths:
            is_answered = None
            for example in self.read_file(path, number):
                if is_answered is None:
                    is_answered = self.is_answered(example)
                    first.setdefault(is_answered, path)
                    if len(first) > 1:
                        raise UserError(
                            f"{first[True]} has answers, {first[False]} has none: give files of "
                            "one kind at a time"
                        )
                yield example
                number += 1

    def read_file(self, path: str, first: int = 0) -> Iterator:
        """Yields the examples of a file to predict one by one, with answers or all without.

        Args:
          path: a local path or gs://.
          first: the number of its first row.

        Raises:
          UserError: what is wrong in which line.
        """
        raise UserError(f"models of --task={self.name} predict no files")

    def answers(self, examples: list, features: list, outputs: Outputs) -> dict[str, list]:
        """Returns what is written of each example: columns of JSON values, one for each example.

        `id`, `label` if all examples have one, `prediction`, and more. Arguments as of `score`.
        """
        raise UserError(f"models of --task={self.name} predict no files")

    def score_rows(self, rows: Iterable[dict]) -> dict[str, float]:
        """Returns the task's metrics of rows of `answers`; none if they have no `label`."""
        raise UserError(f"models of --task={self.name} predict no files")

    @abc.abstractmethod
    def write_predictions(
        self, directory: str, split: str, examples: list, features: list, outputs: Outputs
    ) -> list[str]:
        """Writes what the model answers, in the task's own format; returns the files."""
