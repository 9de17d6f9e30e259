r"""Prints three pre-training examples as text, and statistics of many examples.

With --split=train, the examples are the first ones of a pre-training run with these records, the
same flags and a batch size of 256. With --split=heldout, they are a sample of all held-out records.

Examples:
  python -m pipelines.show_records --record_dir=records --spm_model_file=own.model
  python -m pipelines.show_records --record_dir=records --spm_model_file=own.model \
      --split=heldout --sentence_objective=nsp --output=what_it_sees
"""

import dataclasses
import os
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from albert_tf.jobs import pictures, program
from albert_tf.jobs.settings import define_settings_flags, setting, settings_from_flags
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import WORD_BOUNDARY, AlbertTokenizer
from .data.examples import ExampleOptions
from .data.masking import unmask
from .data.pretraining_dataset import evaluation_dataset, pretraining_dataset, read_sources
from .data.records import SPLITS, Manifest, naming_damaged_shards

FLAGS = flags.FLAGS

_NUM_PRINTED = 3
_ROWS = 256
_MOST_COUNTED = 20_000  # maximum number of examples in the statistics


@dataclasses.dataclass(frozen=True)
class Settings:
    """The records to show. The options of the examples are ExampleOptions."""

    record_dir: str = setting(flags.DEFINE_string, "Record directory to read.")
    spm_model_file: str = setting(flags.DEFINE_string, "The records' vocabulary (.model or .txt).")
    split: str = setting(
        flags.DEFINE_enum, "Split of the records.", "train", enum_values=list(SPLITS)
    )
    output: str | None = setting(
        flags.DEFINE_string, "Directory for statistics.json and statistics.png.", None
    )


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    define_settings_flags(Settings)
    define_settings_flags(ExampleOptions)


def main(_) -> None:
    """Prints examples and statistics, and saves the statistics."""
    settings = settings_from_flags(Settings)
    with naming_damaged_shards(settings.record_dir):
        show_records(settings)


def show_records(settings: Settings) -> None:
    """Prints examples and statistics of a split. The options of the examples are flags."""
    record_dir, split = settings.record_dir, settings.split
    manifest = Manifest.read(record_dir)
    options = settings_from_flags(
        ExampleOptions,
        max_seq_length=manifest.max_seq_length,
        max_predictions_per_seq=FLAGS.max_predictions_per_seq
        or getattr(manifest, "max_predictions_per_seq", None),  # of static examples
    )
    tokenizer = AlbertTokenizer(settings.spm_model_file, *manifest.text_settings)
    manifest.check(record_dir, tokenizer, options)
    examples = min(manifest.splits[split].examples, _MOST_COUNTED)
    if not examples:
        raise UserError(f"{record_dir!r} holds no {split} records: see --split")
    if split == "train":
        dataset = pretraining_dataset(read_sources(record_dir), options, tokenizer, _ROWS)
    else:
        dataset = evaluation_dataset(record_dir, split, options, tokenizer, _ROWS, examples)
    sums: dict[str, Any] = {}
    print("[MASK|x] x is masked, [kept|x] x stays and is to be predicted, [y|x] y replaces x")
    for first, batch in zip(range(0, examples, _ROWS), dataset.as_numpy_iterator()):
        found = {name: values[: examples - first] for name, values in batch.items()}
        for row in range(first, min(first + _ROWS, _NUM_PRINTED, examples)):
            text = example_text(found, row, tokenizer, options.objective.labels)
            print(f"\nexample {row + 1}: {text}")
        for name, value in count(found, tokenizer).items():
            sums[name] = sums.get(name, 0) + value
    result = shares(sums, tokenizer)
    print(f"\n{report(result, options.objective.labels)}")
    if output := settings.output:
        files.write_json(os.path.join(output, "statistics.json"), result, indent=1)
        draw(result, os.path.join(output, "statistics.png"))
        print(f"statistics.json and statistics.png are in {output}")


