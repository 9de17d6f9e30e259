"""How fast the record job tokenizes and writes: one worker and two, in turn, on the same text.

Start-up is taken off: each run is timed against one on a hundredth of the text. Prints one JSON
line per run, with TensorFlow's best rate of products of two 2048 x 2048 matrices right after it
(what the machine had to give), then a table. The reference wrote 116 examples/s on a core at length
512, of 42,000 pieces/s (REFERENCE.md of the reference data), and 40 masked copies of each.

Example:
  python -m tests.benchmarks.records --input_file='corpus/*.txt' --spm_model_file=30k-clean.model \
      --repeat=6 --rounds=2
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from absl import flags

from albert_tf.jobs import program
from albert_tf.storage import files
from pipelines.data.records import Manifest
from tests.benchmarks.measuring import ceiling, median, print_table, tensorflow_product
from tests.benchmarks.memory import run_and_weigh

FLAGS = flags.FLAGS

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
    lines = {1: [], 2: []}
    product = tensorflow_product()
    with tempfile.TemporaryDirectory() as directory:
        whole, sample = _make_corpus(Path(directory))
        for _ in range(FLAGS.rounds):
            for num_workers, found in lines.items():
                start_up = _run(sample, f"{directory}/records", num_workers)["seconds"]
                line = _run(whole, f"{directory}/records", num_workers)
                line["examples_per_second"] = line["examples"] / (line["seconds"] - start_up)
                line["pieces_per_second"] = line["pieces"] / (line["seconds"] - start_up)
                line["start_up_seconds"] = start_up
                line["ceiling_gflop_per_second"] = round(ceiling(product), 1)
                found.append(line)
                print(json.dumps(line), flush=True)
    rows = []
    for num_workers, found in lines.items():
        rate = median(found, "examples_per_second")
        rows.append(
            [
                num_workers,
                rate,
                rate / median(lines[1], "examples_per_second"),
                rate / _REFERENCE_EXAMPLES_PER_SECOND,
                median(found, "bytes_per_example"),
                _REFERENCE_COPIES * _REFERENCE_BYTES_PER_EXAMPLE / found[0]["bytes_per_example"],
                max(line["peak_megabytes"] for line in found),
                median(found, "ceiling_gflop_per_second"),
            ]
        )
    columns = {"workers": "d", "examples/s": ",.0f", "of one worker": ".2f", "of theirs": ".1f"}
    columns |= {"bytes/example": ".0f", "their copies, times that": ".0f"}
    columns |= {"largest process, MB": ".0f", "GFLOP/s ceiling": ".0f"}
    print_table(columns, rows)


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


def _run(input_file: str, output_dir: str, num_workers: int) -> dict:
    command = [
        *(sys.executable, "-m", "pipelines.create_pretraining_data"),
        f"--input_file={input_file}",
        f"--spm_model_file={FLAGS.spm_model_file}",
        f"--max_seq_length={FLAGS.max_seq_length}",
        f"--num_workers={num_workers}",
        "--shard_bytes=16000000",
        f"--output_dir={output_dir}",
    ]
    weighed = run_and_weigh(command)
    manifest = Manifest.read(output_dir)
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    examples = sum(shard.examples for shard in shards)
    written = sum(shard.bytes for shard in shards)
    shutil.rmtree(output_dir)
    return {
        "num_workers": num_workers,
        "examples": examples,
        "pieces": manifest.pieces,
        "bytes_per_example": written / examples,
        **weighed,
    }


if __name__ == "__main__":
    define_flags()
    program.run(main)
