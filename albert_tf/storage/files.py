"""Finds and atomically writes files on any file system that tf.io.gfile supports.

Local files are written under a temporary name and then renamed. In an object store (`gs://`), a
rename would copy and delete each object, but partial uploads are never visible. So remote files are
written to a local temporary directory (TMPDIR), which needs space for the largest file, and
uploaded under their final names. A remote directory is only a prefix of object names: it is not
created, and listing a missing one returns no names.
"""

import concurrent.futures
import contextlib
import fnmatch
import hashlib
import json
import os
import pathlib
import posixpath
import re
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from albert_tf.storage.errors import UserError, shown
from albert_tf.storage.progress import Progress

# Metadata that export.export_saved_model adds to an export. TensorFlow's loaders ignore the file.
PROVENANCE_FILE = os.path.join("assets.extra", "export.json")

# Marks a remote directory whose upload is still running or was killed.
UNFINISHED_FILE = ".unfinished"


def match_files(patterns: str | Sequence[str], flag_name: str) -> list[str]:
    """Returns the sorted files that match paths or globs, given as a list or comma-separated.

    Raises a UserError with the name of the flag if a pattern does not match any file.
    """
    if isinstance(patterns, str):
        patterns = split_paths(patterns)
    patterns = [pattern.strip() for pattern in patterns if pattern.strip()]
    if not patterns:
        raise UserError(f"--{flag_name} is empty: name at least one file")
    files: dict[str, str] = {}  # by absolute path: several patterns may match a file
    for pattern in patterns:
        # If a file has this name, it is not read as a pattern.
        names = [pattern] if tf.io.gfile.exists(pattern) else tf.io.gfile.glob(pattern)
        directories = _directories(names, pattern)
        found = {absolute(name): name for name in names if name not in directories}
        if not found:
            hint = " (only directories do: write DIR/* for the files in one)" if names else ""
            raise UserError(f"--{flag_name}: no file matches {pattern!r}{hint}")
        files = {**found, **files}
    return sorted(files.values())


def split_paths(paths: str) -> list[str]:
    """Splits comma-separated paths. A path that exists may itself contain commas."""
    if "," in paths and tf.io.gfile.exists(paths):
        return [paths]
    return [path.strip() for path in paths.split(",")]


def find(start: str, pattern: str) -> list[str]:
    """Returns the sorted paths that consist of `start` and of what matches `pattern`, without `/`.

    Unlike tf.io.gfile.glob, this reads `*?[` in `start`, such as `DIRECTORY/ckpt-8`, literally.
    """
    directory, name = os.path.split(start)
    found = [other for other in names_in(directory or ".") if other.startswith(name)]
    kept = (other for other in found if fnmatch.fnmatchcase(other[len(name) :], pattern))
    return [os.path.join(directory, other) for other in sorted(kept)]


def _directories(names: Sequence[str], pattern: str) -> set[str]:
    """Returns those `names` that are directories. `names` are the matches of `pattern`."""
    if not is_remote(pattern):
        # os.path is ten times faster than TensorFlow for 100,000 local files.
        return {name for name in names if os.path.isdir(name)}
    if names == [pattern]:
        return {name for name in names if tf.io.gfile.isdir(name)}
    # Remote directories are never empty: one request lists what is in them.
    parents = {posixpath.dirname(name.rstrip("/")) for name in tf.io.gfile.glob(pattern + "/*")}
    # An object and a directory may have the same name.
    asked = sorted(parents.intersection(names))
    found = map_requests(tf.io.gfile.stat, asked, f"looking at the names of {pattern}")
    return parents - {name for name, stat in zip(asked, found) if not stat.is_directory}


def is_remote(path: str) -> bool:
    """Returns whether a path is in an object store, such as `gs://bucket/name`."""
    return "://" in path


def as_path(path: str | os.PathLike) -> str:
    """Returns a path as a string. Raises a UserError for other types, such as None."""
    if not isinstance(path, (str, os.PathLike)):
        raise UserError(f"expected a path, got {shown(path)}")
    return os.fspath(path)


def absolute(path: str) -> str:
    """Converts a local path to an absolute path; returns a remote path (`gs://`) unchanged."""
    return path if is_remote(path) else os.path.abspath(path)


def check_no_input(flag_name: str, outputs: Sequence[str], inputs: Sequence[str]) -> None:
    """Raises a UserError if one of a program's output files is also one of its input files."""
    known = {absolute(path) for path in inputs}
    for path in outputs:
        if absolute(path) in known:
            raise UserError(f"--{flag_name}: {path!r} is an input file: choose another path")


