"""Functions that the benchmarks share: ceiling, fresh processes, peak memory, tables.

Imports no large package, because its memory would count in the measuring process.
"""

import collections
import itertools
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from absl import flags

_CEILING_SIZE = 2048
_CEILING_SECONDS = 3.0


def product_rates(product: Callable[[], object]) -> list[float]:
    """Multiplies two matrices of 2048 x 2048 for some seconds; returns each rate in GFLOP/s."""
    product()
    until = time.perf_counter() + _CEILING_SECONDS
    rates = []
    while not rates or time.perf_counter() < until:
        rates.append(2e-9 * _CEILING_SIZE**3 / both_seconds(product)[0])
    return rates


def tensorflow_product(dtype: str = "float32") -> Callable[[], object]:
    """Returns TensorFlow's matrix product, for product_rates."""
    import tensorflow as tf

    product = tf.function(tf.matmul)
    a, b = tf.cast(tf.random.normal([2, _CEILING_SIZE, _CEILING_SIZE]), dtype)
    return lambda: product(a, b)


def torch_product(dtype: str = "float32") -> Callable[[], object]:
    """Returns torch's matrix product, for product_rates."""
    import torch

    a, b = torch.randn(2, _CEILING_SIZE, _CEILING_SIZE).to(getattr(torch, dtype))
    return lambda: torch.mm(a, b)


def both_seconds(function: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds of a call, by the clock and of all processors."""
    began, processor = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - began, time.process_time() - processor


def peak_megabytes() -> int:
    """Returns the peak memory of this process so far, on Linux.

    getrusage would include the peak of the process that started this one.
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) // 1_000_000


def define_sides(names: Iterable[str]) -> None:
    """Defines --sides; the default is all sides."""
    flags.DEFINE_list("sides", list(names), "What to measure.")
    flags.register_validator("sides", set(names).issuperset, f"expected some of {', '.join(names)}")


def measure_in_turn(module: str, rounds: int, cases: Iterable[Iterable[str]]) -> None:
    """Runs a benchmark in fresh processes; prints their JSON lines, and medians over the rounds.

    A case is a side and additional flags for its process. A side that fails is tried once.
    """
    lines, failed = collections.defaultdict(list), set()
    for _, (side, *options) in itertools.product(range(rounds), cases):
        if side in failed:
            continue
        command = [sys.executable, "-m", module, *sys.argv[1:], f"--sides={side}", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            failed.add(side)
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"{side} is left out: exit code {done.returncode}: {reason}", flush=True)
        else:
            line = done.stdout.splitlines()[-1]
            print(line, flush=True)
            lines[(side, *options)].append(json.loads(line))
    print_table(
        [
            {name: _middle([of[name] for of in found]) for name in found[0]}
            for found in lines.values()
        ]
    )


def _middle(values: list):
    return values[0] if isinstance(values[0], str) else statistics.median(values)


def print_table(rows: list[dict]) -> None:
    """Prints rows of words and numbers, all with the same keys, which are the titles."""
    cells = [[v if isinstance(v, str) else f"{v:.5g}" for v in row.values()] for row in rows]
    cells = [[*row] for row in rows[:1]] + cells
    widths = [max(map(len, column)) for column in zip(*cells)]
    for line in [[], *cells]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))
