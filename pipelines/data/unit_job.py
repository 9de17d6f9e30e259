"""A job over units of work: which are finished, their files, their errors, progress, Beam.

A finished unit has a file in UNITS_DIR. So a killed job resumes by running the other units, on any
runner and any number of workers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from albert_tf import files, job_directory, program
from albert_tf.errors import UserError
from albert_tf.progress import Progress
from pipelines.data import beam_job

UNITS_DIR = "units"
ERROR_FILE = os.path.join(UNITS_DIR, "error.txt")


class Unit:
    """Base of the units of a job; picklable."""

    name: str  # its part of file names, unique in the job
    bytes: int  # of its input, for the progress

    def file(self, kind: str = "json") -> str:
        """Returns the path, in the output directory, of a file that marks the unit as finished.

        Args:
          kind: "json", the marker of `write_marker`; a job of several passes has other kinds too.
        """
        return os.path.join(UNITS_DIR, f"{self.name}.{kind}")


def claim(output_dir: str, identity: dict) -> None:
    """Makes `output_dir` the directory of this job: see job_directory.claim.

    A job that finished no unit is forgotten first, so that its input can be corrected after an
    error.
    """
    if tf.io.gfile.isdir(output_dir):
        names = {name.rstrip("/") for name in tf.io.gfile.listdir(output_dir)}
        names = {name for name in names if ".partial-" not in name}
        # With any other file in the directory nothing is removed: it may not be ours.
        if names == {job_directory.RUN_FILE, UNITS_DIR}:
            units_dir = os.path.join(output_dir, UNITS_DIR)
            finished = ("*.json", "*.hashes", "*.duplicates")
            if not tf.io.gfile.glob([os.path.join(units_dir, pattern) for pattern in finished]):
                tf.io.gfile.rmtree(units_dir)
                tf.io.gfile.remove(os.path.join(output_dir, job_directory.RUN_FILE))
    job_directory.claim(output_dir, identity)


def run_units(
    title: str,
    work: Callable[[Any], None],
    units: Sequence[Unit],
    output_dir: str,
    kind: str = "json",
    runner: str = "DirectRunner",
    num_workers: int = 1,
    beam_options: Sequence[str] = (),
) -> None:
    """Calls `work` with each unit that has no file of this kind yet, on a Beam runner.

    Args:
      title: of the progress, which a thread reports.
      work: writes, last, the unit's file of this kind; picklable.
      runner, num_workers, beam_options: see beam_job.run.

    Raises:
      ValueError: the user error that a unit ended with.
    """
    remove_leftovers(output_dir)
    work = functools.partial(work_or_error, work, output_dir)
    with _progress(title, units, output_dir, kind) as unfinished:
        beam_job.run(work, unfinished, runner, num_workers, beam_options)
        _raise_noted_error(output_dir)
    remove_leftovers(output_dir)  # of workers that outlived a killed job until now


def remove_leftovers(output_dir: str) -> None:
    """Removes unfinished files and the error of earlier runs."""
    tf.io.gfile.makedirs(os.path.join(output_dir, UNITS_DIR))
    for directory in (output_dir, os.path.join(output_dir, UNITS_DIR)):
        for name in tf.io.gfile.listdir(directory):
            if ".partial-" in name:
                # A worker that outlives its job for an instant may finish it meanwhile.
                with contextlib.suppress(tf.errors.NotFoundError):
                    tf.io.gfile.remove(os.path.join(directory, name))
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        tf.io.gfile.remove(error_file)


def work_or_error(work: Callable[[Any], None], output_dir: str, unit: Any) -> None:
    """Calls `work(unit)`. A user error is written to ERROR_FILE, and later units do nothing.

    A runner would raise an exception late, after retries, and inside its own traceback.
    """
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        return
    try:
        work(unit)
    except Exception as error:
        if not program.is_user_error(error):
            raise
        if ".partial-" in str(error) and "No such file" in str(error):
            return  # this job was killed, and the job that resumes it has removed the file
        try:
            files.write_atomically(error_file, str(error))
        except (OSError, tf.errors.OpError):
            # On a full disk an empty file still fits; _raise_noted_error knows what it means.
            with tf.io.gfile.GFile(error_file, "w") as file:
                file.write("")  # without it there is no file


@contextlib.contextmanager
def complete_files(directory: str) -> Iterator[Callable[[str], str]]:
    """Yields a function from the name of a file to the path at which to write it.

    At the end of the block all files get their names. After an exception none is kept.
    """
    partial_paths: dict[str, str] = {}

    def partial_path(name: str) -> str:
        path = os.path.join(directory, name)
        return partial_paths.setdefault(path, files.partial_name(path))

    try:
        yield partial_path
        for path, partial in partial_paths.items():
            tf.io.gfile.rename(partial, path, overwrite=True)
    finally:
        for partial in partial_paths.values():
            if tf.io.gfile.exists(partial):
                tf.io.gfile.remove(partial)


def write_marker(unit: Unit, output_dir: str, content: dict[str, Any]) -> None:
    """Marks a unit as finished; `content` is what the job reads of it at its end."""
    text = json.dumps(content, ensure_ascii=False) + "\n"
    files.write_atomically(os.path.join(output_dir, unit.file()), text)


def read_markers(units: Sequence[Unit], output_dir: str) -> list[dict[str, Any]]:
    """Returns what `write_marker` wrote for each of the units."""
    return [files.read_json(os.path.join(output_dir, unit.file())) for unit in units]


def _raise_noted_error(output_dir: str) -> None:
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        with tf.io.gfile.GFile(error_file) as file:
            raise UserError(
                file.read()
                or f"no space left in {output_dir!r}: make room, then run the same command again"
            )


@contextlib.contextmanager
def _progress(
    title: str, units: Sequence[Unit], output_dir: str, kind: str
) -> Iterator[list[Unit]]:
    """Yields the unfinished units. Reports, from a thread, the bytes of the finished ones."""

    def unfinished() -> list[Unit]:
        names = set(tf.io.gfile.listdir(os.path.join(output_dir, UNITS_DIR)))
        return [unit for unit in units if os.path.basename(unit.file(kind)) not in names]

    def state() -> tuple[int, str]:
        left = unfinished()
        done = total - sum(unit.bytes for unit in left)
        return done, f"{len(units) - len(left)} of {len(units)} units"

    def watch() -> None:
        while not stop.wait(1.0):
            done, detail = state()
            if done < total:
                progress.update(done, detail)

    total = sum(unit.bytes for unit in units)
    stop = threading.Event()
    with Progress(title, total, done=state()[0], unit="byte") as progress:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield unfinished()
        finally:
            stop.set()
            watcher.join()
            progress.update(*state())
