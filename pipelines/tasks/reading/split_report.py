"""The data section of a run's plan: sizes, lengths, and warnings about silent data loss."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set

import numpy as np

from albert_tf.text.tokenization import AlbertTokenizer
from .dev_split import SharedTexts, comparable
from .examples import AnyExample, required
from .sequences import Sequences

_MOST_SHOWN = 12


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


def describe_texts(examples: Sequence[AnyExample]) -> list[str]:
    """Returns notes and warnings about the rows' texts and ids, for Task.summarise."""
    # Many line ends suggest that rows were joined by mistake.
    cells = sum("\n" in text for example in examples for text in example.texts())
    empty = sum(not "".join(example.texts()).strip() for example in examples)
    notes = [f"{cells:,} cells with line ends"] if cells else []
    if empty:
        notes.append(f"warning: {empty:,} rows without text")
    ids = Counter(example.id for example in examples)
    [(name, count)] = ids.most_common(1)
    if again := len(examples) - len(ids):
        notes.append(f"warning: {again:,} rows repeat an id, such as {name!r}, {count} times")
    return notes


def warn_of_overlap(name: str, examples: Sequence[AnyExample], known: Set[str]) -> list[str]:
    """Warns if many examples share a text with train. `known` are the texts of its SharedTexts."""
    number = sum(any(comparable(text) in known for text in row.separated) for row in examples)
    if number <= 0.1 * len(examples):
        return []
    return [
        f"warning: {100 * number / len(examples):.0f} % of {name} shares a text with the training "
        "set: its metrics do not predict results on new texts"
    ]


def describe_division(shared: SharedTexts) -> list[str]:
    """Returns a line if dev was split off by only one of the texts of each pair."""
    if shared.column is None:
        return []
    kept = "second" if shared.column else "first"
    return [f"dev: only equal {kept} texts stay on one side, as both connect too many rows"]


def warn_of_rare_labels(train: Sequence[AnyExample], dev: Sequence[AnyExample]) -> list[str]:
    """Warns about labels of either split with fewer than ten rows in dev."""
    of_train, of_dev = (Counter(c for row in rows for c in row.classes) for rows in (train, dev))
    few = {name: of_dev[name] for name in sorted({*of_train, *of_dev}) if of_dev[name] < 10}
    if not few:
        return []
    return [f"warning: dev has fewer than ten rows of {_listed(few)}: use a larger dev set"]


def _unknown_characters(examples: Sequence[AnyExample], tokenizer: AlbertTokenizer) -> list[str]:
    """Lists what the vocabulary cannot spell, also in truncated texts."""
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
    full = required(sequences.full_lengths)
    # A multiple-choice question counts as truncated if any of its options is truncated.
    truncated = (full > np.diff(sequences.row_splits)).reshape(len(sequences), -1)
    share, unknown = 100 * truncated.any(axis=1).mean(), 0.0
    if not np.isin(sequences.pieces, tokenizer.textless_ids).all():
        [unknown] = tokenizer.unknown_shares(sequences.pieces, sequences.row_splits[[0, -1]])
    lines = [
        f"{name:<8} {len(examples):,} rows; {np.mean(full):.1f} pieces on average, 95 % up to "
        f"{np.percentile(full, 95):.0f}, longest {full.max():,}; {share:.1f} % truncated "
        f"to {max_seq_length}; {100 * unknown:.1f} % of the pieces <unk>"
    ]
    if tokenizer.unk_id in sequences.pieces:
        notes = [*notes, *_unknown_characters(examples, tokenizer)]
    for note in notes:
        is_warning = note.startswith("warning: ")
        lines.append(f"warning: {name}: {note[9:]}" if is_warning else f"{'':8} {note}")
    longer = f"use a larger --max_seq_length (at most {longest} with this model) or"
    if share > 10:
        lines.append(f"warning: {share:.0f} % of {name} is truncated: {longer} shorter texts")
    if sequences.lost_answers:
        lines.append(
            f"warning: {sequences.lost_answers:,} answers of {name} fit into no window: the model "
            f"learns that there is none; {longer} a smaller --doc_stride"
        )
    if unknown > 0.05:
        lines.append(
            f"warning: {100 * unknown:.0f} % of the pieces of {name} are <unk>: the vocabulary "
            "cannot spell this text; use a model of its language"
        )
    return lines
