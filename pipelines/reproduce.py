"""The ALBERT paper's tables beside ours: parameter counts, recipes and costs, runs, Fig. 1.

--table=parameters prints the published parameter counts beside those of our models. The other
tables list each row's recipe (a flagfile of pipelines.pretrain), published results and cost;
--row=NAME runs a row on given data, or resumes it: the same as pipelines.pretrain with the
row's flagfile. --table=layers draws Fig. 1 of a checkpoint: how far each block moves its input.

Examples:
  python -m pipelines.reproduce --table=parameters
  python -m pipelines.reproduce --table=sharing --flops_per_second=2e15
  python -m pipelines.reproduce --table=sharing --row=attention_128 --record_dir=records \\
      --spm_model_file=vocab.model --model_dir=runs/attention_128 \\
      --pretrain_flags='--global_batch_size=64 --num_train_steps=10000 --num_warmup_steps=500'
  python -m pipelines.reproduce --table=layers --checkpoint=runs/base --record_dir=records \\
      --output=runs/base_layers
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import math
import os
import shlex
import sys

import tensorflow as tf
from absl import flags

from albert_tf import config as config_lib
from albert_tf import files, program
from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.flops import training_flops_per_example
from albert_tf.models import AlbertForPreTraining
from albert_tf.tokenization import AlbertTokenizer
from .data.pretraining_dataset import evaluation_dataset, evaluation_options
from .data.records import Manifest
from .training.heldout import make_scoring

FLAGS = flags.FLAGS

_RECIPES = "pipelines/recipes/paper"
_PARAMETER_TABLES = ("overall", "embedding", "sharing")
_TABLES = (*_PARAMETER_TABLES, "sentence_objective", "same_time")
_COUNTS = ("encoder", "encoder + pooler", "with heads")


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a published table.

    Attributes:
      name: what --row calls it.
      recipe: the name of its flagfile in pipelines/recipes/paper.
      results: the published results, in the order of the table's columns.
      parameters: published count, in millions; None where the table prints none.
      rounding: millions to which `parameters` is rounded.
      reason: why no count of ours is the published one.
    """

    name: str
    recipe: str
    results: str
    parameters: int | None = None
    rounding: int = 1
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """A published table; `columns` are the names of the results, by spaces."""

    title: str
    columns: str
    rows: tuple[Row, ...]


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    flags.DEFINE_enum(
        "table", None, ["parameters", *_TABLES, "layers"], "Which table.", required=True
    )
    flags.DEFINE_float("flops_per_second", 1e14, "Sustained FLOP/s, to give costs in days.", 1.0)
    flags.DEFINE_string("row", None, "The row to run; default: list the table.")
    flags.DEFINE_string("record_dir", None, "Records of create_pretraining_data.")
    flags.DEFINE_string(
        "spm_model_file", None, "With --row: the records' vocabulary (.model or .txt)."
    )
    flags.DEFINE_string("model_dir", None, "With --row: directory of the run, new or to resume.")
    flags.DEFINE_string(
        "pretrain_flags", "", "With --row: more flags of pipelines.pretrain, after the recipe's."
    )
    flags.DEFINE_string("checkpoint", None, "For layers: a model directory or checkpoint of one.")
    flags.DEFINE_string("output", None, "For layers: writes OUTPUT.csv and OUTPUT.png.")
    program.define_max_seq_length(help="For layers. Default: that of the records.")
    flags.DEFINE_integer("batch_size", 16, "For layers: examples at a time.", 1)
    flags.DEFINE_integer("num_batches", 8, "For layers: held-out batches to average over.", 1)


def main(_) -> None:
    """Reads the flags."""
    if FLAGS.table == "parameters":
        print(parameter_tables())
    elif FLAGS.table == "layers":
        _require("--table=layers", "checkpoint", "record_dir", "output")
        print(
            layers(
                checkpoint=FLAGS.checkpoint,
                record_dir=FLAGS.record_dir,
                output=FLAGS.output,
                max_seq_length=FLAGS.max_seq_length,
                batch_size=FLAGS.batch_size,
                num_batches=FLAGS.num_batches,
            )
        )
    elif FLAGS.row is None:
        print(list_rows(read_table(FLAGS.table), FLAGS.flops_per_second))
    else:
        _require("--row", "record_dir", "spm_model_file", "model_dir")
        run_row(
            find_row(FLAGS.table, FLAGS.row),
            record_dir=FLAGS.record_dir,
            spm_model_file=FLAGS.spm_model_file,
            model_dir=FLAGS.model_dir,
            pretrain_flags=shlex.split(FLAGS.pretrain_flags),
        )


