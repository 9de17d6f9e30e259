"""Compares the exports of a fine-tuned classifier with the model in memory, and their speed.

All sides of tests.benchmarks.sides answer the same rows, padded to the trained length. They are
compared with "ours", the model in memory in float32: number of labels that differ, the task's
metrics, largest difference of a probability. SavedModels read texts. openvino_int8 takes the ranges
of activations from rows of GLUE's training set. Sides whose packages are missing are skipped.

With --rounds, the sides then answer batches of random piece ids of the trained length in turn, each
in a fresh process. Prints one JSON line per process, then medians over the rounds. If other
programs run too, processor time (all cores together) is more reliable than wall time. README.md
has the commands.
"""

import json
import os
import statistics
import tempfile
from collections.abc import Iterator

import numpy as np
from absl import flags, logging

from albert_tf.jobs import program
from albert_tf.storage.errors import UserError
from tests.benchmarks import sides
from tests.benchmarks.measuring import (
    both_seconds,
    define_sides,
    measure_in_turn,
    peak_megabytes,
    print_table,
)

FLAGS = flags.FLAGS

_BATCH_SIZE = 32
_CALIBRATION_ROWS = 300
_ANSWERS = 10  # that count


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("checkpoint", None, "A run of pipelines.finetune.", required=True)
    flags.DEFINE_string("data", None, "GLUE's directory, or a labelled table.", required=True)
    define_sides(sides.SIDES)
    flags.DEFINE_integer("rounds", 0, "Processes that measure each side's speed.", lower_bound=0)
    flags.DEFINE_list("batch_sizes", ["1", "8", "32"], "Sequences in a batch.")
    flags.DEFINE_string("file", None, "FILE:LENGTH of a side, measured in this process.")


def main(_) -> None:
    """Reads the flags."""
    logging.set_verbosity(logging.ERROR)
    if FLAGS.file:
        path, _, length = FLAGS.file.rpartition(":")
        print(json.dumps(measure(*FLAGS.sides, path, int(length))), flush=True)
        return
    with tempfile.TemporaryDirectory() as directory:
        cases = compare(FLAGS.checkpoint, FLAGS.data, FLAGS.sides, directory)
        if FLAGS.rounds:
            measure_in_turn("tests.benchmarks.export", FLAGS.rounds, cases)


def compare(checkpoint: str, data: str, names: list[str], directory: str) -> list[tuple[str, str]]:
    """Prints one line per side; returns (side, flag for `measure`) of those that answered."""
    import tensorflow as tf
    from scipy import special

    from albert_tf.checkpoints.opening import open_model
    from albert_tf.storage import files
    from pipelines.tasks import glue
    from pipelines.tasks.running import fine_tuned
    from pipelines.tasks.task import read_files

    checkpoint = fine_tuned.find_model(checkpoint)
    description = open_model(checkpoint).task
    if os.path.isdir(data):
        task = glue.GlueTask(description["task"], data)
        examples = task.read("dev")
    else:
        task = fine_tuned.task_of(description, {})
        examples = list(read_files(task, files.match_files(data, "data")))
    sequences, ids = _encoded(checkpoint, task, examples)
    outputs = fine_tuned.FineTunedRun(open_model(checkpoint), task).outputs(sequences)
    expected = special.softmax(np.stack([output["logits"] for output in outputs]), axis=1)
    texts = [example.inputs() for example in examples]
    batches = [slice(begin, begin + _BATCH_SIZE) for begin in range(0, len(texts), _BATCH_SIZE)]
    rows, cases = [_row("ours", expected, expected, task, examples)], []
    for side in names:
        path = os.path.join(directory, side)
        try:
            sides.write(side, checkpoint, path, _calibration(checkpoint, task, data))
            answer = sides.load(side, path)
        except (ImportError, UserError) as error:
            print(f"{side} is left out: {str(error).splitlines()[0]}")
            continue
        found = [
            answer(
                {name: values[batch] for name, values in ids.items()},
                {name: tf.constant([text[name] for text in texts[batch]]) for name in texts[0]},
            )
            for batch in batches
        ]
        rows.append(_row(side, np.concatenate(found), expected, task, examples))
        cases.append((side, f"--file={path}:{description['max_seq_length']}"))
    print_table(rows)
    return cases


def _encoded(checkpoint: str, task, examples: list) -> tuple[list, dict[str, np.ndarray]]:
    """Returns the examples' sequences, and their ids padded to the trained length."""
    from albert_tf.checkpoints.opening import open_model
    from albert_tf.text.packing import FEATURES
    from albert_tf.text.tokenization import AlbertTokenizer
    from pipelines.tasks.running.batches import make_batch

    length = open_model(checkpoint).task["max_seq_length"]
    sequences, _ = task.encode(examples, AlbertTokenizer.load(checkpoint), length, False)
    batch = make_batch(sequences, np.arange(len(examples)), length)
    names = ("input_word_ids", "input_mask", "input_type_ids")
    return sequences, dict(zip(FEATURES, (np.asarray(batch[name]) for name in names)))


def _row(side: str, found: np.ndarray, expected: np.ndarray, task, examples: list) -> dict:
    answers = task.answers(examples, None, [{"probabilities": row} for row in found])
    changed = (found.argmax(axis=1) != expected.argmax(axis=1)).sum()
    line = {"side": side, "labels that change": changed, "of": len(found)}
    line["probability"] = np.abs(found - expected).max()
    return {**line, **task.score(answers.rows())}


def _calibration(checkpoint: str, task, data: str) -> Iterator[dict[str, np.ndarray]]:
    """Yields rows of the training set in --data, each a batch of one without padding."""
    if not os.path.isdir(data):
        raise UserError("a table has no training rows for static ranges, expected GLUE's directory")
    _, ids = _encoded(checkpoint, task, list(task.read("train"))[:_CALIBRATION_ROWS])
    for i, length in enumerate(np.sum(ids["input_mask"], axis=1)):
        yield {name: rows[i : i + 1, :length] for name, rows in ids.items()}


def measure(side: str, path: str, seq_length: int) -> dict:
    """Measures the speed and memory of one side in this process."""
    answer, rng = sides.load(side, path), np.random.default_rng(0)
    line = {"side": side, "pieces": seq_length}
    for size in map(int, FLAGS.batch_sizes):
        ids = rng.integers(5, 100, [size, seq_length], np.int32)
        ids = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": 0 * ids}
        answer(ids, None)
        answer(ids, None)
        times = [both_seconds(lambda ids=ids: answer(ids, None)) for _ in range(_ANSWERS)]
        clock, processor = (statistics.median(column) for column in zip(*times))
        line[f"seq/s at {size}"] = round(size / clock, 3)
        line[f"CPU ms at {size}"] = round(1000 * processor, 1)
    return {**line, "peak, GB": peak_megabytes() / 1e3}


if __name__ == "__main__":
    define_flags()
    program.run(main)
