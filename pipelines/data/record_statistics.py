"""Computes statistics of examples (lengths, masks, labels, pieces) and formats or plots them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.jobs import pictures
from albert_tf.text.tokenization import AlbertTokenizer
from .masking import unmask

_BINS = 20  # number of bins for positions in a text
_COLOUR, _DARK = "#4c78a8", "#333333"
_MOST_RUN = 8  # longer runs are counted as runs of this length
_MOST_PIECES = 4  # longer words are counted as words of this length
_FREQUENT = 15  # length of the list of most frequent pieces


class ExampleStatistics:
    """Accumulates statistics of training examples over batches.

    For `swaps` see sentence_pairs.SentenceObjective.
    """

    def __init__(self, tokenizer: AlbertTokenizer, swaps: bool = True):
        self._tokenizer = tokenizer
        self._swaps = swaps
        self._word_starts = tokenizer.word_starts()
        self._sums: dict[str, Any] = {}

    def add(self, batch: dict[str, np.ndarray]) -> None:
        """Adds the examples of a batch. Padding rows are skipped."""
        real = batch["input_mask"].any(axis=1)
        if real.any():
            counts = self._count({name: values[real] for name, values in batch.items()})
            self._sums = {name: self._sums.get(name, 0) + count for name, count in counts.items()}

    def _count(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        ids = unmask(batch)
        is_prediction = batch["masked_lm_weights"] > 0
        masked = np.zeros(ids.shape, bool)
        masked[np.nonzero(is_prediction)[0], batch["masked_lm_positions"][is_prediction]] = True
        now, then = batch["input_word_ids"][masked], ids[masked]
        is_mask = now == self._tokenizer.mask_id
        length = batch["input_mask"].sum(axis=1)
        labelled = batch["sentence_order_weights"] > 0
        changed = labelled & (batch["sentence_order_labels"] == 1)

        position = np.arange(ids.shape[1])
        end = length[:, np.newaxis] - 1
        len_b = batch["input_type_ids"].sum(axis=1)
        first_sep = end - len_b[:, np.newaxis]
        # All pieces except [CLS] and [SEP].
        text = (position > 0) & (position < end) & (position != first_sep)
        place = np.minimum(_BINS * (position - 1) // np.maximum(end - 1, 1), _BINS - 1)
        # The piece before the split is the end of A, or the end of B if A and B were swapped.
        first = np.where(changed & self._swaps, len_b - 1, first_sep[:, 0] - 1)[labelled]
        split = (_BINS * (first / text.sum(axis=1)[labelled])).astype(int)
        opens_part = (position == 1) | (position == first_sep + 1)
        starts = text & (opens_part | self._word_starts[ids])
        pieces_of_word = np.minimum(np.bincount(np.cumsum(starts[text]) - 1), _MOST_PIECES)
        return {
            "examples": len(ids),
            "positions": ids.size,
            "lengths": np.bincount(length, minlength=ids.shape[1] + 1),
            "predictions": masked.sum(),
            "mask": is_mask.sum(),
            "kept": (~is_mask & (now == then)).sum(),
            # In the same order as the names of the labels.
            "labels": np.array([(labelled & ~changed).sum(), changed.sum(), (~labelled).sum()]),
            "splits": np.bincount(split, minlength=_BINS)[:_BINS],
            "pieces": np.bincount(ids[text], minlength=self._tokenizer.vocab_size),
            "places": np.bincount(place[text], minlength=_BINS),
            "masked_places": np.bincount(place[text & masked], minlength=_BINS),
            "words": np.bincount(pieces_of_word, minlength=_MOST_PIECES + 1),
            "masked_words": np.bincount(pieces_of_word[masked[starts]], minlength=_MOST_PIECES + 1),
            # All examples are flattened into one row. Each part of an example starts a new run.
            "word_runs": _runs(masked[starts], opens_part[starts]),
            "piece_runs": _runs(masked[text], opens_part[text]),
        }

    def result(self) -> dict:
        """Returns a dict of the accumulated statistics. Ratios are between 0 and 1."""
        sums = self._sums
        pieces, predictions = sums["pieces"], sums["predictions"]
        num_pieces = np.arange(len(sums["lengths"])) @ sums["lengths"]
        frequent = np.argsort(-pieces, kind="stable")[:_FREQUENT].tolist()
        labels = _share(sums["labels"], sums["examples"])
        return {
            "examples": sums["examples"],
            "pieces": int(num_pieces),
            "padding": 1 - _share(num_pieces, sums["positions"]),
            "mean_length": _share(num_pieces, sums["examples"]),
            "lengths": sums["lengths"].tolist(),
            "predictions": int(predictions),
            "masked": _share(predictions, num_pieces),
            "replaced_by_mask": _share(sums["mask"], predictions),
            "kept": _share(sums["kept"], predictions),
            "replaced_by_other": _share(predictions - sums["mask"] - sums["kept"], predictions),
            "runs_of_masked_words": _share(sums["word_runs"][1:], sums["word_runs"].sum()),
            "runs_of_masked_pieces": _share(sums["piece_runs"][1:], sums["piece_runs"].sum()),
            "masked_of_words_by_pieces": _share(sums["masked_words"], sums["words"])[1:],
            "masked_by_position": _share(sums["masked_places"], sums["places"]),
            "labels": dict(zip(("unchanged", "changed", "unlabelled"), labels)),
            "split_position": _share(sums["splits"], sums["splits"].sum()),
            "unknown": _share(pieces[self._tokenizer.unk_id], pieces.sum()),
            "pieces_of_vocabulary_seen": _share((pieces > 0).sum(), len(pieces)),
            "most_frequent": {
                self._tokenizer.id_to_piece(piece): _share(pieces[piece], pieces.sum())
                for piece in frequent
                if pieces[piece]
            },
        }


def _runs(masked: np.ndarray, opens: np.ndarray) -> np.ndarray:
    """Counts runs of consecutive masked elements by length, int64 [_MOST_RUN + 1].

    `opens` is True where a new run must start.
    """
    begins = masked & (opens | ~np.pad(masked, [1, 0])[:-1])
    lengths = np.bincount(np.cumsum(begins)[masked])[1:]
    return np.bincount(np.minimum(lengths, _MOST_RUN), minlength=_MOST_RUN + 1)


def _share(part, whole) -> Any:
    """Returns part / whole as a float or a list of floats; the result is 0 where `whole` is 0."""
    return (part / np.maximum(whole, 1)).tolist()


def report(result: dict, label_names: Sequence[str]) -> str:
    """Formats the output of `ExampleStatistics.result`, including record statistics if present."""

    def percent(shares, digits=1):
        return " ".join(f"{100 * share:.{digits}f}" for share in shares)

    lengths = np.repeat(np.arange(len(result["lengths"])), result["lengths"])
    low, middle, high = np.percentile(lengths, [10, 50, 90])
    labels = result["labels"]
    named = zip((*label_names, "no label"), labels.values())
    decided = labels["unchanged"] + labels["changed"]
    lines = [
        f"{result['examples']:,} examples, {result['pieces']:,} pieces (special pieces included)",
        f"  length           mean {result['mean_length']:.1f}; 10 % up to {low:.0f}, 50 % up to "
        f"{middle:.0f}, 90 % up to {high:.0f} pieces; {100 * result['padding']:.1f} % padding",
        f"  masked           {100 * result['masked']:.2f} % of the pieces: "
        f"{100 * result['replaced_by_mask']:.2f} % [MASK], {100 * result['kept']:.2f} % kept, "
        f"{100 * result['replaced_by_other']:.2f} % another piece",
        f"  runs of words    {percent(result['runs_of_masked_words'])} % "
        "of 1, 2, 3 ... masked words (neighbouring n-grams make one run)",
        f"  runs of pieces   {percent(result['runs_of_masked_pieces'])} % of 1, 2, 3 ...",
        f"  words            {percent(result['masked_of_words_by_pieces'], 2)} % "
        "masked, of the words with 1, 2, 3, more pieces",
        f"  positions        {percent(result['masked_by_position'])} % masked, by twentieths "
        "of the text",
        "  labels           " + ", ".join(f"{name} {100 * s:.2f} %" for name, s in named)
        + (f"; {100 * labels['changed'] / decided:.2f} % of the labels" if decided else ""),
        *(
            f"  {kind:<17}{told['pairs']:,} pairs with a label; lengths alone predict "
            f"{100 * told['lengths']:.2f} %, first words {100 * told['words']:.2f} %, overlap of "
            f"words {100 * told['overlap']:.2f} %"
            for kind, told in result.get("order_baselines", {}).items()
        ),
        f"  split            {percent(result['split_position'])} % by twentieths of the text",
        f"  unknown          {100 * result['unknown']:.3f} % of the pieces are <unk>; "
        f"{100 * result['pieces_of_vocabulary_seen']:.1f} % of the vocabulary is seen",
        "  most frequent    "
        + "  ".join(f"{p} {100 * s:.1f} %" for p, s in result["most_frequent"].items()),
    ]  # fmt: skip
    if "sentences_per_segment" in result:
        sentences = result["sentences_per_segment"]
        mean = sum(n * share for n, share in enumerate(sentences))
        lines.append(
            f"  sentences        mean {mean:.1f} in a segment, {100 * sentences[1]:.1f} % have "
            f"one; segments of {result['documents']:,} documents"
        )
    return "\n".join(lines)


def draw(result: dict, label_names: Sequence[str], path: str) -> None:
    """Plots the output of `ExampleStatistics.result` and writes the plots to a PNG file."""
    figure = pictures.new_figure(17, 8)
    axes = iter(figure.subplots(2, 4).flat)
    _draw_masks(axes, result)
    _draw_segments(axes, result, label_names)
    figure.suptitle(
        f"{result['examples']:,} examples: {100 * result['masked']:.2f} % of the pieces masked, "
        f"{100 * result['padding']:.1f} % padding, {100 * result['unknown']:.3f} % <unk>",
        color=_DARK,
    )
    pictures.write(figure, path)


def _panel(axes, title, x_label, y_label="%"):
    axis = next(axes)
    axis.set_title(title, fontsize=11)
    axis.set(xlabel=x_label, ylabel=y_label)
    axis.spines[["top", "right"]].set_visible(False)
    return axis


def _bars(axes, title, x_label, shares, names=None, y_label="%"):
    """Draws a bar for each share. The default `names` are 1, 2, ..., with "+" after the last."""
    names = names or [*range(1, len(shares)), f"{len(shares)}+"]
    axis = _panel(axes, title, x_label, y_label)
    drawn = axis.bar([str(n) for n in names], [100 * s for s in shares], color=_COLOUR)
    axis.bar_label(drawn, fmt="%.1f", fontsize=8)
    return axis


def _draw_masks(axes, result: dict) -> None:
    lengths = np.array(result["lengths"][1:])
    width = max(1, len(lengths) // 64)
    begins = np.arange(0, len(lengths), width)
    shares = 100 * np.add.reduceat(lengths, begins) / lengths.sum()
    axis = _panel(axes, "Length of examples", f"pieces and special pieces, up to {len(lengths)}")
    axis.bar(1 + begins, shares, 0.9 * width, align="edge", color=_COLOUR)
    inputs = [result[name] for name in ("replaced_by_mask", "kept", "replaced_by_other")]
    _bars(axes, "Input at predictions", "", inputs, ["[MASK]", "kept", "another piece"])
    neighbours = "words (neighbouring n-grams make one run)"
    _bars(axes, "Runs of masked words", neighbours, result["runs_of_masked_words"])
    words = result["masked_of_words_by_pieces"]
    _bars(axes, "Masked words by length", "pieces of the word", words, y_label="% masked")


def _draw_segments(axes, result: dict, label_names: Sequence[str]) -> None:
    centres = (np.arange(_BINS) + 0.5) / _BINS
    axis = _panel(axes, "Masked pieces by position", "place in the example's text", "% masked")
    by_position = 100 * np.array(result["masked_by_position"])
    axis.plot(centres, by_position, "o-", color=_COLOUR)
    axis.axhline(by_position.mean(), color=_DARK, linestyle=":", linewidth=1)
    axis.set_ylim(0, 1.3 * by_position.max())
    axis = _panel(axes, "Where the two parts are split", "place in the segment's text")
    axis.bar(centres, 100 * np.array(result["split_position"]), 0.9 / _BINS, color=_COLOUR)
    axis = _bars(axes, "Labels", "", result["labels"].values(), (*label_names, "no label"))
    axis.tick_params(axis="x", labelsize=9)
    if "sentences_per_segment" in result:
        sentences = result["sentences_per_segment"]
        axis = _panel(axes, "Sentences in a segment", "sentences")
        axis.bar(range(len(sentences)), 100 * np.array(sentences), color=_COLOUR)
        axis.xaxis.get_major_locator().set_params(integer=True)
    else:
        frequent = result["most_frequent"]
        axis = _panel(axes, "Most frequent pieces", "%", "")
        axis.barh(list(frequent)[::-1], [100 * s for s in frequent.values()][::-1], color=_COLOUR)