def names_in(directory: str) -> list[str]:
    """Lists a directory, without trailing slashes; returns [] if it does not exist."""
    with contextlib.suppress(tf.errors.NotFoundError):
        return [name.rstrip("/") for name in tf.io.gfile.listdir(directory)]
    return []


def check_finished(directory: str) -> None:
    """Raises a UserError if the upload of a remote directory was killed or is still running."""
    if is_remote(directory) and tf.io.gfile.exists(os.path.join(directory, UNFINISHED_FILE)):
        raise UserError(
            f"{directory!r} is not whole: its upload still runs, or was killed; then repeat the "
            "command that writes it"
        )


def check_directory_name(directory: str) -> None:
    """Raises a UserError if TensorFlow cannot read or write checkpoints in such a directory."""
    if pattern := " ".join(sorted(set(directory) & set("*?[\\"))):
        raise UserError(
            f"{directory!r}: TensorFlow mistakes {pattern} in a directory's name for a pattern and "
            f"finds no checkpoint there: choose a path without {pattern}, or copy the files to one"
        )


def make_directory(directory: str) -> None:
    """Creates a local directory and its parents; does nothing for remote directories."""
    if directory and not is_remote(directory):
        tf.io.gfile.makedirs(directory)


def remove(path: str) -> None:
    """Deletes a file if it exists."""
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(path)


def remove_directory(path: str) -> None:
    """Deletes a directory and its content if it exists."""
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.rmtree(path)


def map_requests(function: Callable[[Any], Any], arguments: Iterable[Any], title: str) -> list[Any]:
    """Applies `function`, which sends a request to an object store, to all arguments in parallel.

    Results are returned in order. Of many requests, progress is reported with `title`.
    """
    arguments, results = list(arguments), []
    progress = Progress(title, len(arguments), unit="file")
    with concurrent.futures.ThreadPoolExecutor(32) as pool, progress:
        for result in pool.map(function, arguments):
            results.append(result)
            if len(arguments) >= 2000:
                progress.update(len(results))
    return results


def sizes(paths: Sequence[str]) -> dict[str, int]:
    """Returns a dict mapping paths to file sizes in bytes."""
    return {path: size for path, (size, _) in zip(paths, _stats(paths))}


