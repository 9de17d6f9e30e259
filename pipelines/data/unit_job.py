"""Runs a job over units of work by Beam; handles resuming, errors and progress.

A finished unit has a file in UNITS_DIR. So a killed job resumes by running the other units, on any
runner and any number of workers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from albert_tf.jobs import job_directory, program, remote_lock
from albert_tf.storage import files
from albert_tf.storage.errors import UserError, store_error
from albert_tf.storage.progress import Progress
from . import beam_job
from .beam_job import Workers

UNITS_DIR = "units"
ERROR_FILE = os.path.join(UNITS_DIR, "error.txt")

_SECONDS_BETWEEN_NOTES = 1.0


@dataclass(frozen=True)
class Unit:
    """Base class of the units of a job; picklable."""

    name: str  # used in file names; unique in the job
    bytes: int  # size of its input, for the progress

    def file(self, kind: str = "json") -> str:
        """Returns the path, in the output directory, of a file that marks the unit as finished."""
        return os.path.join(UNITS_DIR, f"{self.name}.{kind}")


def claim(output_dir: str, identity: dict) -> None:
    """Makes `output_dir` the directory of this job: see job_directory.claim.

    An earlier job without a finished unit is removed first, so that its input can be corrected
    after an error.
    """
    names = {name for name in files.names_in(output_dir) if ".partial-" not in name}
    names.discard(remote_lock.LOCK_FILE)
    # Remove nothing if the directory has any other file: the file may not be ours.
    if job_directory.RUN_FILE in names <= {job_directory.RUN_FILE, UNITS_DIR}:
        units_dir = os.path.join(output_dir, UNITS_DIR)
        finished = {name for name in files.names_in(units_dir) if ".partial-" not in name}
        if finished <= {os.path.basename(ERROR_FILE)}:
            files.remove_directory(units_dir)
            files.remove(os.path.join(output_dir, job_directory.RUN_FILE))
    job_directory.claim(output_dir, identity)


def run_units(
    title: str,
    work: Callable[[Any], Any],
    units: Sequence[Unit],
    output_dir: str,
    workers: Workers,
    kind: str = "json",
) -> list[str]:
    """Calls `work` with each unit that has no file of this kind yet, on a Beam runner.

    `units` are all units of the job, including finished ones. `work` must be picklable. It returns
    the content of the unit's file: bytes, or a dict for JSON; see Unit.file. A job of several
    passes over its units has a kind of file for each pass.

    Returns:
      the paths of the units' files, for read_markers if they hold JSON.

    Raises:
      UserError: if a unit ended with a user error.
    """
    remove_leftovers(output_dir)
    work = functools.partial(work_or_error, work, output_dir, kind)
    with _progress(title, units, output_dir, kind) as unfinished:
        try:
            beam_job.run(work, unfinished, workers)
        except Exception as error:
            # If ERROR_FILE could not be written either, Beam's traceback contains the error.
            if message := store_error(str(error)):
                raise UserError(message) from error
            raise
        error_file = os.path.join(output_dir, ERROR_FILE)
        if tf.io.gfile.exists(error_file):
            with tf.io.gfile.GFile(error_file) as file:
                full = f"no space left in {output_dir!r}: make room, then run the command again"
                raise UserError(file.read() or full)
    remove_leftovers(output_dir)  # from workers that outlived a killed job
    return [os.path.join(output_dir, unit.file(kind)) for unit in units]


def remove_leftovers(output_dir: str) -> None:
    """Removes unfinished files and the error of earlier runs."""
    files.make_directory(os.path.join(output_dir, UNITS_DIR))
    # An object store shows no unfinished files.
    if not files.is_remote(output_dir):
        for directory in (output_dir, os.path.join(output_dir, UNITS_DIR)):
            for name in files.names_in(directory):
                if ".partial-" in name:
                    # May be gone: a worker that outlives its job for a moment may have renamed it.
                    files.remove(os.path.join(directory, name))
    files.remove(os.path.join(output_dir, ERROR_FILE))


def work_or_error(work: Callable[[Any], Any], output_dir: str, kind: str, unit: Unit) -> None:
    """Writes `work(unit)` to the unit's file, or a user error to ERROR_FILE.

    After an error later units do nothing. Beam would raise an exception late, after retries, and
    inside its own traceback.
    """
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        return
    try:
        try:
            content = work(unit)
            if not isinstance(content, bytes):
                content = json.dumps(content, ensure_ascii=False) + "\n"
            files.write_atomically(os.path.join(output_dir, unit.file(kind)), content)
        finally:
            if not files.is_remote(output_dir):
                files.remove(_note_file(unit, output_dir))
    except Exception as error:
        if not program.is_user_error(error):
            raise
        if ".partial-" in str(error) and "No such file" in str(error):
            return  # this job was killed, and the job that resumes it has removed the file
        try:
            files.write_atomically(error_file, str(error))
        except (OSError, tf.errors.OpError):
            # A full disk has room for an empty file, which run_units reads as "disk full".
            with tf.io.gfile.GFile(error_file, "w") as file:
                file.write("")  # creates the file


def progress_note(unit: Unit, output_dir: str) -> Callable[[int], None]:
    """Returns a function to call with the number of bytes of the unit that have been read.

    It writes a file, because the work may run in another process. In an object store each file
    would be a request: the progress there counts finished units only.
    """
    if files.is_remote(output_dir):
        return lambda _: None
    path = _note_file(unit, output_dir)
    last = time.monotonic()

    def note(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_NOTES:
            files.write_atomically(path, str(done))
            last = time.monotonic()

    return note


def _note_file(unit: Unit, output_dir: str) -> str:
    # remove_leftovers removes it after a kill.
    return os.path.join(output_dir, UNITS_DIR, f".{unit.name}.partial-bytes")


def _read_note(unit: Unit, output_dir: str) -> int:
    try:
        with open(_note_file(unit, output_dir), encoding="utf-8") as file:
            return int(file.read())
    except FileNotFoundError:  # the unit has finished since its note was listed
        return unit.bytes


def read_markers(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Reads the units' JSON files."""
    if not any(map(files.is_remote, paths)):
        return list(map(files.read_json, paths))
    return files.map_requests(files.read_json, paths, "reading the counts")


