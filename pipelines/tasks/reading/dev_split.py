"""Splits training rows into train and dev or into folds, independently of the row order."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from albert_tf.storage.errors import UserError
from .examples import AnyExample

# Part of the identity of runs. Increase it if split_off_dev is changed to return other splits.
DIVISION = 4
# If more than this share of the rows is connected by equal texts, one text of a pair is ignored.
_MOST_CONNECTED = 0.25


class SharedTexts(NamedTuple):
    """Which rows must be in the same split. A row without text is a group of its own."""

    texts: list[tuple[str, ...]]  # the comparable texts of each row
    groups: list[list[int]]  # the indices of rows that are connected by equal texts
    column: int | None  # index (0 or -1) of the only text of a pair that counts, if any


def comparable(text: str) -> str:
    """Normalises case, accents, white space and Unicode compatibility forms of a text.

    The vocabulary is not used, so the splits are the same for all models.
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
    choices = [SharedTexts(texts, _connected(texts), None)]
    if _largest(choices[0]) > _MOST_CONNECTED * len(texts):
        for column in (0, -1):
            alone: list[tuple[str, ...]] = [(row[column] or row[~column],) for row in texts]
            choices.append(SharedTexts(alone, _connected(alone), column))
    return min(choices, key=_largest)


def _largest(shared: SharedTexts) -> int:
    return max(map(len, shared.groups), default=0)


def _connected(texts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Returns the row indices of each connected group; see SharedTexts."""
    row_of: dict[str, int] = {}  # maps a text to its first row
    pairs = [
        (place, row_of.setdefault(text, place))
        for place, of_row in enumerate(texts)
        for text in filter(None, of_row)
    ]
    rows, firsts = np.reshape(pairs, [-1, 2]).astype(int).T
    graph = sparse.coo_array((np.ones(len(rows), bool), (rows, firsts)), [len(texts)] * 2)
    groups: dict[int, list[int]] = {}
    for place, group in enumerate(csgraph.connected_components(graph, directed=False)[1].tolist()):
        groups.setdefault(group, []).append(place)
    return [*groups.values()]


def split_off_dev(
    examples: Sequence[AnyExample], shared: SharedTexts, fraction: float
) -> np.ndarray:
    """Returns which examples are moved to dev, bool [n], based only on their texts and classes.

    Examples of a group are in the same split. Each stratum (see _strata) contributes the same share
    of its rows to dev, up to rounding. Groups are assigned in the order of a hash of their texts,
    so the row order has no effect and an additional row moves few other rows. Raises a UserError if
    train or dev is empty.
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
        raise UserError(
            f"--dev_fraction={fraction} of {len(examples):,} rows leaves no row for "
            f"{'training' if is_dev.all() else 'dev'}: rows with a common text stay together "
            f"({len(shared.groups):,} different texts), and each label stays in training "
            f"({len({classes for classes, _ in strata}):,} different): check the columns, choose "
            "another fraction, or give --dev_file"
        )
    return is_dev


def fold_numbers(examples: list[AnyExample], folds: int) -> list[int]:
    """Returns the fold of each example (from 1), based only on the texts and classes.

    Groups of shared_texts stay together. They are assigned in descending order of size, and groups
    of equal size in the order of a hash. Each group is added to the fold with the smallest shares
    of the group's classes and numbers of occurrences (see _strata), or to the smallest of these.
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


def _strata(examples: Sequence[AnyExample], shared: SharedTexts) -> list[tuple[tuple, int]]:
    """Returns the classes of each row, and its occurrences.

    These are 0 for a row without text, 1 if its text occurs once, otherwise 2. Without them, dev
    would have more texts that occur once than the file.
    """
    numbers = [2] * len(examples)
    for place, *others in shared.groups:
        if not others:
            numbers[place] = int(any(shared.texts[place]))
    return [(example.classes, number) for example, number in zip(examples, numbers)]


def _quotas(totals: Counter, fraction: float) -> Counter:
    """Returns the number of dev rows for each stratum. Rounding errors do not accumulate.

    A stratum of a single class keeps at least one row in train.
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
