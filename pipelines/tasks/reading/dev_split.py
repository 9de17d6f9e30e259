"""Splits training rows into train and dev or into folds, independently of the row order."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.storage.errors import UserError
from .examples import AnyExample

# Part of the identity of runs. Increase it if split_off_dev is changed to return other splits.
DIVISION = 4
# If more than this share of the rows is connected by equal texts, one text of a pair is ignored.
_MOST_CONNECTED = 0.25


class SharedTexts(NamedTuple):
    """Which rows must be in the same split.

    Attributes:
      texts: the comparable texts of each row.
      groups: the row indices of each group of rows that are connected by equal texts. A row
        without text shares no text, so it is a group of its own.
      column: index (0 or -1) of the only text of a pair that counts, or None if both count.
    """

    texts: list[tuple[str, ...]]
    groups: list[list[int]]
    column: int | None


def comparable(text: str) -> str:
    """Normalises a text, so that texts that may look the same to a model become equal.

    Case, accents, white space and Unicode compatibility forms are normalised. The vocabulary is not
    used, so the splits are the same for all models.
    """
    if not text.isascii():
        plain = unicodedata.normalize("NFKD", text)
        text = "".join(mark for mark in plain if unicodedata.category(mark) != "Mn")
    return " ".join(text.casefold().split())


def shared_texts(examples: Sequence[AnyExample]) -> SharedTexts:
    """Groups rows with an equal text, first or second. Groups with a common text are one group.

    If one column repeats so much that most rows would be connected, only the other one counts (in
    rows where it is empty, the repeated one). The order of the rows has no effect on the groups.
    """
    texts = [tuple(map(comparable, example.separated)) for example in examples]
    both = SharedTexts(texts, _connected(texts), None)
    choices = [both]
    if max(map(len, both.groups), default=0) > _MOST_CONNECTED * len(texts):
        for column in (0, -1):
            alone: list[tuple[str, ...]] = [(row[column] or row[~column],) for row in texts]
            choices.append(SharedTexts(alone, _connected(alone), column))
    return min(choices, key=lambda choice: max(map(len, choice.groups), default=0))


def _connected(texts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Returns the row indices of each connected group; see SharedTexts."""
    parents = [*range(len(texts))]
    rows_of: dict[str, int] = {}

    def root(place: int) -> int:
        while parents[place] != place:
            # Shortens the path for later calls.
            parents[place] = place = parents[parents[place]]
        return place

    for place, of_row in enumerate(texts):
        for text in filter(None, of_row):
            parents[root(place)] = root(rows_of.setdefault(text, place))
    groups: dict[int, list[int]] = {}
    for place in range(len(texts)):
        groups.setdefault(root(place), []).append(place)
    return [*groups.values()]


def split_off_dev(
    examples: Sequence[AnyExample], shared: SharedTexts, fraction: float
) -> np.ndarray:
    """Returns which examples are moved to dev, bool [n], based only on their texts and classes.

    Examples that share a text (see shared_texts) are in the same split. Each stratum (see _strata)
    contributes the same share of its rows to dev, up to rounding. Groups are assigned in the order
    of a hash of their texts, so the row order has no effect and an additional row moves few other
    rows. If a group has more rows of a stratum than dev still needs, it is
    assigned to dev only if this brings dev closer to its quotas. Raises a UserError if train or dev
    is empty.
    """
    strata = _strata(examples, shared)
    missing = _quotas(Counter(strata), fraction)
    is_dev = np.zeros(len(examples), bool)
    larger = []
    for places in sorted(shared.groups, key=lambda places: _key(places, shared.texts, examples)):
        of_group = Counter(strata[place] for place in places)
        if all(number <= missing[name] for name, number in of_group.items()):
            missing.subtract(of_group)
            is_dev[places] = True
        else:
            larger.append((places, of_group))
    for places, of_group in sorted(larger, key=lambda item: len(item[0])):
        # Accept too many rows of a stratum if this is closer to the quotas than too few.
        if sum(abs(missing[name] - n) - abs(missing[name]) for name, n in of_group.items()) < 0:
            missing.subtract(of_group)
            is_dev[places] = True
    if is_dev.all() or not is_dev.any():
        texts, labels = len({*shared.texts}), len({example.classes for example in examples})
        swapped = ""
        if texts < labels:
            swapped = (
                f"{texts:,} texts differ, and {labels:,} labels: are the columns swapped? Else "
            )
        raise UserError(
            f"--dev_fraction={fraction} of {len(examples):,} rows leaves no row for "
            f"{'training' if is_dev.all() else 'dev'} (equal texts stay on one side): "
            f"{swapped}choose another share, or give --dev_file"
        )
    return is_dev


