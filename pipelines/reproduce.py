"""Prints the tables of the ALBERT paper together with our parameter counts, recipes and costs.

--table=parameters compares the published parameter counts with the counts of our models. The other
tables list the recipe of each row (a flagfile for pipelines.pretrain), its published results and
its cost.

Examples:
  python -m pipelines.reproduce --table=parameters
  python -m pipelines.reproduce --table=sharing --flops_per_second=2e15
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os

import tensorflow as tf
from absl import flags

from albert_tf import config as config_lib
from albert_tf.config import AlbertConfig
from albert_tf.jobs import program
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage.errors import UserError
from .training.flops import training_flops_per_example

FLAGS = flags.FLAGS

_RECIPES = "pipelines/recipes/paper"
_PARAMETER_TABLES = ("overall", "embedding", "sharing")
_TABLES = (*_PARAMETER_TABLES, "sentence_objective", "same_time")
_COUNTS = ("encoder", "encoder + pooler", "with heads")


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a published table."""

    name: str
    recipe: str  # name of its flagfile in pipelines/recipes/paper
    results: str  # published results, in the order of the table's columns
    parameters: int | None = None  # published count in millions; None if the table has none
    rounding: int = 1  # `parameters` is rounded to this number of millions
    reason: str = ""  # why none of our counts equals the published one


@dataclasses.dataclass(frozen=True)
class Table:
    """A published table."""

    title: str
    columns: str  # names of the results, separated by spaces
    rows: tuple[Row, ...]


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    flags.DEFINE_enum("table", None, ["parameters", *_TABLES], "Table to print.", required=True)
    flags.DEFINE_float(
        "flops_per_second",
        1e14,
        "Speed of the machine in FLOP/s, from which training times are computed.",
        1.0,
    )


def main(_) -> None:
    """Runs the program with the values of its flags."""
    if FLAGS.table == "parameters":
        print(parameter_tables())
    else:
        print(list_rows(read_table(FLAGS.table), FLAGS.flops_per_second))


def read_table(name: str) -> Table:
    """Returns a table of the paper.

    Source: Lan et al. 2020, tables 1 to 6. Results of BERT xlarge are omitted.
    """
    path = f"{_RECIPES}/tables.json"
    if not os.path.exists(path):
        raise UserError(f"no {path} here: run this program in the root of the repository")
    with open(path, encoding="utf-8") as file:
        values = json.load(file)[name]
    return Table(**{**values, "rows": tuple(Row(**row) for row in values["rows"])})


# Recipes


def read_recipe(row: Row) -> dict[str, str]:
    """Returns the flags of a row's flagfile and of the flagfiles that it includes."""
    arguments = [f"--flagfile={_RECIPES}/{row.recipe}.flags"]
    arguments = flags.FlagValues().read_flags_from_files(arguments)
    return dict(argument.lstrip("-").split("=", 1) for argument in arguments)


def recipe_config(recipe: dict[str, str]) -> AlbertConfig:
    """Returns the model config of a recipe, with the vocabulary size of the paper."""
    name = recipe["albert_config"]
    return AlbertConfig.named(name) if name in config_lib.NAMES else AlbertConfig.read(name)


# Parameter counts and costs, computed from the shapes of the model


@functools.cache
def symbolic_model(config: AlbertConfig) -> AlbertForPreTraining:
    """Builds the model in a graph. Its weights then have shapes, but use no memory."""
    with tf.Graph().as_default():
        model = AlbertForPreTraining(config)
        model.create_variables()
    return model


def _size(variables) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def count_parameters(model: AlbertForPreTraining) -> dict[str, int]:
    """Counts the parameters of the encoder, of encoder plus pooler, and of the whole model."""
    encoder = model.encoder
    return {
        "encoder": _size(encoder.trainable_variables) - _size(encoder.pooler.trainable_variables),
        "encoder + pooler": _size(encoder.trainable_variables),
        "with heads": _size(model.trainable_variables),
    }


def agreement(row: Row, counts: dict[str, int]) -> str:
    """Returns the name of our count that matches the published one, or why none matches."""
    for name in ("encoder + pooler", "encoder"):
        if round(counts[name] / 1e6 / row.rounding) * row.rounding == row.parameters:
            return name if row.rounding == 1 else f"{name}, to the nearest {row.rounding}M"
    assert row.reason, f"{row.name}: neither a count nor a reason"
    return f"neither: {row.reason}"


def parameter_tables() -> str:
    """Formats the published parameter counts and our counts as tables."""
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
        "All but two of the published counts fit one rule: the pooler is counted only if layers "
        "share weights."
    )
    return "\n\n".join(parts)


def list_rows(table: Table, flops_per_second: float) -> str:
    """Formats a table with the recipe, cost and published results of each row."""
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
        "over all positions (last block: predicted ones).\n"
        f"Days: at {flops_per_second:.3g} FLOPs a second, sustained."
    )


def _aligned(lines: list[tuple[str, ...]]) -> str:
    """Formats a table. First column, last column and recipes are left-aligned, others right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    last = len(widths) - 1

    def cell(index, text):
        left = index in (0, last) or text.endswith(".flags") or text == "recipe"
        return text.ljust(widths[index]) if left else text.rjust(widths[index])

    return "\n".join("  ".join(map(cell, range(len(line)), line)).rstrip() for line in lines)


if __name__ == "__main__":
    define_flags()
    program.run(main)
