"""Measures a block's products of matrices alone: what TensorFlow leaves a training step to reach.

Those of one block of albert_base, forward and for both gradients, in float32, one after the other
with nothing between them; beside them the sgemm ceiling of tests.benchmarks.train_step, in the
same process. Like the step's, their rates are medians and the ceiling is a best rate. Prints a JSON
line per shape and a table; the last row's share is that of all of the block's products, each
counted as often as the block has it.

Example:
  python -m tests.benchmarks.products --rounds=3
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable

import tensorflow as tf
from absl import flags

from albert_tf.config import AlbertConfig
from albert_tf.jobs import program
from tests.benchmarks.measuring import print_table, product_rates, seconds, tensorflow_product

FLAGS = flags.FLAGS

_SHAPES = ((128, 16), (512, 4))  # length, batch: those of tests.benchmarks.train_step
_SECONDS = 1.0


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_integer("rounds", 3, "Times that everything is measured.", lower_bound=1)


def main(_) -> None:
    """Measures and prints."""
    for seq_length, batch_size in _SHAPES:
        rounds = [measure(seq_length, batch_size) for _ in range(FLAGS.rounds)]
        rows = []
        for name in rounds[0]["ceiling_shares"]:
            shares = [line["ceiling_shares"][name] for line in rounds]
            rows.append([name, statistics.median(shares), min(shares), max(shares)])
        print_table({rounds[0]["shape"]: "", "median": ".1%", "least": ".1%", "most": ".1%"}, rows)


def measure(seq_length: int, batch_size: int) -> dict:
    """Prints and returns the share of the ceiling of each product and of all."""
    sgemm = tensorflow_product()
    rates = product_rates(sgemm)
    found = []
    for name, count, left, right in products(seq_length, batch_size):
        for form, function in forms(left, right):
            flops = count * 2 * tf.size(left).numpy() * right.shape[-1]
            found.append((f"{name}, {form}", flops, count * _median_seconds(function)))
    rates += product_rates(sgemm)
    shares = {name: 1e-9 * flops / took / max(rates) for name, flops, took in found}
    total_flops, total_seconds = (sum(column) for column in list(zip(*found))[1:])
    shares["all"] = 1e-9 * total_flops / total_seconds / max(rates)
    shares["sgemm of the ceiling"] = statistics.median(rates) / max(rates)
    line = {
        "shape": f"{seq_length}x{batch_size}",
        "ceiling_gflop_per_second": round(max(rates), 1),
        "ceiling_shares": {name: round(share, 4) for name, share in shares.items()},
    }
    print(json.dumps(line), flush=True)
    return line


def products(seq_length: int, batch_size: int) -> Iterable[tuple]:
    """Yields name, how often a block has it, left factor and right factor of each product."""
    config = AlbertConfig.named("albert_base")
    positions, hidden = batch_size * seq_length, config.hidden_size
    heads = batch_size * config.num_attention_heads
    head_size = hidden // config.num_attention_heads
    sizes = {
        "query, key, value, output": (4, [positions, hidden], [hidden, hidden]),
        "scores": (1, [heads, seq_length, head_size], [heads, head_size, seq_length]),
        "context": (1, [heads, seq_length, seq_length], [heads, seq_length, head_size]),
        "intermediate": (1, [positions, hidden], [hidden, config.intermediate_size]),
        "feed-forward output": (
            1,
            [positions, config.intermediate_size],
            [config.intermediate_size, hidden],
        ),
    }
    for name, (count, left, right) in sizes.items():
        yield name, count, tf.random.normal(left), tf.random.normal(right)


def forms(left: tf.Tensor, right: tf.Tensor) -> Iterable[tuple]:
    """Yields the product and those that its gradients take, each of the same operations."""
    outcome = tf.matmul(left, right)
    yield "forward", tf.function(lambda: tf.matmul(left, right))
    yield "left gradient", tf.function(lambda: tf.matmul(outcome, right, transpose_b=True))
    yield "right gradient", tf.function(lambda: tf.matmul(left, outcome, transpose_a=True))


def _median_seconds(function) -> float:
    function()
    until = time.perf_counter() + _SECONDS
    times = []
    while not times or time.perf_counter() < until:
        times.append(seconds(function))
    return statistics.median(times)


if __name__ == "__main__":
    define_flags()
    program.run(main)
