"""Counts lengths, masks, labels and pieces of examples, and formats or plots the shares."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.jobs import pictures
from albert_tf.text.tokenization import AlbertTokenizer
from .masking import unmask

_BINS = 20  # number of bins for positions in a text
_MOST_RUN = 8  # longer runs are counted as runs of this length
_FREQUENT = 15  # length of the list of most frequent pieces


def count(batch: dict[str, np.ndarray], tokenizer: AlbertTokenizer) -> dict[str, Any]:
    """Returns sums over the examples of a batch, integers or int64 vectors. See `shares`.

    Padding rows must be left out.
    """
    ids = unmask(batch)
    is_prediction = batch["masked_lm_weights"] > 0
    masked = np.zeros(ids.shape, bool)
    masked[np.nonzero(is_prediction)[0], batch["masked_lm_positions"][is_prediction]] = True
    now, then = batch["input_word_ids"][masked], ids[masked]
    is_mask = now == tokenizer.mask_id
    length = batch["input_mask"].sum(axis=1)
    labelled = batch["sentence_order_weights"] > 0
    changed = labelled & (batch["sentence_order_labels"] == 1)
    position, end = np.arange(ids.shape[1]), length[:, np.newaxis] - 1
    first_sep = end - batch["input_type_ids"].sum(axis=1)[:, np.newaxis]
    # All pieces except [CLS] and [SEP].
    text = (position > 0) & (position < end) & (position != first_sep)
    place = np.minimum(_BINS * (position - 1) // np.maximum(end - 1, 1), _BINS - 1)
    opens_part = (position == 1) | (position == first_sep + 1)
    starts = text & (opens_part | tokenizer.word_starts()[ids])
    # All examples are flattened into one row. Each part of an example starts a new run.
    word_masked, opens = masked[starts], opens_part[starts]
    begins = word_masked & (opens | ~np.pad(word_masked, [1, 0])[:-1])
    runs = np.minimum(np.bincount(np.cumsum(begins)[word_masked])[1:], _MOST_RUN)
    return {
        "examples": len(ids),
        "positions": ids.size,
        "lengths": np.bincount(length, minlength=ids.shape[1] + 1),
        "inputs": np.array([is_mask.sum(), (~is_mask & (now == then)).sum(), masked.sum()]),
        # In the same order as the names of the labels.
        "labels": np.array([(labelled & ~changed).sum(), changed.sum(), (~labelled).sum()]),
        "pieces": np.bincount(ids[text], minlength=tokenizer.vocab_size),
        "places": np.bincount(place[text], minlength=_BINS),
        "masked_places": np.bincount(place[text & masked], minlength=_BINS),
        "word_runs": np.bincount(runs, minlength=_MOST_RUN + 1),
    }


def shares(sums: dict[str, Any], tokenizer: AlbertTokenizer) -> dict[str, Any]:
    """Returns the statistics of sums of `count`. Shares are between 0 and 1."""
    pieces, (masks, kept, predictions) = sums["pieces"], sums["inputs"]
    num_pieces = np.arange(len(sums["lengths"])) @ sums["lengths"]
    frequent = np.argsort(-pieces, kind="stable")[:_FREQUENT].tolist()
    labels = _share(sums["labels"], sums["examples"])
    return {
        "examples": sums["examples"],
        "pieces": int(num_pieces),
        "padding": 1 - _share(num_pieces, sums["positions"]),
        "lengths": sums["lengths"].tolist(),
        "predictions": int(predictions),
        "masked": _share(predictions, num_pieces),
        "replaced_by_mask": _share(masks, predictions),
        "kept": _share(kept, predictions),
        "replaced_by_other": _share(predictions - masks - kept, predictions),
        "runs_of_masked_words": _share(sums["word_runs"][1:], sums["word_runs"].sum()),
        "masked_by_position": _share(sums["masked_places"], sums["places"]),
        "labels": dict(zip(("unchanged", "changed", "unlabelled"), labels)),
        "unknown": _share(pieces[tokenizer.unk_id], pieces.sum()),
        "most_frequent": {
            tokenizer.id_to_piece(piece): _share(pieces[piece], pieces.sum())
            for piece in frequent
            if pieces[piece]
        },
    }


def _share(part, whole) -> Any:
    """Returns part / whole as a float or a list of floats; the result is 0 where `whole` is 0."""
    return (part / np.maximum(whole, 1)).tolist()


def report(result: dict, label_names: Sequence[str]) -> str:
    """Formats the output of `shares`."""
    lengths = np.repeat(np.arange(len(result["lengths"])), result["lengths"])
    low, middle, high = np.percentile(lengths, [10, 50, 90])
    named = zip((*label_names, "no label"), result["labels"].values())
    runs = " ".join(f"{100 * share:.1f}" for share in result["runs_of_masked_words"])
    places = " ".join(f"{100 * share:.1f}" for share in result["masked_by_position"])
    frequent = "  ".join(f"{p} {100 * s:.1f} %" for p, s in result["most_frequent"].items())
    return f"""\
{result["examples"]:,} examples, {result["pieces"]:,} pieces (special pieces included)
  length         mean {lengths.mean():.1f}; 10 % up to {low:.0f}, 50 % up to {middle:.0f}, 90 % up \
to {high:.0f} pieces; {100 * result["padding"]:.1f} % padding
  masked         {100 * result["masked"]:.2f} % of the pieces: \
{100 * result["replaced_by_mask"]:.2f} % [MASK], {100 * result["kept"]:.2f} % kept, \
{100 * result["replaced_by_other"]:.2f} % another piece
  runs of words  {runs} % of 1, 2, 3 ... masked words (neighbouring n-grams make one run)
  positions      {places} % masked, by twentieths of the text
  labels         {", ".join(f"{name} {100 * share:.2f} %" for name, share in named)}
  unknown        {100 * result["unknown"]:.3f} % of the pieces are <unk>
  most frequent  {frequent}"""


def draw(result: dict, path: str) -> None:
    """Plots lengths, runs of masked words and masks by position, and writes a PNG file."""
    figure = pictures.new_figure(14, 4)
    for axis, (title, x_label, first, values) in zip(
        figure.subplots(1, 3),
        (
            ("Length of examples", "pieces", 0, np.array(result["lengths"]) / result["examples"]),
            ("Runs of masked words", "words", 1, np.array(result["runs_of_masked_words"])),
            ("Masked, by position", "twentieth of the text", 1, result["masked_by_position"]),
        ),
    ):
        axis.bar(np.arange(first, first + len(values)), 100 * np.array(values), color="#4c78a8")
        axis.set(title=title, xlabel=x_label, ylabel="%")
        axis.spines[["top", "right"]].set_visible(False)
    pictures.write(figure, path)
