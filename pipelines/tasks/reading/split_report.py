"""The data section of a run's plan: sizes, lengths, and warnings about silent data loss."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy import special

from albert_tf.text.entities import OUTSIDE, are_entity_tags
from albert_tf.text.tokenization import AlbertTokenizer
from .dev_split import comparable, shared_texts
from .examples import AnyExample
from .sequences import Sequences

# A warning is printed if a share exceeds its limit.
_MOST_TRUNCATED = 0.10
_MOST_UNKNOWN = 0.05
_MOST_OVERLAPPING = 0.10
_MOST_DIFFERENT = 5.0  # percentage points between dev and the file that it is split off
_MOST_ROUNDED = 1e-3  # as a share of the range of the numbers
_LABELS_SHOWN = 12
_CHARACTERS_SHOWN = 10
_FEW_ROWS = 10
# Significance level: probability of a false warning that shares differ.
_BY_CHANCE = 1e-3


def shortened(label: str, length: int = 40) -> str:
    """Truncates a long label and appends an ellipsis."""
    return label if len(label) <= length else label[: length - 1] + "…"


def describe_labels(labels: Sequence[str], counts: Mapping[str, int]) -> str:
    """Lists labels with their counts. If there are many, lists only the most frequent ones."""
    total = sum(counts.values())
    shown = list(labels)
    if len(shown) > _LABELS_SHOWN:
        shown = sorted(shown, key=lambda label: -counts.get(label, 0))[:_LABELS_SHOWN]
    parts = [f"{shortened(label)!r} {counts.get(label, 0):,}" for label in shown]
    text = f"{len(labels):,} labels: {', '.join(parts)}"
    if rest := len(labels) - len(shown):
        others = total - sum(counts.get(label, 0) for label in shown)
        text += f" and {rest:,} others with {others:,}"
    if len(labels) > max(total / 2, _LABELS_SHOWN):
        text += " (fewer than two rows each: is that the column of the labels?)"
    return text


def warn_of_rows(num_empty: int, names: Sequence[str]) -> list[str]:
    """Returns warnings about rows without text and repeated ids, for Task.summarise."""
    warnings = [f"warning: {num_empty:,} rows without text"] if num_empty else []
    counts = Counter(names)
    name, count = counts.most_common(1)[0]
    if count > 1:
        rows = len(names) - len(counts)
        warnings.append(f"warning: {rows:,} rows repeat an id, such as {name!r}, {count} times")
    return warnings


def num_line_ends(texts: Iterable[str]) -> int:
    """Counts texts with a line end. A high number suggests that rows were joined by mistake."""
    return sum("\n" in text for text in texts)


def describe_texts(examples: Sequence) -> list[str]:
    """Returns notes and warnings about examples with id, text and text_pair, for Task.summarise."""
    cells = num_line_ends(text for e in examples for text in (e.text, e.text_pair or ""))
    empty = sum(not "".join(example.texts()).strip() for example in examples)
    return [
        *[f"{cells:,} cells with line ends"] * bool(cells),
        *warn_of_rows(empty, [example.id for example in examples]),
    ]


def warn_of_rounding(numbers: np.ndarray) -> list[str]:
    """Returns a warning if the numbers, float64 [n], lose too much precision in float32."""
    lost, between = np.abs(numbers - numbers.astype(np.float32)).max(), np.ptp(numbers)
    if not lost > _MOST_ROUNDED * between > 0:
        return []
    return [
        f"warning: the loss uses float32, which changes numbers by up to {lost:.3g}, but their "
        f"range is only {between:.3g}: subtract their mean"
    ]


# Casefolded tags that some files use instead of O.
_OUTSIDE = ("o", "none", "other", "outside")


def warn_of_tags(labels: Sequence[str]) -> list[str]:
    """Returns a warning if tags seem to mark entities, but some do not follow the IOB scheme."""
    marks = [tag for tag in labels if "-" in tag]
    rest = [tag for tag in labels if tag not in marks]
    wrong = next((tag for tag in (*marks, *rest) if tag[:1].islower()), None)
    is_outside = all(tag.casefold() in _OUTSIDE for tag in rest)
    if wrong and is_outside and are_entity_tags(t[:1].upper() + t[1:] for t in marks):
        return [
            f"warning: the words' tags are scored, not entities: {wrong!r} begins in lower case; "
            "for entities write B-, I- and O in capitals"
        ]
    others = [tag for tag in labels if tag != OUTSIDE and not are_entity_tags([tag])]
    if OUTSIDE not in labels or not any(are_entity_tags([tag]) for tag in marks):
        return []
    return [
        f"warning: the words' tags are scored, not entities, as {', '.join(others[:5])} "
        f"begin{'s' * (len(others) == 1)} with none of B-, I-, E-, S-, L-, U-"
    ]


def warn_of_overlap(
    name: str, examples: Sequence[AnyExample], train: Sequence[AnyExample]
) -> list[str]:
    """Returns a warning if many examples of a split share a text with the training set."""
    rows = [*examples, *train]
    # The order of a pair does not count. In the first check, both texts of a pair always count.
    for texts, parts_count, what in (
        ([map(comparable, row.separated) for row in rows], False, "is in the training set, too"),
        (shared_texts(rows).texts, True, "shares a text with the training set"),
    ):
        found = [frozenset(filter(None, of_row)) for of_row in texts]
        ours, theirs = {*found[: len(examples)]} - {frozenset()}, {*found[len(examples) :]}
        known = frozenset().union(*theirs)
        number = sum(not known.isdisjoint(row) if parts_count else row in theirs for row in ours)
        if number > _MOST_OVERLAPPING * len(ours):
            return [
                f"warning: {100 * number / len(ours):.0f} % of {name} {what}: its metrics do not "
                "predict results on new texts"
            ]
    return []


def describe_division(of_train: Sequence[AnyExample], of_dev: Sequence[AnyExample]) -> list[str]:
    """Returns lines on how dev differs from all rows of the file that it was split off."""
    shared = shared_texts([*of_train, *of_dev])
    is_empty = np.array([not any(of_row) for of_row in shared.texts])
    is_once = np.zeros(len(is_empty), bool)
    is_once[[places[0] for places in shared.groups if len(places) == 1]] = True
    is_once &= ~is_empty
    lines = []
    if shared.column is not None:
        kept, other = ("second", "first") if shared.column else ("first", "second")
        known = {comparable(text) for example in of_train for text in example.separated} - {""}
        others = [comparable(example.separated[~shared.column]) for example in of_dev]
        divided = 100 * np.mean([text in known for text in others])
        lines.append(
            f"dev: only equal {kept} texts stay on one side, as both together connect more than a "
            f"quarter of the rows; {divided:.0f} % of dev rows share their {other} text with train"
        )
    once, empty = (
        [100 * found[begin:].mean() for begin in (len(of_train), 0)]
        for found in (is_once, is_empty)
    )
    if once[1] < 100 and any((*once, *empty)):
        line = "{:.0f} % of its texts occur once in the file, of all {:.0f} %".format(*once)
        line += "; empty {:.0f} %, of all {:.0f} %".format(*empty) * bool(empty[1])
        lines.append(f"dev: {line}")
        counts = [is_once[: len(of_train)].sum(), is_once[len(of_train) :].sum()]
        matters = abs(once[0] - once[1]) > _MOST_DIFFERENT
        if matters and _differ(counts, (len(of_train), len(of_dev)), _BY_CHANCE):
            lines.append(
                f"warning: dev is no sample of the file, as equal texts stay on one side: {line}; "
                "on new rows the figures may differ by more than their intervals; use a --dev_file"
            )
    return lines


def warn_of_shares(of_train: Sequence[AnyExample], of_dev: Sequence[AnyExample]) -> list[str]:
    """Warns about labels that are rare in dev, missing in train, or have different shares."""
    sizes = len(of_train), len(of_dev)
    train, dev = (Counter(c for e in found for c in e.classes) for found in (of_train, of_dev))
    labels = {*train, *dev}
    few = {label: dev[label] for label in labels if dev[label] < _FEW_ROWS}
    odd = {}
    for label in labels - {*few}:
        # With Bonferroni correction for the number of labels.
        if _differ((train[label], dev[label]), sizes, _BY_CHANCE / len(labels)):
            shares = dev[label] / sizes[1], train[label] / sizes[0]
            odd[label] = "{:.0%} of dev, {:.0%} of train".format(*shares).replace("%", " %")
    warnings = []
    if absent := {label: dev[label] for label in labels if not train[label]}:
        warnings.append(f"warning: train has no row of {_some(absent)}: no model can learn them")
    if few:
        warnings.append(
            f"warning: dev has fewer than ten rows of {_some(few)}: the dev figures of these "
            "labels are unreliable; use a larger --dev_fraction, or a larger dev set"
        )
    if odd:
        warnings.append(
            f"warning: train and dev differ in shares of labels by more than chance: {_some(odd)}; "
            "dev figures do not predict results on data like train"
        )
    return warnings


def _differ(counts: Sequence[int], sizes: Sequence[int], level: float) -> bool:
    """Returns whether two shares, count / size, differ by more than chance (two-sided test)."""
    both = sum(counts) / sum(sizes)
    chance = math.sqrt(both * (1 - both) * (1 / sizes[0] + 1 / sizes[1]))
    return abs(counts[0] / sizes[0] - counts[1] / sizes[1]) > special.ndtri(1 - level / 2) * chance


def _some(found: Mapping[str, object]) -> str:
    parts = [f"{shortened(label)!r} {value}" for label, value in sorted(found.items())]
    if len(parts) <= _LABELS_SHOWN:
        return ", ".join(parts)
    return f"{len(parts):,} labels ({', '.join(parts[:_LABELS_SHOWN])}, ...)"


def describe_unknown_characters(
    examples: Sequence[AnyExample], tokenizer: AlbertTokenizer, sequences: Sequences
) -> list[str]:
    """Returns a line with the most frequent unknown characters and their counts.

    Returns an empty list if the sequences contain no <unk>. Also counts characters that are lost
    through truncation.
    """
    if tokenizer.unk_id not in sequences.pieces:
        return []
    counts: Counter[str] = Counter()
    for example in examples:
        for text in example.texts():
            counts.update(text)
    characters = list(counts)
    for character, pieces in zip(characters, tokenizer.encode_batch(characters)):
        if tokenizer.unk_id not in pieces:
            del counts[character]
    if not counts:
        return []
    shown = counts.most_common(_CHARACTERS_SHOWN)
    line = f"unknown characters: {', '.join(f'{char!r} {count:,}' for char, count in shown)}"
    if rest := len(counts) - len(shown):
        others = sum(counts.values()) - sum(count for _, count in shown)
        line += f" and {rest:,} others with {others:,}"
    return [line]


def describe_split(
    name: str,
    examples: Sequence[AnyExample],
    sequences: Sequences,
    tokenizer: AlbertTokenizer,
    max_seq_length: int,
    notes: Sequence[str],
    longest: int,
) -> list[str]:
    """Returns lines for the plan: number of rows, lengths, truncation, unknown pieces, notes.

    `notes` come from Task.summarise. `longest` is the largest possible --max_seq_length.
    """
    lengths = np.diff(sequences.row_splits)
    full = lengths if sequences.full_lengths is None else sequences.full_lengths
    # A multiple-choice question counts as truncated if any of its options is truncated.
    is_cut = (full > lengths).reshape(-1, sequences.sequences_per_example).any(axis=1)
    truncated = is_cut.mean() if len(is_cut) else 0.0
    unknown = 0.0
    if not np.isin(sequences.pieces, tokenizer.textless_ids).all():
        [unknown] = tokenizer.unknown_shares(sequences.pieces, sequences.row_splits[[0, -1]])
    lines = [
        f"{name:<8} {len(examples):,} rows; {np.mean(full):.1f} pieces on average, 95 % up to "
        f"{np.percentile(full, 95):.0f}, longest {full.max():,}; {100 * truncated:.1f} % truncated "
        f"to {max_seq_length}; {100 * unknown:.1f} % of the pieces <unk>"
    ]
    for note in [*notes, *describe_unknown_characters(examples, tokenizer, sequences)]:
        is_warning = note.startswith("warning: ")
        lines.append(f"warning: {name}: {note[9:]}" if is_warning else f"{'':8} {note}")
    longer = f"use a larger --max_seq_length, at most {longest} with this model, or"
    if max_seq_length >= longest:
        longer = f"the model cannot read more than {longest} pieces; use"
    if truncated > _MOST_TRUNCATED:
        lines.append(
            f"warning: {100 * truncated:.0f} % of {name} is truncated: the model does not see the "
            f"ends of these texts; {longer} shorter texts"
        )
    if sequences.lost_answers:
        lines.append(
            f"warning: {sequences.lost_answers:,} answers of {name} fit into no window: the model "
            f"learns that there is none; {longer} a smaller --doc_stride"
        )
    if unknown > _MOST_UNKNOWN:
        lines.append(
            f"warning: {100 * unknown:.0f} % of the pieces of {name} are <unk>: the vocabulary "
            "cannot spell this text, and the model does not see it; use a model of its language"
        )
    return lines
