"""Predicts the rows of files. Results are written in parts, so that a killed job can resume."""

import collections
import concurrent.futures
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from albert_tf.jobs import job_directory
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from ..reading.tables import quoted_row
from ..task import Task, read_files
from .fine_tuned import AnsweringModel

# Maps the ending of the output's name to the column separator, or to None for JSON.
_SEPARATORS = {".csv": ",", ".tsv": "\t", ".jsonl": None}


def check_output_name(path: str) -> None:
    """Raises a UserError if the ending of the output's name is not supported."""
    if os.path.splitext(path)[1] not in _SEPARATORS:
        *others, last = _SEPARATORS
        endings = f"{', '.join(others)} or {last}"
        raise UserError(f"--output_file={path}: expected a name that ends in {endings}")


def predict_file(
    task: Task,
    model: AnsweringModel,
    input_files: Sequence[str],
    output_file: str,
    identity: dict,
    report: Callable[[int], None] = lambda _: None,
) -> dict:
    """Predicts each row of the input files. Writes OUTPUT_FILE and OUTPUT_FILE.run.json.

    After a kill, the next call resumes from the finished parts in OUTPUT_FILE.parts. If the output
    is finished, nothing is computed. For all rows, only the values that metrics need are kept in
    memory: 8 to 16 bytes per row, 8 bytes per label (multilabel), and 8 bytes per word (tags).

    `identity` contains the JSON-serialisable values that the answers depend on. `report` is called
    with the number of finished rows. Returns a dict of `identity`, `rows`, `metrics` and
    `intervals`. The last two are empty if the files have no answers.
    """
    identity = json.loads(json.dumps({**identity, "rows_per_part": model.rows_per_part}))
    run_file, parts = f"{output_file}.run.json", f"{output_file}.parts"
    files.check_no_input("output_file", [output_file], input_files)
    if tf.io.gfile.isdir(output_file):
        raise UserError(f"--output_file: {output_file!r} is a directory: name another file")
    if tf.io.gfile.exists(output_file):
        summary = files.read_json_if_exists(run_file)
        theirs = summary.get("identity", {})
        if difference := job_directory.describe_difference(theirs, identity):
            difference = difference if theirs else f"{run_file} is missing"
            raise UserError(
                f"--output_file: {output_file!r} exists, and not from this model, these files, "
                f"these flags and this version ({difference}): name another file, or remove it"
            )
    else:
        with job_directory.hold(parts, identity):
            paths, number = _write_parts(task, model, input_files, parts, report)
            with files.whole_files(os.path.dirname(output_file)) as local_path:
                partial = local_path(os.path.basename(output_file))
                rows = _written(paths, partial, output_file)
                metrics = task.score(rows)
                collections.deque(rows, maxlen=0)  # iterating writes the rows
                rows = itertools.chain.from_iterable(map(_rows_of_part, paths))
                intervals = task.intervals(rows) if metrics else {}
                summary = {"identity": identity, "rows": number}
                summary.update(metrics=metrics, intervals=intervals)
                # The output file is created later, at the end of the block, as a completion mark.
                files.write_json(run_file, summary)
    files.remove_directory(parts)
    return summary


def _write_parts(
    task: Task,
    model: AnsweringModel,
    input_files: Sequence[str],
    directory: str,
    report: Callable[[int], None],
) -> tuple[list[str], int]:
    """Writes the missing parts. Returns the paths of all parts and the number of rows."""
    examples = read_files(task, input_files)
    paths: list[str] = []
    done = 0

    def read_part(number: int) -> tuple[str, list, object]:
        """Returns a part's path, examples and prepared examples (None if the part exists)."""
        path = os.path.join(directory, f"part-{number:05}.jsonl")
        rows = list(itertools.islice(examples, model.rows_per_part))
        is_done = tf.io.gfile.exists(path)
        return path, rows, None if is_done or not rows else model.prepare(rows)

    # Read and tokenize the next part while the device computes.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(read_part, 0)
        while True:
            path, rows, prepared = waiting.result()
            if not rows:
                return paths, done
            paths.append(path)
            waiting = pool.submit(read_part, len(paths))
            if prepared is not None:
                columns = model.answer(rows, prepared)
                records = (dict(zip(columns, row)) for row in zip(*columns.values()))
                lines = (json.dumps(record, ensure_ascii=False) for record in records)
                files.write_atomically(path, "".join(line + "\n" for line in lines))
            done += len(rows)
            report(done)


def _rows_of_part(path: str) -> Iterator[dict]:
    with tf.io.gfile.GFile(path) as file:
        # Not splitlines(), which also splits at U+2028.
        lines = file.read().split("\n")
    yield from map(json.loads, lines[:-1])


def _written(parts: Sequence[str], path: str, output_file: str) -> Iterator[dict]:
    """Writes the rows of parts to `path` in the format of `output_file`, and yields each row."""
    separator, header = _SEPARATORS[os.path.splitext(output_file)[1]], None
    with open(path, "w", encoding="utf-8", newline="") as file:
        for row in itertools.chain.from_iterable(map(_rows_of_part, parts)):
            if separator is None:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                yield row
                continue
            if header is None:
                header = list(row)
                file.write(quoted_row(header, separator))
            if list(row) != header:
                raise UserError(
                    f"{output_file}: row {row.get('id')} has the columns {', '.join(row)}, the "
                    f"first row {', '.join(header)}: name a .jsonl file, or predict the files "
                    "separately"
                )
            file.write(quoted_row(row.values(), separator))
            yield row
