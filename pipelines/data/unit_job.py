"""Runs the units of a job with Beam; handles locks, resuming, errors and progress.

Each finished unit has a file in UNITS_DIR. A killed job resumes by running the unfinished units, on
any runner and any number of workers.
"""

import contextlib
import functools
import json
import os
import threading
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


@dataclass(frozen=True)
class Unit:
    """Base class for the units of work of a job. Units must be picklable."""

    name: str  # used in file names; unique in the job
    bytes: int  # size of the input, for the report of progress

    def file(self, kind: str = "json") -> str:
        """Returns the path in the output directory of the file that marks a unit as finished."""
        return os.path.join(UNITS_DIR, f"{self.name}.{kind}")


@contextlib.contextmanager
def hold(output_dir: str, identity: dict, inputs: Sequence[str]) -> Iterator[None]:
    """Locks `output_dir` and claims it for this job on the files `inputs`: see job_directory.

    If an earlier job finished no unit, its files are deleted first, so that its input can be
    corrected after an error. If an earlier job finished them all, any version of the code may have
    done so: `code_version` is not compared.
    """
    run_file, units_dir = (
        os.path.join(output_dir, name) for name in (job_directory.RUN_FILE, UNITS_DIR)
    )
    with job_directory.lock(output_dir):
        names = _whole_files(output_dir) - {remote_lock.LOCK_FILE}
        # Delete nothing if the directory contains any other file, which may not be ours.
        is_ours = job_directory.RUN_FILE in names <= {job_directory.RUN_FILE, UNITS_DIR}
        if is_ours and _whole_files(units_dir) <= {os.path.basename(ERROR_FILE)}:
            files.remove_directory(units_dir)
            files.remove(run_file)
        if {job_directory.RUN_FILE, MANIFEST_FILE} <= names:
            identity = {**identity, "code_version": files.read_json(run_file).get("code_version")}
        job_directory.claim(output_dir, identity)
        job_directory.warn_if_modified(inputs, run_file)
        yield


def _whole_files(directory: str) -> set[str]:
    return {name for name in files.names_in(directory) if ".partial-" not in name}


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
    the content of the unit's file: bytes, or a dict that is written as JSON. If a job makes several
    passes over its units, each pass needs its own `kind` of file.

    Returns the paths of the files of all units. Raises a UserError if a unit failed with one.
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

    After a user error, later units are skipped. Beam would report the error late, after retries.
    """
    error_file = os.path.join(output_dir, ERROR_FILE)
    if tf.io.gfile.exists(error_file):
        return
    try:
        content = work(unit)
        if not isinstance(content, bytes):
            content = json.dumps(content, ensure_ascii=False) + "\n"
        files.write_atomically(os.path.join(output_dir, unit.file(kind)), content)
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


@contextlib.contextmanager
def _progress(
    title: str, units: Sequence[Unit], output_dir: str, kind: str
) -> Iterator[list[Unit]]:
    """Yields the unfinished units, while a thread reports the progress of all units in bytes."""

    def look() -> list[Unit]:
        names = set(files.names_in(os.path.join(output_dir, UNITS_DIR)))
        return [unit for unit in units if os.path.basename(unit.file(kind)) not in names]

    def show(left: list[Unit]) -> None:
        done = total - sum(unit.bytes for unit in left)
        progress.update(done, f"{len(units) - len(left)} of {len(units)} units")

    def watch() -> None:
        # Poll remote directories less often, because each poll lists the whole directory.
        while not stop.wait(10.0 if files.is_remote(output_dir) else 1.0):
            if left := look():
                show(left)

    total = sum(unit.bytes for unit in units)
    stop = threading.Event()
    unfinished = look()
    done_before = total - sum(unit.bytes for unit in unfinished)
    with Progress(title, total, done_before, unit="byte") as progress:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield unfinished
        finally:
            stop.set()
            watcher.join()
            show(look())