def _require(what: str, *names: str) -> None:
    if missing := [f"--{name}" for name in names if not FLAGS[name].value]:
        raise UserError(f"{what} needs {', '.join(missing)}")


def read_table(name: str) -> Table:
    """Returns a table of the paper.

    Source: Lan et al. 2020, tables 1 to 6; BERT xlarge without results.
    """
    path = f"{_RECIPES}/tables.json"
    if not os.path.exists(path):
        raise UserError(
            f"no {path} here: call this program in the repository, or `albert recipes` first"
        )
    with open(path, encoding="utf-8") as file:
        values = json.load(file)[name]
    return Table(**{**values, "rows": tuple(Row(**row) for row in values["rows"])})


def find_row(table: str, name: str) -> Row:
    """Returns the row of a table that --row names."""
    rows = {row.name: row for row in read_table(table).rows}
    if name not in rows:
        raise UserError(f"--table={table} has no row {name!r}; its rows: {', '.join(rows)}")
    return rows[name]


# Recipes


def read_recipe(row: Row) -> dict[str, str]:
    """Returns the flags of pipelines.pretrain in a row's flagfile and in those that it includes."""
    arguments = [f"--flagfile={_RECIPES}/{row.recipe}.flags"]
    arguments = flags.FlagValues().read_flags_from_files(arguments)
    return dict(argument.lstrip("-").split("=", 1) for argument in arguments)


def recipe_config(recipe: dict[str, str]) -> AlbertConfig:
    """Returns the config that a recipe trains, with the published vocabulary's size."""
    name = recipe["albert_config"]
    return AlbertConfig.named(name) if name in config_lib.NAMES else AlbertConfig.read(name)


def run_row(
    row: Row, *, record_dir: str, spm_model_file: str, model_dir: str, pretrain_flags: list[str]
) -> None:
    """Becomes the job that trains a row, or resumes its training.

    The config of a row that has no name of its own is written beside the run, with the size of the
    given vocabulary.

    Args:
      row: what to train.
      record_dir: of pipelines.pretrain: directories of records, comma-separated.
      spm_model_file: the vocabulary, whose size the config gets.
      model_dir: of the run. A config is written beside it, as MODEL_DIR.albert_config.json.
      pretrain_flags: more of its flags; they win over the recipe's.
    """
    recipe = read_recipe(row)
    command = [
        *(sys.executable, "-m", program.installed_module("pipelines.pretrain")),
        f"--flagfile={_RECIPES}/{row.recipe}.flags",
        f"--record_dir={record_dir}",
        f"--spm_model_file={spm_model_file}",
        f"--model_dir={model_dir}",
    ]
    vocab_size = AlbertTokenizer(spm_model_file).vocab_size
    if recipe["albert_config"] not in config_lib.NAMES:
        path = f"{model_dir.rstrip('/')}.albert_config.json"
        dataclasses.replace(recipe_config(recipe), vocab_size=vocab_size).write(path)
        command.append(f"--albert_config={path}")
    command += pretrain_flags
    print(shlex.join(command), flush=True)
    # The same process, not a child: what stops this program stops the training.
    os.execv(sys.executable, command)


# Counts and costs, from the model's own shapes


@functools.cache
def symbolic_model(config: AlbertConfig) -> AlbertForPreTraining:
    """Builds the model with the shapes of its weights but without their memory."""
    with tf.Graph().as_default():
        model = AlbertForPreTraining(config)
        model.create_variables()
    return model


def _size(variables) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def count_parameters(model: AlbertForPreTraining) -> dict[str, int]:
    """Counts weights: of the encoder alone, with its pooler, and with the pre-training heads."""
    encoder = model.encoder
    return {
        "encoder": _size(encoder.trainable_variables) - _size(encoder.pooler.trainable_variables),
        "encoder + pooler": _size(encoder.trainable_variables),
        "with heads": _size(model.trainable_variables),
    }


def agreement(row: Row, counts: dict[str, int]) -> str:
    """Says which of our counts the published one is, rounded, or why it is none of them."""
    for name in ("encoder + pooler", "encoder"):
        if round(counts[name] / 1e6 / row.rounding) * row.rounding == row.parameters:
            return name if row.rounding == 1 else f"{name}, to the nearest {row.rounding}M"
    assert row.reason, f"{row.name}: neither a count nor a reason"
    return f"neither: {row.reason}"


