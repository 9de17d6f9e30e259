"""The data section of a run's plan: sizes, lengths, and warnings about silent data loss."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set

import numpy as np
from scipy import special

from albert_tf.text.tokenization import AlbertTokenizer
from .dev_split import SharedTexts, comparable, occurrences
from .examples import AnyExample
from .sequences import Sequences

# A warning is printed if a share exceeds its limit.
_MOST_TRUNCATED = 0.10
_MOST_UNKNOWN = 0.05
_MOST_OVERLAPPING = 0.10
_MOST_DIFFERENT = 5  # percentage points between dev and the file that it is split off
_MOST_ROUNDED = 1e-3  # as a share of the range of the numbers
_MOST_SHOWN = 12
_FEW_ROWS = 10


def shortened(label: str, length: int = 40) -> str:
    """Truncates a long label and appends an ellipsis."""
    return label if len(label) <= length else label[: length - 1] + "…"


def _listed(found: Mapping[str, object]) -> str:
    parts = [f"{shortened(name)!r} {value}" for name, value in found.items()]
    others = f" and {len(parts) - _MOST_SHOWN:,} others" * (len(parts) > _MOST_SHOWN)
    return ", ".join(parts[:_MOST_SHOWN]) + others


def describe_labels(labels: Sequence[str], counts: Mapping[str, int]) -> str:
    """Lists labels with their counts. If there are many, lists only the most frequent ones."""
    is_long = len(labels) > _MOST_SHOWN
    shown = sorted(labels, key=lambda label: -counts.get(label, 0) * is_long)
    text = _listed({label: f"{counts.get(label, 0):,}" for label in shown})
    if is_long and len(labels) > sum(counts.values()) / 2:
        text += " (fewer than two rows each: is that the column of the labels?)"
    return f"{len(labels):,} labels: {text}"


def warn_of_rows(num_empty: int, names: Sequence[str]) -> list[str]:
    """Returns warnings about rows without text and repeated ids, for Task.summarise."""
    warnings = [f"warning: {num_empty:,} rows without text"] if num_empty else []
    [(name, count)] = Counter(names).most_common(1)
    if count > 1:
        again = len(names) - len({*names})
        warnings.append(f"warning: {again:,} rows repeat an id, such as {name!r}, {count} times")
    return warnings


def describe_texts(examples: Sequence[AnyExample]) -> list[str]:
    """Returns notes and warnings about texts and pairs of texts, for Task.summarise."""
    # Many line ends suggest that rows were joined by mistake.
    cells = sum("\n" in text for example in examples for text in example.texts())
    empty = sum(not "".join(example.texts()).strip() for example in examples)
    notes = [f"{cells:,} cells with line ends"] if cells else []
    return notes + warn_of_rows(empty, [example.id for example in examples])


def warn_of_rounding(numbers: np.ndarray) -> list[str]:
    """Warns if numbers, float64 [n], lose much of their range in float32, as timestamps do."""
    lost, between = np.abs(numbers - numbers.astype(np.float32)).max(), np.ptp(numbers)
    if not lost > _MOST_ROUNDED * between > 0:
        return []
    return [
        f"warning: the loss uses float32, which changes numbers by up to {lost:.3g}, but their "
        f"range is only {between:.3g}: subtract their mean"
    ]


def warn_of_overlap(name: str, examples: Sequence[AnyExample], known: Set[str]) -> list[str]:
    """Warns if many examples share a text with train. `known` are the texts of its SharedTexts."""
    number = sum(any(comparable(text) in known for text in row.separated) for row in examples)
    if number <= _MOST_OVERLAPPING * len(examples):
        return []
    return [
        f"warning: {100 * number / len(examples):.0f} % of {name} shares a text with the training "
        "set: its metrics do not predict results on new texts"
    ]


def describe_division(shared: SharedTexts, is_dev: np.ndarray) -> list[str]:
    """Returns lines on how dev differs from all rows of the file. `is_dev` is bool [n]."""
    lines = []
    if shared.column is not None:
        kept = "second" if shared.column else "first"
        lines.append(
            f"dev: only equal {kept} texts stay on one side, as both connect too many rows"
        )
    is_once = occurrences(shared) == 1
    dev, file = 100 * is_once[is_dev].mean(), 100 * is_once.mean()
    counts, sizes = np.bincount(is_dev, is_once), np.bincount(is_dev)
    if abs(dev - file) > _MOST_DIFFERENT and _differ(counts, sizes):
        lines.append(
            f"warning: dev is no sample of the file (use a --dev_file): {dev:.0f} % of its texts "
            f"occur once in the file, of all {file:.0f} %"
        )
    return lines


def warn_of_shares(of_train: Sequence[AnyExample], of_dev: Sequence[AnyExample]) -> list[str]:
    """Warns about labels that are missing in train, rare in dev, or have different shares."""
    train, dev = (Counter(c for e in found for c in e.classes) for found in (of_train, of_dev))
    labels, sizes = sorted({*train, *dev}), (len(of_train), len(of_dev))
    odd = {
        label: f"{100 * dev[label] / sizes[1]:.0f} % of dev, "
        f"{100 * train[label] / sizes[0]:.0f} % of train"
        for label in labels
        if dev[label] >= _FEW_ROWS and _differ((train[label], dev[label]), sizes, len(labels))
    }
    warnings = []
    if absent := {label: dev[label] for label in labels if not train[label]}:
        warnings.append(f"warning: train has no row of {_listed(absent)}: no model can learn them")
    if few := {label: dev[label] for label in labels if dev[label] < _FEW_ROWS}:
        warnings.append(
            f"warning: dev has fewer than ten rows of {_listed(few)}: use a larger dev set"
        )
    if odd:
        warnings.append(
            "warning: train and dev differ in shares of labels by more than chance: "
            f"{_listed(odd)}; dev figures do not predict results on data like train"
        )
    return warnings


def _differ(counts, sizes, num_tests: int = 1) -> bool:
    """Returns whether two shares, count / size, differ by more than chance (two-sided test)."""
    both = sum(counts) / sum(sizes)
    chance = math.sqrt(both * (1 - both) * (1 / sizes[0] + 1 / sizes[1]))
    # A false warning has a probability of 1e-3 over all tests (Bonferroni correction).
    limit = chance * special.ndtri(1 - 1e-3 / num_tests / 2)
    return abs(counts[0] / sizes[0] - counts[1] / sizes[1]) > limit


def _unknown_characters(
    examples: Sequence[AnyExample], tokenizer: AlbertTokenizer, sequences: Sequences
) -> list[str]:
    """Lists what the vocabulary cannot spell, also in truncated texts, if there is any <unk>."""
    if tokenizer.unk_id not in sequences.pieces:
        return []
    counts = Counter(character for row in examples for text in row.texts() for character in text)
    pieces = dict(zip(counts, tokenizer.encode_batch([*counts])))
    unknown = {c: f"{n:,}" for c, n in counts.most_common() if tokenizer.unk_id in pieces[c]}
    return [f"unknown characters: {_listed(unknown)}"] if unknown else []


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
    truncated = (full > lengths).reshape(-1, sequences.sequences_per_example).any(axis=1).mean()
    unknown = 0.0
    if not np.isin(sequences.pieces, tokenizer.textless_ids).all():
        [unknown] = tokenizer.unknown_shares(sequences.pieces, sequences.row_splits[[0, -1]])
    lines = [
        f"{name:<8} {len(examples):,} rows; {np.mean(full):.1f} pieces on average, 95 % up to "
        f"{np.percentile(full, 95):.0f}, longest {full.max():,}; {100 * truncated:.1f} % truncated "
        f"to {max_seq_length}; {100 * unknown:.1f} % of the pieces <unk>"
    ]
    for note in [*notes, *_unknown_characters(examples, tokenizer, sequences)]:
        is_warning = note.startswith("warning: ")
        lines.append(f"warning: {name}: {note[9:]}" if is_warning else f"{'':8} {note}")
    longer = f"use a larger --max_seq_length, at most {longest} with this model, or"
    if max_seq_length >= longest:
        longer = f"the model cannot read more than {longest} pieces; use"
    if truncated > _MOST_TRUNCATED:
        lines.append(
            f"warning: {100 * truncated:.0f} % of {name} is truncated: {longer} shorter texts"
        )
    if sequences.lost_answers:
        lines.append(
            f"warning: {sequences.lost_answers:,} answers of {name} fit into no window: the model "
            f"learns that there is none; {longer} a smaller --doc_stride"
        )
    if unknown > _MOST_UNKNOWN:
        lines.append(
            f"warning: {100 * unknown:.0f} % of the pieces of {name} are <unk>: the vocabulary "
            "cannot spell this text; use a model of its language"
        )
    return lines
