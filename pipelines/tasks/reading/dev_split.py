"""Splits training rows into train and dev or into folds, independently of the row order."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter

from albert_tf.storage.errors import UserError
from .examples import AnyExample

# Part of the identity of runs. Increase it if split_off_dev is changed to return other splits.
# Version 0.3.0 had no such number. It assigned each text independently of its label.
DIVISION = 2


def comparable(text: str) -> str:
    """Normalises a text, so that texts that may look the same to a model become equal.

    Case, accents, white space and Unicode compatibility forms are normalised. The vocabulary is not
    used, so the splits are the same for all models.
    """
    if not text.isascii():
        plain = unicodedata.normalize("NFKD", text)
        text = "".join(mark for mark in plain if unicodedata.category(mark) != "Mn")
    # NUL separates the texts of a pair.
    return "\0".join(" ".join(part.split()) for part in text.casefold().split("\0"))


def split_off_dev(examples: list[AnyExample], fraction: float) -> tuple[list, list]:
    """Splits examples into train and dev, based only on their texts and classes.

    Examples with an equal `group` (see comparable) are in the same split. Each set of classes
    contributes the same share of its rows to dev, up to rounding. Groups are assigned in the order
    of a hash of their text, so the row order has no effect and an additional row moves few other
    rows. If a group has more rows of a class than dev still needs, it is assigned to dev only if
    this brings dev closer to its quotas. Both results keep the order of the examples. Raises a
    UserError if one of them is empty.
    """
    classes = [example.classes for example in examples]
    groups: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        groups.setdefault(comparable(example.group), []).append(place)
    missing = _quotas(Counter(classes), fraction)
    dev_places: set[int] = set()
    larger = []
    for group in sorted(groups, key=_digest):
        of_group = Counter(classes[place] for place in groups[group])
        if all(number <= missing[name] for name, number in of_group.items()):
            missing.subtract(of_group)
            dev_places.update(groups[group])
        else:
            larger.append((groups[group], of_group))
    for places, of_group in sorted(larger, key=lambda item: len(item[0])):
        # Accept too many rows of a class if this is closer to the quotas than too few.
        if sum(abs(missing[name] - n) - abs(missing[name]) for name, n in of_group.items()) < 0:
            missing.subtract(of_group)
            dev_places.update(places)
    train = [example for place, example in enumerate(examples) if place not in dev_places]
    dev = [examples[place] for place in sorted(dev_places)]
    if not train or not dev:
        raise UserError(
            f"--dev_fraction={fraction} of {len(examples):,} rows leaves no row for "
            f"{'dev' if train else 'training'} (equal texts stay on one side): "
            "choose another share, or give --dev_file"
        )
    return train, dev


def fold_numbers(examples: list[AnyExample], folds: int) -> list[int]:
    """Returns the fold of each example (from 1), based only on the texts and classes.

    Examples with an equal `group` (see comparable) are in the same fold. Groups are assigned in
    descending order of size, and groups of equal size in the order of a hash. Each group is added
    to the fold with the smallest shares of the group's classes, or to the smallest of these folds.
    """
    groups: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        groups.setdefault(comparable(example.group), []).append(place)
    if len(groups) < folds:
        raise UserError(
            f"--folds={folds}: the rows have {len(groups):,} different texts: use fewer"
        )
    numbers, sizes = [0] * len(examples), Counter()
    found = {fold: Counter() for fold in range(1, folds + 1)}
    totals = Counter(name for example in examples for name in example.classes or (None,))
    for group in sorted(groups, key=lambda group: (-len(groups[group]), _digest(group))):
        names = [name for place in groups[group] for name in examples[place].classes or (None,)]
        fold = min(found, key=lambda k: (sum(found[k][n] / totals[n] for n in names), sizes[k]))
        found[fold].update(names)
        sizes[fold] += len(groups[group])
        for place in groups[group]:
            numbers[place] = fold
    return numbers


def split_off_fold(examples: list, numbers: list[int], fold: int) -> tuple[list, list]:
    """Returns the examples outside and inside a fold. `numbers` are the folds of the examples."""
    outside = [example for example, number in zip(examples, numbers) if number != fold]
    return outside, [example for example, number in zip(examples, numbers) if number == fold]


def _quotas(totals: Counter, fraction: float) -> Counter:
    """Returns the number of dev rows for each set of classes.

    Rounding errors do not accumulate: if there are 1,000 combinations of classes with one row each,
    a fraction of 0.1 gives 100 dev rows. A set of a single class keeps at least one row in train.
    """
    quotas, before, end = Counter(), 0, 0
    for name in sorted(totals, key=lambda name: _digest(repr(name))):
        end += totals[name]
        most = totals[name] - 1 if len(name) == 1 else totals[name]
        quotas[name] = min(round(fraction * end) - before, most)
        before += quotas[name]
    return quotas


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
