r"""Prints a few pre-training examples as text, and statistics of many examples.

With --split=train, the examples are the first ones of a pre-training run with the same flags and a
batch size of 256. With --split=heldout, they are a sample of all held-out records.

Examples:
  python -m pipelines.show_records --record_dir=records --spm_model_file=own.model
  python -m pipelines.show_records --record_dir=records --spm_model_file=own.model \
      --split=heldout --num_examples=10 --sentence_objective=nsp --output=what_it_sees
"""

import os
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from albert_tf.jobs import program
from albert_tf.jobs.settings import define_settings_flags, settings_from_flags
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import WORD_BOUNDARY, AlbertTokenizer
from .data.examples import ExampleOptions
from .data.masking import unmask
from .data.pretraining_dataset import evaluation_dataset, pretraining_dataset, read_sources
from .data.record_statistics import count, draw, report, shares
from .data.records import SPLITS, Manifest, naming_damaged_shards

FLAGS = flags.FLAGS

_ROWS = 256
_MOST_COUNTED = 20_000  # maximum number of examples in the statistics
_LEGEND = "[MASK|x] x is masked, [kept|x] x stays and is to be predicted, [y|x] y replaces x"


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    flags.DEFINE_string("record_dir", None, "Record directory to read.", required=True)
    flags.DEFINE_string(
        "spm_model_file", None, "The records' vocabulary (.model or .txt).", required=True
    )
    flags.DEFINE_enum("split", "train", SPLITS, "Split of the records.")
    program.define_max_seq_length(help="Default: as in the records.")
    define_settings_flags(ExampleOptions)
    flags.DEFINE_integer("random_seed", 12345, "Seed of data order and masks.", 0, 2**31 - 1)
    flags.DEFINE_integer("num_examples", 3, "Number of examples to print.", lower_bound=0)
    flags.DEFINE_string("output", None, "Directory for statistics.json and statistics.png.")


def main(_) -> None:
    """Prints examples and statistics, and saves the statistics."""
    with naming_damaged_shards(FLAGS.record_dir):
        show_records(FLAGS.record_dir, FLAGS.split)


def show_records(record_dir: str, split: str) -> None:
    """Prints examples and statistics of a split, with the values of the program's flags."""
    manifest = Manifest.read(record_dir)
    options = settings_from_flags(
        ExampleOptions,
        max_seq_length=FLAGS.max_seq_length or manifest.max_seq_length,
        max_predictions_per_seq=FLAGS.max_predictions_per_seq or manifest.fixed_predictions,
        seed=FLAGS.random_seed,
    )
    tokenizer = AlbertTokenizer(FLAGS.spm_model_file, *manifest.text_settings)
    manifest.check(record_dir, tokenizer, options)
    available = manifest.splits[split].examples
    if not available:
        raise UserError(f"{record_dir!r} holds no {split} records: see --split")
    label_names, seen = options.objective.labels, 0
    counted = min(available, _MOST_COUNTED)
    wanted = max(counted, FLAGS.num_examples)
    if split == "heldout":  # Unlike training examples, these do not repeat.
        wanted = min(wanted, available)
    sums: dict[str, Any] = {}
    for batch in _batches(record_dir, split, options, tokenizer, wanted):
        for row in range(min(len(batch["input_mask"]), FLAGS.num_examples - seen)):
            if not seen + row:
                print(_LEGEND)
            text = example_text(batch, row, tokenizer, label_names)
            print(f"\nexample {seen + row + 1}: {text}")
        if seen < counted:
            found = {name: values[: counted - seen] for name, values in batch.items()}
            for name, value in count(found, tokenizer).items():
                sums[name] = sums.get(name, 0) + value
        seen += len(batch["input_mask"])
    result = shares(sums, tokenizer)
    print(f"\n{report(result, label_names)}")
    if FLAGS.output:
        files.write_json(os.path.join(FLAGS.output, "statistics.json"), result, indent=1)
        draw(result, os.path.join(FLAGS.output, "statistics.png"))
        print(f"statistics.json and statistics.png are in {FLAGS.output}")


def _batches(
    record_dir: str, split: str, options: ExampleOptions, tokenizer: AlbertTokenizer, number: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches with `number` examples in total."""
    if split == "train":
        dataset = pretraining_dataset(read_sources(record_dir), options, tokenizer, _ROWS)
    else:
        dataset = evaluation_dataset(record_dir, split, options, tokenizer, _ROWS, number)
    for batch in dataset.take(-(-number // _ROWS)):
        yield {name: values.numpy()[:number] for name, values in batch.items()}
        number -= _ROWS


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
            lines.append(
                textwrap.fill(
                    "".join(map(shown, range(begin, end))).strip(),
                    width=100,
                    initial_indent=f"  {name}  ",
                    subsequent_indent="     ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
    return "\n".join(lines)


def _bare(piece: str) -> str:
    """Removes the word-boundary mark of a piece, unless the piece consists only of this mark."""
    return piece.lstrip(WORD_BOUNDARY) or piece


if __name__ == "__main__":
    define_flags()
    program.run(main)
