"""The interface of a task's examples."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")


class AnyExample(abc.ABC):
    """A row of a task's data. Subclasses are frozen dataclasses with a unique `repr`.

    Attributes:
      id: the id in the file, or the row number (from 0) if the file has no ids.
      label: the correct answer, or None if it is not known.
    """

    id: str
    label: Any

    @property
    def is_answered(self) -> bool:
        """Whether the correct answer is known."""
        return self.label is not None

    @property
    @abc.abstractmethod
    def separated(self) -> tuple[str, ...]:
        """The texts that must not be in two splits (see dev_split.shared_texts)."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels by which train and dev are stratified, if any."""
        return ()

    @abc.abstractmethod
    def inputs(self) -> Mapping[str, str | Sequence[str]]:
        """Maps the input names of an export's signatures to a text or a list of texts."""

    def texts(self) -> Iterator[str]:
        """Yields all texts of the example."""
        for value in self.inputs().values():
            yield from [value] if isinstance(value, str) else value

    def num_chars(self) -> int:
        """Returns the total number of characters of all texts."""
        return sum(map(len, self.texts()))


def required(value: _T | None) -> _T:
    """Returns a value that is not None, as the caller has checked."""
    assert value is not None
    return value


def id_and_label(examples: Sequence[AnyExample], label_of: Callable[[Any], Any]) -> dict[str, list]:
    """Returns the first columns of Answers: `id`, and `label` if all examples have answers."""
    columns = {"id": [example.id for example in examples]}
    if all(example.is_answered for example in examples):
        columns["label"] = [label_of(example) for example in examples]
    return columns
