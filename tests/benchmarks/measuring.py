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

CEILING_SIZE = 2048
_CEILING_SECONDS = 3.0


def product_rates(product: Callable[[], object]) -> list[float]:
    """Multiplies two matrices of CEILING_SIZE for some seconds; returns each rate in GFLOP/s."""
    product()
    until = time.perf_counter() + _CEILING_SECONDS
    rates = []
    while not rates or time.perf_counter() < until:
        rates.append(2e-9 * CEILING_SIZE**3 / seconds(product))
    return rates


def tensorflow_product(dtype: str = "float32") -> Callable[[], object]:
    """Returns TensorFlow's matrix product, for product_rates."""
    import tensorflow as tf

    product = tf.function(tf.matmul)
    a, b = tf.cast(tf.random.normal([2, CEILING_SIZE, CEILING_SIZE]), dtype)
    return lambda: product(a, b)


def torch_product(dtype: str = "float32") -> Callable[[], object]:
    """Returns torch's matrix product, for product_rates."""
    import torch

    a, b = torch.randn(2, CEILING_SIZE, CEILING_SIZE).to(getattr(torch, dtype))
    return lambda: torch.mm(a, b)


def seconds(function: Callable[[], object]) -> float:
    """Returns the wall time of a call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


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


def define_sides(names: Iterable[str], what: str = "What to measure.") -> None:
    """Defines --sides; the default is all sides."""
    flags.DEFINE_list("sides", list(names), what)
    flags.register_validator("sides", set(names).issuperset, f"expected some of {', '.join(names)}")


def measure_in_turn(module: str, rounds: int, cases: Iterable[tuple]) -> dict[tuple, list[dict]]:
    """Runs a benchmark in fresh processes; prints and returns the lines of each case.

    A case is a side and additional flags for its process. A side that cannot be measured is tried
    once.
    """
    lines, missing = collections.defaultdict(list), set()
    for _, case in itertools.product(range(rounds), cases):
        side, *options = case
        if side in missing:
            continue
        command = [sys.executable, "-m", module, *sys.argv[1:], f"--sides={side}", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            line = {"side": side, "skipped": f"exit code {done.returncode}: {reason}"}
        else:
            line = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(line), flush=True)
        if "skipped" in line:
            missing.add(side)
        else:
            lines[case].append(line)
    return lines


def median(lines: Iterable[dict], name: str) -> float:
    """Returns the median of one value over the lines of several processes."""
    return statistics.median(line[name] for line in lines)


def print_table(columns: dict[str, str], rows: Iterable[Iterable]) -> None:
    """Prints rows; `columns` maps titles to formats (".2f"; "" for words). None is no value."""
    formats = columns.values()
    cells = [
        ["-" if value is None else format(value, form) for value, form in zip(row, formats)]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(columns, *cells)]
    print()
    for line in [list(columns), *cells]:
        aligned = [
            cell.rjust(width) if form else cell.ljust(width)
            for cell, width, form in zip(line, widths, formats)
        ]
        print("  ".join(aligned).rstrip())
