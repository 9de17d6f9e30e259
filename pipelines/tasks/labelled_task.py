"""The base class of tasks that predict labels; determines the labels and their order."""

import abc
import functools
from collections.abc import Iterator, Mapping, Sequence

from albert_tf.storage.errors import UserError
from .reading.tables import label_key
from .task import Columns, Files, Task

# Strings that programs write for missing values. "None" and "NA" are not listed, because some data
# sets have labels with these names.
_MISSING = ("nan", "-nan", "<na>", "#n/a", "nat")


class LabelledTask(Task):
    """A task that predicts labels: `labels` if given, otherwise all labels in the training data."""

    def __init__(
        self, name: str, files: Files, columns: Columns | None, labels: Sequence[str] | None
    ):
        super().__init__(name, files, columns)
        if labels and len(set(labels)) < max(2, len(labels)):
            raise UserError(f"--labels={','.join(labels)}: expected two different labels or more")
        self._listed = tuple(labels or ())

    @abc.abstractmethod
    def labels_of_file(self, path: str) -> Iterator[tuple[str, str]]:
        """Yields (label, location of its row) for each label in a training file."""

    def in_order(self, labels: set[str]) -> Sequence[str]:
        """Returns the model's labels in output order, given the labels in the training data."""
        return sorted(labels)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """All labels, in the order of the model's outputs."""
        if self._listed:
            return self._listed
        paths = self.files.get("train")
        if not paths:
            raise UserError(
                f"the labels of {self.name} are not known: give the training file, or name them"
            )
        places: dict[str, str] = {}  # maps a label to the location of its first row
        for path in paths:
            for label, where in self.labels_of_file(path):
                places.setdefault(label, where)
        _check_spellings(places)
        if len(places) < 2:
            raise UserError(
                f"{', '.join(paths)}: the only label in {self.columns['label']!r} is "
                f"{', '.join(places)!r}; expected two labels or more"
            )
        return tuple(self.in_order({*places}))

    @functools.cached_property
    def place_of(self) -> dict[str, int]:
        """Maps each label to its index in the model's outputs."""
        return {label: place for place, label in enumerate(self.labels)}

    def check_known(self, label: str, where: str) -> None:
        """Raises a UserError if a label of a row is unknown."""
        if label in self.place_of:
            return
        known = ", ".join(map(repr, self.labels[:20])) + ", ..." * (len(self.labels) > 20)
        source = "the labels are" if self._listed else "the training file has"
        column = self.columns["label"]
        hint = "" if self._listed else "; --labels names all"
        if near := [name for name in self.labels if label_key(name) == label_key(label)]:
            hint = f"; it is almost {near[0]!r}"
        raise UserError(f"{where}: unknown label {label!r} in {column!r}; {source} {known}{hint}")


def _check_spellings(places: Mapping[str, str]) -> None:
    """Raises a UserError for labels that have the same label_key or look like missing values.

    They are not merged, because only the user can decide whether they mean the same.
    """
    seen: dict[str, str] = {}
    for label in sorted(places):
        remedy = "correct the file, or list all labels in --labels if it is meant"
        if label.casefold() in _MISSING:
            raise UserError(f"{places[label]}: {label!r} looks like a missing label; {remedy}")
        other = seen.setdefault(label_key(label), label)
        if other != label:
            where = ", ".join(dict.fromkeys((places[other], places[label])))
            raise UserError(
                f"{where}: labels {other!r} and {label!r} differ only in case, spaces, invisible "
                f"characters, or the form of a number or truth value; {remedy}"
            )
