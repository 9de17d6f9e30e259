"""Splits a dev set or folds off the training rows; the order of the rows has no effect."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter

from albert_tf.storage.errors import UserError
from .examples import AnyExample

# Part of the identity of runs. Increase it if split_off_dev divides the same examples differently.
# Version 0.3.0 had no such number: it assigned each text independently of its label.
DIVISION = 2


def comparable(text: str) -> str:
    """Normalises a text, so that texts which a model may not distinguish become equal.

    Case, accents, white space and Unicode's compatibility forms are ignored. The vocabulary is not
    used, so that all models get the same division.
    """
    if not text.isascii():
        plain = unicodedata.normalize("NFKD", text)
        text = "".join(mark for mark in plain if unicodedata.category(mark) != "Mn")
    # NUL separates the texts of a pair.
    return "\0".join(" ".join(part.split()) for part in text.casefold().split("\0"))


def split_off_dev(examples: list[AnyExample], fraction: float) -> tuple[list, list]:
    """Divides examples into train and dev, by their texts and classes alone.

    Examples of one comparable `group` stay on the same side. Each set of classes (`classes`)
    contributes its share to dev, up to rounding. Groups are assigned in the order of a hash of
    their text, so the order of the rows has no effect, and an added row moves few other rows. A
    group with more rows of a class than dev still needs joins dev only if this brings dev nearer to
    its quotas. Both results keep the order of the examples; an empty result is refused.
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
        # Accept too many rows of a class if this is nearer to the quotas than too few.
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
    """Divides examples by their texts and classes alone; returns the fold of each, from 1.

    Examples of one comparable `group` share a fold. Groups are assigned from the largest to the
    smallest, and in the order of a hash if they are equally large. A group joins the fold with the
    fewest rows of the group's classes. If several folds are equal, it joins the smallest.
    """
    groups: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        groups.setdefault(comparable(example.group), []).append(place)
    if len(groups) < folds:
        raise UserError(
            f"--folds={folds}: the rows have {len(groups):,} different texts: use fewer"
        )
    numbers, found = [0] * len(examples), {fold: Counter() for fold in range(1, folds + 1)}
    for group in sorted(groups, key=lambda group: (-len(groups[group]), _digest(group))):
        names = [examples[place].classes for place in groups[group]]
        fold = min(found, key=lambda k: (sum(found[k][name] for name in names), found[k]["all"]))
        found[fold].update([*names, *["all"] * len(names)])
        for place in groups[group]:
            numbers[place] = fold
    return numbers


def split_off_fold(examples: list, numbers: list[int], fold: int) -> tuple[list, list]:
    """Returns the examples outside a fold and in it; `numbers` are their folds."""
    outside = [example for example, number in zip(examples, numbers) if number != fold]
    return outside, [example for example, number in zip(examples, numbers) if number == fold]


def _quotas(totals: Counter, fraction: float) -> Counter:
    """Returns how many rows of each set of classes dev should have.

    Rounding errors do not add up: at a fraction of 0.1, of 1,000 sets of classes with one row each
    100 get a row in dev. A set of one class keeps a row in train.
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
