"""A job over units: tidies up before, runs them on Beam, says how far it is, brings errors home.

A unit has `bytes` to read, for the progress, and `file(kind)`, the name of what it
leaves in UNITS_DIR when it is done.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from albert_tf.progress import Progress
from pipelines.data import beam_job
from pipelines.data.shard_writer import ERROR_FILE, UNITS_DIR, raise_noted_error, work_or_error


def remove_partial_files(directory: str) -> None:
    """Removes the files of a directory that were never finished."""
    for name in tf.io.gfile.listdir(directory):
        if ".partial-" in name:
            # A worker that outlives its job for an instant may finish it meanwhile.
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.remove(os.path.join(directory, name))


def remove_leftovers(output_dir: str) -> None:
    """Removes what runs that ended early left half done, and their error."""
    tf.io.gfile.makedirs(os.path.join(output_dir, UNITS_DIR))
    for directory in (output_dir, os.path.join(output_dir, UNITS_DIR)):
        remove_partial_files(directory)
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        tf.io.gfile.remove(error_file)


@contextlib.contextmanager
def unit_progress(
    title: str, units: Sequence[Any], kind: str, output_dir: str
) -> Iterator[list[Any]]:
    """Yields the units that have no file of this kind yet, and reports, from a thread, how much of
    the text is in those that have: on any runner.
    """

    def unfinished() -> list[Any]:
        names = set(tf.io.gfile.listdir(os.path.join(output_dir, UNITS_DIR)))
        return [unit for unit in units if os.path.basename(unit.file(kind)) not in names]

    def state() -> tuple[int, str]:
        left = unfinished()
        done = total - sum(unit.bytes for unit in left)
        return done, f"{len(units) - len(left)} of {len(units)} ranges"

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


def run_units(
    work: Callable[[Any], None],
    units: Sequence[Any],
    output_dir: str,
    runner: str,
    num_workers: int,
    beam_options: Sequence[str],
) -> None:
    """Does `work` with each unit, on any Beam runner (see beam_job.run), and tidies up after it.

    Raises:
      ValueError: of the user's, that a unit ended with.
    """
    work = functools.partial(work_or_error, work, output_dir)
    beam_job.run(work, units, runner, num_workers, beam_options)
    raise_noted_error(output_dir)
    remove_leftovers(output_dir)  # of workers that outlived a killed job and died only now