def fold_numbers(examples: list[AnyExample], folds: int) -> list[int]:
    """Returns the fold of each example (from 1), based only on the texts and classes.

    Examples that share a text (see shared_texts) are in the same fold. Groups are assigned in
    descending order of size, and groups of equal size in the order of a hash. Each group is added
    to the fold with the smallest shares of the group's classes and numbers of occurrences (see
    _strata), or to the smallest of these folds.
    """
    shared = shared_texts(examples)
    texts, groups, _ = shared
    if len(groups) < folds:
        raise UserError(
            f"--folds={folds}: the rows have {len(groups):,} different texts: use fewer"
        )
    numbers = [0] * len(examples)
    sizes: Counter[int] = Counter()
    found: dict[int, Counter] = {fold: Counter() for fold in range(1, folds + 1)}
    names_of = [
        [*(classes or (None,)), occurrence] for classes, occurrence in _strata(examples, shared)
    ]
    totals = Counter(name for names in names_of for name in names)
    for places in sorted(groups, key=lambda group: (-len(group), _key(group, texts, examples))):
        names = [name for place in places for name in names_of[place]]
        fold = min(found, key=lambda k: (sum(found[k][n] / totals[n] for n in names), sizes[k]))
        found[fold].update(names)
        sizes[fold] += len(places)
        for place in places:
            numbers[place] = fold
    return numbers


def occurrences(shared: SharedTexts) -> np.ndarray:
    """Returns 0 for a row without text, 1 if its text occurs once, otherwise 2; int64 [n]."""
    numbers = np.full(len(shared.texts), 2)
    for place, *others in shared.groups:
        if not others:
            numbers[place] = any(shared.texts[place])
    return numbers


def _strata(examples: Sequence[AnyExample], shared: SharedTexts) -> list[tuple[tuple, int]]:
    """Returns the classes and the `occurrences` of each row.

    Without the occurrences, texts that occur once would fill the room that larger groups leave, so
    dev would have more of them than the file.
    """
    numbers = occurrences(shared).tolist()
    return [(example.classes, number) for example, number in zip(examples, numbers)]


def _quotas(totals: Counter, fraction: float) -> Counter:
    """Returns the number of dev rows for each stratum.

    Rounding errors do not accumulate: if there are 1,000 combinations of classes with one row each,
    a fraction of 0.1 gives 100 dev rows. A stratum of a single class keeps at least one row in
    train.
    """
    quotas: Counter = Counter()
    before = end = 0
    for name in sorted(totals, key=lambda name: _digest(repr(name))):
        end += totals[name]
        most = totals[name] - 1 if len(name[0]) == 1 else totals[name]
        quotas[name] = min(round(fraction * end) - before, most)
        before += quotas[name]
    return quotas


def _key(places: Sequence[int], texts: Sequence, examples: Sequence[AnyExample]) -> bytes:
    """Returns the smallest hash of the texts in a group; without text, a hash of the answer."""
    found = [_digest(text) for place in places for text in texts[place] if text]
    return min(found, default=_digest(f"\0{examples[places[0]].classes!r}"))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