def example_text(
    batch: dict[str, np.ndarray], row: int, tokenizer: AlbertTokenizer, label_names
) -> str:
    """Formats an example as text: its label, its two parts and the pieces to predict."""
    text, now = unmask(batch)[row], batch["input_word_ids"][row]
    weights = batch["masked_lm_weights"][row]
    predicted = set(batch["masked_lm_positions"][row][weights > 0].tolist())
    length = int(batch["input_mask"][row].sum())
    first_sep = length - int(batch["input_type_ids"][row].sum()) - 1

    is_wordpiece = tokenizer.is_wordpiece

    def shown(position: int) -> str:
        piece = tokenizer.id_to_piece(int(text[position]))
        space = " " * (
            not piece.startswith("##") if is_wordpiece else piece.startswith(WORD_BOUNDARY)
        )
        if position not in predicted:
            return space + piece.lstrip(WORD_BOUNDARY).removeprefix("##" * is_wordpiece)
        input_id = int(now[position])
        names = {int(text[position]): "kept", tokenizer.mask_id: "MASK"}
        replacement = names.get(input_id) or _bare(tokenizer.id_to_piece(input_id))
        return f"{space}[{replacement}|{_bare(piece)}]"

    label = "none"
    if batch["sentence_order_weights"][row]:
        label = label_names[int(batch["sentence_order_labels"][row])]
    padding = len(now) - length
    lines = [f"label: {label}; {length} pieces, {padding} padding; {len(predicted)} predictions"]
    for name, begin, end in (("A", 1, first_sep), ("B", first_sep + 1, length - 1)):
        if begin < end:
            words = "".join(map(shown, range(begin, end))).strip()
            wrapper = textwrap.TextWrapper(100, f"  {name}  ", "     ")
            wrapper.break_long_words = wrapper.break_on_hyphens = False
            lines.append(wrapper.fill(words))
    return "\n".join(lines)


def _bare(piece: str) -> str:
    """Removes the word-boundary mark of a piece, unless the piece consists only of this mark."""
    return piece.lstrip(WORD_BOUNDARY) or piece


def count(batch: dict[str, np.ndarray], tokenizer: AlbertTokenizer) -> dict[str, Any]:
    """Returns sums over the examples of a batch without padding rows. See `shares`."""
    ids = unmask(batch)
    rows, columns = np.nonzero(batch["masked_lm_weights"])
    places = rows, batch["masked_lm_positions"][rows, columns]
    now, then = batch["input_word_ids"][places], ids[places]
    is_mask = now == tokenizer.mask_id
    length = batch["input_mask"].sum(axis=1)
    labelled = batch["sentence_order_weights"] > 0
    changed = labelled & (batch["sentence_order_labels"] == 1)
    position, end = np.arange(ids.shape[1]), length[:, np.newaxis] - 1
    first_sep = end - batch["input_type_ids"].sum(axis=1)[:, np.newaxis]
    # All pieces except [CLS] and [SEP].
    text = (position > 0) & (position < end) & (position != first_sep)
    return {
        "examples": len(ids),
        "positions": ids.size,
        "lengths": np.bincount(length, minlength=ids.shape[1] + 1),
        "inputs": np.array([is_mask.sum(), (~is_mask & (now == then)).sum(), len(now)]),
        # In the same order as the names of the labels.
        "labels": np.array([(labelled & ~changed).sum(), changed.sum(), (~labelled).sum()]),
        "pieces": np.bincount(ids[text], minlength=tokenizer.vocab_size),
    }


def shares(sums: dict[str, Any], tokenizer: AlbertTokenizer) -> dict[str, Any]:
    """Returns the statistics of sums of `count`. Shares are between 0 and 1."""
    pieces, (masks, kept, predictions) = sums["pieces"], sums["inputs"]
    num_pieces = np.arange(len(sums["lengths"])) @ sums["lengths"]
    frequent = np.argsort(-pieces, kind="stable")[:15].tolist()
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
    frequent = "  ".join(f"{p} {100 * s:.1f} %" for p, s in result["most_frequent"].items())
    return f"""\
{result["examples"]:,} examples, {result["pieces"]:,} pieces (special pieces included)
  length         mean {lengths.mean():.1f}; 10 % up to {low:.0f}, 50 % up to {middle:.0f}, 90 % up \
to {high:.0f} pieces; {100 * result["padding"]:.1f} % padding
  masked         {100 * result["masked"]:.2f} % of the pieces: \
{100 * result["replaced_by_mask"]:.2f} % [MASK], {100 * result["kept"]:.2f} % kept, \
{100 * result["replaced_by_other"]:.2f} % another piece
  labels         {", ".join(f"{name} {100 * share:.2f} %" for name, share in named)}
  unknown        {100 * result["unknown"]:.3f} % of the pieces are <unk>
  most frequent  {frequent}"""


def draw(result: dict, path: str) -> None:
    """Plots the distribution of lengths and writes a PNG file."""
    figure = pictures.new_figure(5, 4)
    axis = figure.subplots()
    shares = 100 * np.array(result["lengths"]) / result["examples"]
    axis.bar(np.arange(len(shares)), shares, color="#4c78a8")
    axis.set(title="Length of examples", xlabel="pieces", ylabel="%")
    axis.spines[["top", "right"]].set_visible(False)
    pictures.write(figure, path)


if __name__ == "__main__":
    define_flags()
    program.run(main)