def _stats(paths: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the size in bytes and the time of modification of each file."""
    if not any(map(is_remote, paths)):
        # os is twice as fast as TensorFlow for local files, which matters for 100,000 files.
        return [(found.st_size, found.st_mtime_ns) for found in map(os.stat, paths)]
    title = f"looking at the files of {os.path.dirname(paths[0])}"
    found = map_requests(tf.io.gfile.stat, paths, title)
    return [(stat.length, stat.mtime_nsec) for stat in found]


def modified_after(paths: Sequence[str], reference: str) -> list[str]:
    """Returns the `paths` of files that were modified later than the file `reference`."""
    *times, last = [modified for _, modified in _stats([*paths, reference])]
    return [path for path, modified in zip(paths, times) if modified > last]


def write_atomically(path: str, data: bytes | str) -> None:
    """Writes `data` to `path` atomically, and creates the directory if needed."""
    directory, name = os.path.split(path)
    # Writing to an object store is already atomic.
    whole = contextlib.nullcontext(lambda _: path) if is_remote(path) else whole_files(directory)
    with whole as local_path, tf.io.gfile.GFile(local_path(name), "wb") as file:
        file.write(data)


@contextlib.contextmanager
def whole_files(directory: str) -> Iterator[Callable[[str], str]]:
    """Yields a function that maps the name of a file to a temporary local path for writing it.

    At the end of the block, all files are moved to `directory`, in the order of the function's
    calls. If an exception is raised, none is moved, and the temporary files are deleted.
    """
    paths: dict[str, str] = {}
    if is_remote(directory):
        with tempfile.TemporaryDirectory() as space:
            yield lambda name: paths.setdefault(name, os.path.join(space, name))
            for name, local in paths.items():
                upload(local, os.path.join(directory, name))
        return
    make_directory(directory)
    try:
        yield lambda name: paths.setdefault(name, partial_name(os.path.join(directory, name)))
        for name, partial in paths.items():
            tf.io.gfile.rename(partial, os.path.join(directory, name), overwrite=True)
    finally:
        for partial in paths.values():
            remove(partial)


def upload(local: str, path: str) -> None:
    """Uploads a local file to an object store and verifies the size."""
    tf.io.gfile.copy(local, path, overwrite=True)
    there, here = tf.io.gfile.stat(path).length, os.path.getsize(local)
    if there != here:
        raise OSError(f"{path} has {there:,} bytes after {here:,} were uploaded: run it again")


def upload_directory(local: str, remote: str, last: Sequence[str] = ()) -> None:
    """Uploads all files of a local directory. Files in `last` are uploaded after all others."""
    paths = pathlib.Path(local).rglob("*")
    names = {str(path.relative_to(local)) for path in paths if path.is_file()}

    def copy(name: str) -> None:
        upload(os.path.join(local, name), os.path.join(remote, name))

    map_requests(copy, sorted(names - {*last}), f"uploading to {remote}")
    for name in last:
        copy(name)


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
    """Yields a local path of a file. Remote files are copied for the duration of the block."""
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as space:
        local = os.path.join(space, os.path.basename(path))
        tf.io.gfile.copy(path, local)
        yield local


@contextlib.contextmanager
def new_directory(path: str) -> Iterator[str]:
    """Yields a local directory, which is moved to `path` at the end of the block.

    If an exception is raised, the local directory is deleted. During an upload, a remote `path`
    contains UNFINISHED_FILE. An existing `path` is replaced if it contains this file, because then
    its upload was killed. Otherwise a UserError is raised.
    """
    path = path.rstrip("/")
    check_directory_name(path)
    mark = os.path.join(path, UNFINISHED_FILE)
    is_unfinished = is_remote(path) and tf.io.gfile.exists(mark)
    if not path or (tf.io.gfile.exists(path) and not is_unfinished):
        raise UserError(f"{path!r} exists already: name a new directory")
    if is_remote(path):
        with tempfile.TemporaryDirectory() as space:
            yield space
            if not is_unfinished and names_in(path):
                raise UserError(f"{path!r} has appeared meanwhile: name a new directory")
            # A unique text, so that a concurrent upload to the same path is detected below.
            call = f"upload {secrets.token_hex(8)} is not finished, or was killed\n"
            write_atomically(mark, call)
            for parent, _, names in tf.io.gfile.walk(path) if is_unfinished else ():
                for name in set(names) - {UNFINISHED_FILE}:
                    remove(os.path.join(parent, name))
            upload_directory(space, path)
            if not tf.io.gfile.exists(mark) or tf.io.gfile.GFile(mark).read() != call:
                raise UserError(
                    f"another call has written to {path!r} meanwhile: delete it and run one of them"
                )
            remove(mark)
        return
    _remove_killed(path)
    partial = partial_name(path)
    try:
        yield partial
        tf.io.gfile.rename(partial, path)
    except BaseException:
        remove_directory(partial)
        raise


def is_whole(directory: str) -> bool:
    """Returns whether a directory exists and was completely written by `new_directory`."""
    mark = os.path.join(directory, UNFINISHED_FILE)
    return tf.io.gfile.isdir(directory) and not tf.io.gfile.exists(mark)


def write_json(path: str, values: dict | list, indent: int = 2) -> None:
    """Writes an indented JSON file, atomically."""
    write_atomically(path, json.dumps(values, indent=indent, ensure_ascii=False) + "\n")


def read_json(path: str) -> dict:
    """Reads a JSON object; raises a UserError if it is invalid."""
    with tf.io.gfile.GFile(path, "rb") as file:
        data = file.read()
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged or not JSON ({error})") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a JSON object")
    return values


def read_json_if_exists(path: str) -> dict:
    """Reads a JSON object; returns {} if the file does not exist."""
    return read_json(path) if tf.io.gfile.exists(path) else {}


def partial_name(path: str) -> str:
    """Returns a temporary path in the directory of `path`, unique to this thread."""
    directory, name = os.path.split(path)
    who = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    return os.path.join(directory, f".{name}.partial-{who}")


def _remove_killed(path: str) -> None:
    """Deletes partial_name(path) of killed processes of this host."""
    directory, name = os.path.split(path)
    ours = re.compile(re.escape(f".{name}.partial-{socket.gethostname()}-") + r"(\d+)-\d+")
    for found in names_in(directory or "."):
        if match := ours.fullmatch(found):
            try:
                os.kill(int(match[1]), 0)  # sends no signal
            except ProcessLookupError:
                remove_directory(os.path.join(directory, found))
            except PermissionError:
                pass  # the process exists and belongs to another user


def sha256(path: str) -> str:
    """Returns the hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
