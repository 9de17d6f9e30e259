"""Runs the units of a job with Beam; handles resuming, errors and progress.

Each finished unit has a file in UNITS_DIR. A killed job resumes by running the unfinished units, on
any runner and any number of workers.
"""

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
from albert_tf.storage.errors import UserError, disk_full, is_disk_full, store_error
from albert_tf.storage.progress import Progress
from . import beam_job
from .beam_job import Workers
from .records import MANIFEST_FILE

UNITS_DIR = "units"
ERROR_FILE = os.path.join(UNITS_DIR, "error.txt")

_SECONDS_BETWEEN_NOTES = 1.0


@dataclass(frozen=True)
class Unit:
    """Base class for the units of work of a job. Units must be picklable."""

    name: str  # used in file names; unique in the job
    bytes: int  # size of the input, used to report progress

    def file(self, kind: str = "json") -> str:
        """Returns the path in the output directory of the file that marks a unit as finished."""
        return os.path.join(UNITS_DIR, f"{self.name}.{kind}")


def claim(output_dir: str, identity: dict, inputs: Sequence[str]) -> None:
    """Claims `output_dir` for this job on the files `inputs`: see job_directory.claim.

    If an earlier job finished no unit, its files are deleted first, so that its input can be
    corrected after an error. If an earlier job finished them all, any version of the code may have
    done so: `code_version` is not compared.
    """
    names = {name for name in files.names_in(output_dir) if ".partial-" not in name}
    names.discard(remote_lock.LOCK_FILE)
    # Delete nothing if the directory contains any other file, which may not be ours.
    if job_directory.RUN_FILE in names <= {job_directory.RUN_FILE, UNITS_DIR}:
        units_dir = os.path.join(output_dir, UNITS_DIR)
        finished = {name for name in files.names_in(units_dir) if ".partial-" not in name}
        if finished <= {os.path.basename(ERROR_FILE)}:
            files.remove_directory(units_dir)
            files.remove(os.path.join(output_dir, job_directory.RUN_FILE))
    if {job_directory.RUN_FILE, MANIFEST_FILE} <= names:
        theirs = files.read_json(os.path.join(output_dir, job_directory.RUN_FILE))
        identity = {**identity, "code_version": theirs.get("code_version")}
    job_directory.claim(output_dir, identity)
    job_directory.warn_if_modified(inputs, os.path.join(output_dir, job_directory.RUN_FILE))


def run_units(
    title: str,
    work: Callable[[Any], Any],
    units: Sequence[Unit],
    output_dir: str,
    workers: Workers,
    kind: str = "json",
) -> list[str]:
    """Calls `work` on a Beam runner for each unit that has no file of this kind yet.

    `units` are all units of the job, including finished units. `work` must be picklable. It returns
    the content of the unit's file (see Unit.file): bytes, or a dict that is written as JSON. If a
    job makes several passes over its units, each pass needs its own `kind` of file.

    Returns:
      The paths of the files of all units. JSON files can be read with read_markers.

    Raises:
      UserError: if a unit failed with a user error.
    """
    remove_leftovers(output_dir)
    work = functools.partial(work_or_error, work, output_dir, kind)
    with _progress(title, units, output_dir, kind) as unfinished:
        try:
            beam_job.run(work, unfinished, workers)
        except Exception as error:
            # If writing ERROR_FILE failed as well, only Beam's traceback contains the error.
            if message := store_error(str(error)):
                raise UserError(message) from error
            raise
        error_file = os.path.join(output_dir, ERROR_FILE)
        if tf.io.gfile.exists(error_file):
            with tf.io.gfile.GFile(error_file) as file:
                raise UserError(file.read() or disk_full(output_dir))
    remove_leftovers(output_dir)  # from workers that outlived a killed job
    return [os.path.join(output_dir, unit.file(kind)) for unit in units]


def remove_leftovers(output_dir: str) -> None:
    """Deletes partial files and the error file of earlier runs."""
    files.make_directory(os.path.join(output_dir, UNITS_DIR))
    # Object stores do not list partial files.
    if not files.is_remote(output_dir):
        for directory in (output_dir, os.path.join(output_dir, UNITS_DIR)):
            for name in files.names_in(directory):
                if ".partial-" in name:
                    # A worker that outlived its job may already have renamed the file.
                    files.remove(os.path.join(directory, name))
    files.remove(os.path.join(output_dir, ERROR_FILE))


def work_or_error(work: Callable[[Any], Any], output_dir: str, kind: str, unit: Unit) -> None:
    """Writes the result of `work(unit)` to the unit's file, or a user error to ERROR_FILE.

    After a user error, later units are skipped. The error is not raised, because Beam would report
    it late, after retries, and inside its own traceback.
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
            return  # this job was killed, and the job that resumed it has deleted the file
        try:
            full = is_disk_full(error)
            files.write_atomically(error_file, disk_full(output_dir) if full else str(error))
        except (OSError, tf.errors.OpError):
            # A full disk has room for an empty file. run_units interprets it as "disk full".
            with tf.io.gfile.GFile(error_file, "w") as file:
                file.write("")  # creates the file


def progress_note(unit: Unit, output_dir: str) -> Callable[[int], None]:
    """Returns a function that stores the number of bytes of the unit that have been read.

    The number is stored in a file, because the work may run in a separate process. Nothing is
    stored in an object store, where each write would be a request. Progress then counts only
    finished units.
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
    # If the job is killed, remove_leftovers deletes the file.
    return os.path.join(output_dir, UNITS_DIR, f".{unit.name}.partial-bytes")


def _read_note(unit: Unit, output_dir: str) -> int:
    try:
        with open(_note_file(unit, output_dir), encoding="utf-8") as file:
            return int(file.read())
    except FileNotFoundError:  # the unit has finished since the file was listed
        return unit.bytes


def read_markers(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Reads the JSON files of units."""
    if not any(map(files.is_remote, paths)):
        return list(map(files.read_json, paths))
    return files.map_requests(files.read_json, paths, "reading the counts")


@contextlib.contextmanager
def _progress(
    title: str, units: Sequence[Unit], output_dir: str, kind: str
) -> Iterator[list[Unit]]:
    """Yields the unfinished units, while a thread reports the progress of all units in bytes."""

    def look() -> tuple[list[Unit], int, str]:
        names = set(files.names_in(os.path.join(output_dir, UNITS_DIR)))
        left = [unit for unit in units if os.path.basename(unit.file(kind)) not in names]
        notes = [
            (_read_note(unit, output_dir), unit.bytes)
            for unit in left
            if os.path.basename(_note_file(unit, output_dir)) in names
        ]
        # At least one byte of an unfinished unit counts as unread, so that it never looks finished.
        done = total - sum(unit.bytes for unit in left)
        done += sum(min(read, size - 1) for read, size in notes)
        detail = f"{len(units) - len(left)} of {len(units)} units"
        # A worker reads the last document of a unit to its end, even past the unit's ranges.
        beyond = max((read - size for read, size in notes), default=0)
        if beyond > 0:
            detail += f"; a document has been read {beyond:,} bytes past the end of its unit"
        return left, done, detail

    def watch() -> None:
        # Poll remote directories less often, because each poll lists the whole directory.
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