def parameter_tables() -> str:
    """Returns the published parameter tables beside our counts."""
    parts = []
    for table in map(read_table, _PARAMETER_TABLES):
        lines = [("", "layers", "H", "E", "shared", "published", *_COUNTS, "the published is")]
        for row in table.rows:
            config = recipe_config(read_recipe(row))
            shape = (config.num_hidden_layers, config.hidden_size, config.embedding_size)
            counts = count_parameters(symbolic_model(config))
            ours = (f"{counts[name]:,}" for name in _COUNTS)
            published = (config.parameter_sharing, f"{row.parameters}M")
            lines.append((row.name, *map(str, shape), *published, *ours, agreement(row, counts)))
        parts.append(f"{table.title}\n{_aligned(lines)}")
    parts.append(
        "The published counts fit one rule, but for two rows: with the pooler where layers share "
        "weights, without it where they do not."
    )
    return "\n\n".join(parts)


def list_rows(table: Table, flops_per_second: float) -> str:
    """Returns the rows of a table: recipe, published results, cost."""
    lines = [("", "recipe", "steps", "batch", "FLOPs", "days", *table.columns.split())]
    for row in table.rows:
        recipe = read_recipe(row)
        steps, batch = int(recipe["num_train_steps"]), int(recipe["global_batch_size"])
        flops = (
            steps
            * batch
            * training_flops_per_example(
                symbolic_model(recipe_config(recipe)),
                int(recipe["max_seq_length"]),
                int(recipe["max_predictions_per_seq"]),
            )
        )
        days = flops / flops_per_second / 86400
        path = f"{_RECIPES}/{row.recipe}.flags"
        cost = (f"{steps:,}", f"{batch:,}", f"{flops:.2e}", f"{days:,.1f}")
        lines.append((row.name, path, *cost, *row.results.split()))
    return (
        f"{table.title}\n{_aligned(lines)}\n\nFLOPs: matrix products of forward and backward pass "
        "over all positions, of the last block those asked.\n"
        f"Days: at {flops_per_second:.3g} FLOPs a second, sustained."
    )


def _aligned(lines: list[tuple[str, ...]]) -> str:
    """Sets cells in columns: the first and last columns and paths to the left, results right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    last = len(widths) - 1

    def cell(index, text):
        left = index in (0, last) or text.endswith(".flags") or text == "recipe"
        return text.ljust(widths[index]) if left else text.rjust(widths[index])

    return "\n".join("  ".join(map(cell, range(len(line)), line)).rstrip() for line in lines)


# Fig. 1


def layers(
    *,
    checkpoint: str,
    record_dir: str,
    output: str,
    max_seq_length: int | None,
    batch_size: int,
    num_batches: int,
) -> str:
    """Measures how far each block of a checkpoint moves its input, on held-out records.

    Writes OUTPUT.csv and OUTPUT.png, and returns the table.

    Source: Lan et al. 2020, Fig. 1.
    Deviation: inputs are masked as in pre-training; the paper does not say.
    """
    manifest = Manifest.read(record_dir)
    model, model_dir = model_directory.load_for_pretraining(checkpoint)
    tokenizer = AlbertTokenizer.load(model_dir)
    max_seq_length = max_seq_length or manifest.max_seq_length
    options = evaluation_options([manifest], max_seq_length, "sop")
    manifest.check(record_dir, tokenizer, options)
    if not manifest.splits["heldout"].examples:
        raise UserError(f"{record_dir!r} holds no heldout records: its corpus is too small")
    num_examples = num_batches * batch_size

    def dataset_fn(context):
        where = record_dir, "heldout", options, tokenizer
        return evaluation_dataset(*where, batch_size, num_examples, context=context)

    forward = functools.partial(model, hidden_states=True)
    strategy = tf.distribute.get_strategy()
    total = make_scoring(strategy, forward, dataset_fn, model.config.vocab_size)()["layers"]
    distances = total["l2_distance"] / total["weight"]
    degrees = total["degrees"] / total["weight"]
    lines = [("layer", "l2_distance", "cosine_similarity_degrees")]
    for layer, values in enumerate(zip(distances, degrees), start=1):
        lines.append((str(layer), *(f"{value:.6g}" for value in values)))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    files.write_atomically(f"{output}.csv", text.getvalue())
    files.write_atomically(f"{output}.png", _draw_layers(distances, degrees))
    return (
        f"means over {int(total['weight']):,} positions of {record_dir}, held out\n"
        f"{_aligned(lines)}\nwritten to {output}.csv and {output}.png"
    )


def _draw_layers(distances, degrees) -> bytes:
    """Returns Fig. 1 as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    panels = (("L2 distance", distances), ("cosine similarity, degrees", degrees))
    for axis, (title, values) in zip(axes, panels):
        axis.plot(range(1, len(values) + 1), values, marker="o", linewidth=1.2)
        axis.set_title(title)
        axis.set_xlabel("layer")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    pyplot.close(figure)
    return data.getvalue()


if __name__ == "__main__":
    define_flags()
    program.run(main)
