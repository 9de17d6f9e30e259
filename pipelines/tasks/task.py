"""The interface between pipelines.finetune and a task, and the pieces of its examples."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.storage.errors import UserError
from albert_tf.text.in_graph import on_host
from albert_tf.text.limits import chars_of_sequence
from albert_tf.text.tokenization import AlbertTokenizer

Outputs = list[dict[str, np.ndarray]]

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


def in_blocks(items: Sequence, size: int) -> Iterator[Sequence]:
    """Yields items, so many at a time: texts take much memory while they become sequences."""
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def join(
    blocks: Iterable[tuple[dict[str, tf.Tensor], np.ndarray | None]],
    labels: dict[str, np.ndarray],
    sequences_per_example: int = 1,
) -> Sequences:
    """Returns packed sequences without their padding.

    Fine-tuning, `predict` and exports make sequences by the same code, albert_tf.text. It takes 1.0
    to 1.4 times as long as the Python tokenizer (tests/benchmarks/README.md, finetune).

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
        np.concatenate([np.zeros(0, np.int32), *column]).astype(np.int32) for column in columns
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