@contextlib.contextmanager
def _progress(
    title: str, units: Sequence[Unit], output_dir: str, kind: str
) -> Iterator[list[Unit]]:
    """Yields the unfinished units; meanwhile a thread reports the bytes done of all units."""

    def look() -> tuple[list[Unit], int, str]:
        names = set(files.names_in(os.path.join(output_dir, UNITS_DIR)))
        left = [unit for unit in units if os.path.basename(unit.file(kind)) not in names]
        notes = [
            (_read_note(unit, output_dir), unit.bytes)
            for unit in left
            if os.path.basename(_note_file(unit, output_dir)) in names
        ]
        # At least one byte of an unfinished unit counts as missing, so that it never looks done.
        done = total - sum(unit.bytes for unit in left)
        done += sum(min(read, size - 1) for read, size in notes)
        detail = f"{len(units) - len(left)} of {len(units)} units"
        # One worker reads a whole document, even beyond the unit's ranges.
        beyond = max((read - size for read, size in notes), default=0)
        if beyond > 0:
            detail += f"; a document has been read {beyond:,} bytes past the end of its unit"
        return left, done, detail

    def watch() -> None:
        # Look less often at a remote directory: each look lists the whole directory.
        while not stop.wait(10.0 if files.is_remote(output_dir) else _SECONDS_BETWEEN_NOTES):
            _, done, detail = look()
            if done < total:
                progress.update(done, detail)

    total = sum(unit.bytes for unit in units)
    stop = threading.Event()
    unfinished, done_before, _ = look()
    with Progress(title, total, done_before, unit="byte") as progress:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield unfinished
        finally:
            stop.set()
            watcher.join()
            progress.update(*look()[1:])
