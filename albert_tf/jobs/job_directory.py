"""Locks output directories and checks that a resumed run has the same settings as before."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import flags

import albert_tf
from albert_tf.checkpoints.model_directory import RUN_FILE
from albert_tf.jobs import remote_lock
from albert_tf.storage import files
from albert_tf.storage.errors import UserError, shown


def define_flags() -> None:
    """Defines the flag --take_over, which is used by `lock`."""
    flags.disclaim_key_flags()  # --help lists the flag under the calling module
    flags.DEFINE_bool(
        "take_over",
        False,
        "Write to a remote output directory still locked by a killed job on another machine.",
    )


@contextlib.contextmanager
def lock(directory: str) -> Iterator[None]:
    """Locks a directory against other jobs, and creates it if it does not exist.

    Raises a UserError if another job has locked the directory. If the block raises a UserError, a
    newly created, empty directory is deleted.

    The lock of a local directory excludes only jobs on the same machine. It is released when the
    process ends, even if it is killed. For remote directories see remote_lock.
    """
    if not directory:
        raise UserError("the output directory is '': expected a path")
    if files.is_remote(directory):
        take_over = "take_over" in flags.FLAGS and flags.FLAGS.take_over
        with remote_lock.hold(directory, take_over):
            yield
        return
    is_new = not os.path.exists(directory)
    tf.io.gfile.makedirs(directory)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Ignore other errors, which occur on file systems without directory locks, such as NFS.
            if error.errno == errno.EWOULDBLOCK:
                raise UserError(
                    f"another job is writing to {directory!r}: wait for its end, or end it"
                ) from None
        yield
    except UserError:
        if is_new:
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(directory)
        raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def hold(directory: str, settings: dict) -> Iterator[None]:
    """Locks a directory and claims it for the job with these settings; see `lock` and `claim`."""
    with lock(directory):
        claim(directory, settings)
        yield


def claim(model_dir: str, settings: dict) -> None:
    """Records a run's settings in `model_dir`, or compares them with the recorded settings.

    `settings` is a JSON-serialisable dict of all settings that affect the result. RUN_FILE also
    records package versions, and a resume with other ones prints both. A directory that contains
    another run or other files is rejected.
    """
    files.check_directory_name(model_dir)
    path = os.path.join(model_dir, RUN_FILE)
    versions = {
        "albert_tf": albert_tf.__version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    if tf.io.gfile.exists(path):
        theirs = files.read_json(path)
        begun = theirs.pop("versions", {})
        # Runs of the same kind have most setting names in common.
        if len({*theirs} & {*settings}) <= len(theirs) / 2:
            raise UserError(f"{model_dir!r} holds another kind of run: choose another directory")
        if difference := describe_difference(theirs, settings):
            raise UserError(
                f"{model_dir!r} holds another run ({difference}): choose another directory, or the "
                "same settings to resume that run"
            )
        if difference := describe_difference(begun, versions):
            print(
                f"begun with other versions ({difference}): the result may differ slightly from a "
                "run with one version",
                flush=True,
            )
        return
    if any(not name.startswith(".") for name in files.names_in(model_dir)):
        raise UserError(
            f"{model_dir!r} holds files but no run of this job ({RUN_FILE}): choose an empty "
            "or new directory"
        )
    content = {**settings, "versions": versions}
    files.write_atomically(path, json.dumps(content, indent=2) + "\n")


def describe_difference(theirs: dict, ours: dict) -> str:
    """Describes the settings that differ between two runs; returns "" if all are equal.

    A setting inside another is named by both, such as task.min_probability. At most five are named.
    """
    found = list(_differing(theirs, json.loads(json.dumps(ours))))  # tuples as lists, as in a file
    more = f"; and {len(found) - 5} more" * (len(found) > 5)
    return "; ".join(found[:5]) + more


def _differing(theirs: dict, ours: dict, prefix: str = "") -> Iterator[str]:
    # Settings that only one of them has come last, such as those of another version.
    for key in sorted({*theirs, *ours}, key=lambda key: (key not in theirs, key not in ours, key)):
        there, here = theirs.get(key), ours.get(key)
        if isinstance(there, dict) and isinstance(here, dict):
            yield from _differing(there, here, f"{prefix}{key}.")
        elif there != here:
            yield f"{prefix}{key} {shown(there)} there, {shown(here)} here"


def describe_files(sizes: dict[str, int], listing: object) -> str:
    """Returns the number and total size of files and a hash of `listing`, for use in `claim`."""
    digest = hashlib.sha256(json.dumps(listing).encode()).hexdigest()
    return f"{len(sizes)} files of {sum(sizes.values())} bytes, names and sizes {digest[:8]}"


def warn_if_modified(inputs: Sequence[str], record: str) -> None:
    """Prints a warning if an input was modified after `record`, the file of the job's settings."""
    if modified := files.modified_after(inputs, record):
        more = f" and {len(modified) - 1:,} more" * (len(modified) > 1)
        print(
            f"{modified[0]}{more} modified after {record}, at the same size: if the text changed, "
            "choose another output directory",
            flush=True,
        )
