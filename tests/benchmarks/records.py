"""How fast the record job tokenizes and writes: one worker and two, in turn, on the same text.

Start-up is taken off: each run is timed against one on a hundredth of the text. Prints one JSON
line per run, then a table. The reference wrote 116 examples/s on a core at length 512, of 42,000
pieces/s (REFERENCE.md of the reference data), and 40 masked copies of each.

Example:
  python -m tests.benchmarks.records --input_file='corpus/*.txt' --spm_model_file=30k-clean.model \
      --repeat=6 --rounds=2
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import app, flags

from albert_tf import files
from pipelines.data.records import Manifest

FLAGS = flags.FLAGS

_PROJECT = Path(__file__).resolve().parents[2]
_REFERENCE_EXAMPLES_PER_SECOND = 116
# One of its examples of 512 pieces: five int64 and one float feature, as protobuf varints.
_REFERENCE_BYTES_PER_EXAMPLE = 3 * 512 + 2 * 512 + 20 * 7
_REFERENCE_COPIES = 40


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_list("input_file", None, "Text: one sentence per line.", required=True)
    flags.DEFINE_string("spm_model_file", None, "The vocabulary.", required=True)
    flags.DEFINE_integer("max_seq_length", 512, "Pieces in an example.")
    flags.DEFINE_integer("repeat", 1, "Copies of the text to work on.")
    flags.DEFINE_integer("rounds", 2, "Runs of each number of workers.")


def main(_) -> None:
    """Times the job and prints what it took."""
    rates = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as directory:
        whole, sample = _make_corpus(Path(directory))
        for _ in range(FLAGS.rounds):
            for num_workers in rates:
                start_up, _ = _run(sample, f"{directory}/records", num_workers)
                seconds, line = _run(whole, f"{directory}/records", num_workers)
                line["examples_per_second"] = line["examples"] / (seconds - start_up)
                line["pieces_per_second"] = line["pieces"] / (seconds - start_up)
                line["start_up_seconds"] = start_up
                rates[num_workers].append(line["examples_per_second"])
                print(json.dumps(line), flush=True)
    medians = {num_workers: statistics.median(values) for num_workers, values in rates.items()}
    copies = _REFERENCE_COPIES * _REFERENCE_BYTES_PER_EXAMPLE
    print(
        f"\nworkers  examples/s  times the reference's on one core\n"
        f"      1  {medians[1]:10,.0f}  {medians[1] / _REFERENCE_EXAMPLES_PER_SECOND:.1f}\n"
        f"      2  {medians[2]:10,.0f}  {medians[2] / medians[1]:.2f} times one worker\n"
        f"bytes per example {line['bytes_per_example']:.0f}; the reference's copies take "
        f"{copies / line['bytes_per_example']:.0f} times that\n"
        f"largest process {line['peak_megabytes']:.0f} MB"
    )


def _make_corpus(directory: Path) -> tuple[str, str]:
    """Writes copies of the text, which differ in their first line, and a hundredth of it."""
    paths = files.match_files(FLAGS.input_file, "input_file")
    (directory / "whole").mkdir()
    for copy in range(FLAGS.repeat):
        for i, path in enumerate(paths):
            shutil.copyfile(path, directory / "whole" / f"{copy:03d}-{i:03d}.txt")
    size = sum(os.path.getsize(path) for path in paths) * FLAGS.repeat
    sample = directory / "sample.txt"
    with open(paths[0], "rb") as source:
        sample.write_bytes(source.read(max(size // 100, 100_000)))
    return f"{directory}/whole/*.txt", str(sample)


def _run(input_file: str, output_dir: str, num_workers: int) -> tuple[float, dict]:
    command = [
        *(sys.executable, "-m", "pipelines.create_pretraining_data"),
        f"--input_file={input_file}",
        f"--spm_model_file={FLAGS.spm_model_file}",
        f"--max_seq_length={FLAGS.max_seq_length}",
        f"--num_workers={num_workers}",
        "--shard_bytes=16000000",
        f"--output_dir={output_dir}",
    ]
    began = time.monotonic()
    cpu_began = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=_PROJECT, check=True, capture_output=True)
    seconds = time.monotonic() - began
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    manifest = Manifest.read(output_dir)
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    examples = sum(shard.examples for shard in shards)
    written = sum(shard.bytes for shard in shards)
    shutil.rmtree(output_dir)
    return seconds, {
        "num_workers": num_workers,
        "examples": examples,
        "pieces": manifest.pieces,
        "seconds": seconds,
        "cpu_seconds": cpu.ru_utime + cpu.ru_stime - cpu_began.ru_utime - cpu_began.ru_stime,
        "bytes_per_example": written / examples,
        "peak_megabytes": cpu.ru_maxrss / 1000,
    }


if __name__ == "__main__":
    define_flags()
    app.run(main)
