"""The interface of examples."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class AnyExample(abc.ABC):
    """A row of a task's data: a frozen dataclass with a unique `repr`.

    Attributes:
      id: its id in the file, or the number of its row, from 0.
      label: the right answer; None: not known.
    """

    id: str
    label: Any

    @property
    def is_answered(self) -> bool:
        """Whether the right answer is known."""
        return self.label is not None

    @property
    @abc.abstractmethod
    def group(self) -> str:
        """A text. Examples with equal texts (see dev_split.comparable) share train or dev."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels of an answered example; each label has the same share of train and dev."""
        return ()

    @abc.abstractmethod
    def inputs(self) -> dict[str, str | Sequence[str]]:
        """Returns {name in the signatures of exports: text or texts}."""

    def texts(self) -> Iterator[str]:
        """Yields its texts."""
        for value in self.inputs().values():
            yield from [value] if isinstance(value, str) else value

    def num_chars(self) -> int:
        """Returns the number of characters of all its texts."""
        return sum(map(len, self.texts()))


def id_and_label(examples: Sequence[AnyExample], label_of: Callable[[Any], Any]) -> dict[str, list]:
    """Returns the first columns of Answers: `id`, and `label` if all examples have answers."""
    columns = {"id": [example.id for example in examples]}
    if all(example.is_answered for example in examples):
        columns["label"] = [label_of(example) for example in examples]
    return columns
