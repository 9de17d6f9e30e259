"""Files on any file system that tf.io.gfile reaches: find them, write them whole or not at all.

A local file gets its name by renaming. In an object store (`gs://`, `s3://`) renaming copies and
deletes object by object, but an object itself is there whole or not at all: there a file is written
to local temporary space and uploaded under its name. A remote directory is a part of names: it
needs not be made, and one that is not there is empty.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import posixpath
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.progress import Progress

# What export.export_saved_model writes of an export, here because asking one loads no model code.
# TF Serving and the loaders leave the file alone.
PROVENANCE_FILE = os.path.join("assets.extra", "export.json")

_PARALLEL_REQUESTS = 32
_MANY_REQUESTS = 2000  # so many take long enough to report their progress


def match_files(patterns: str | Sequence[str], flag_name: str) -> list[str]:
    """Returns the sorted files that the globs or paths name.

    Args:
      patterns: globs or paths, local or remote (`gs://`, `s3://`); commas separate several.
      flag_name: the flag they came from, for the error message.

    Raises:
      ValueError: if a pattern matches no file.
    """
    if isinstance(patterns, str):
        patterns = patterns.split(",")
    patterns = [pattern.strip() for pattern in patterns if pattern.strip()]
    if not patterns:
        raise UserError(f"--{flag_name} is empty: name at least one file")
    files: dict[str, str] = {}
    for pattern in patterns:
        # A file whose very name holds `[` or `*` is found by name before it is read as a glob.
        names = [pattern] if tf.io.gfile.exists(pattern) else tf.io.gfile.glob(pattern)
        directories = _directories(names, pattern)
        found = [name for name in names if name not in directories]
        if not found:
            hint = " (only directories do: write DIR/* for the files in one)" if names else ""
            raise UserError(f"--{flag_name}: no file matches {pattern!r}{hint}")
        for name in found:
            files.setdefault(absolute(name), name)  # also where it is spelt in two ways
    return sorted(files.values())


def _directories(names: Sequence[str], pattern: str) -> set[str]:
    """Returns which of the names that a pattern matches are directories."""
    if not is_remote(pattern):
        # 100,000 local files are ten times sooner looked at without TensorFlow.
        return {name for name in names if os.path.isdir(name)}
    if names == [pattern]:
        return {name for name in names if tf.io.gfile.isdir(name)}
    # One listing instead of a request for each name: a directory is what has something in it.
    return {posixpath.dirname(name.rstrip("/")) for name in tf.io.gfile.glob(pattern + "/*")}


def is_remote(path: str) -> bool:
    """Tells whether a path is that of an object store, such as `gs://bucket/name`."""
    return "://" in path


def absolute(path: str) -> str:
    """Returns a path in full; a remote one (`gs://`) as it is."""
    return path if is_remote(path) else os.path.abspath(path)


def names_in(directory: str) -> list[str]:
    """Returns the names in a directory, without a trailing slash; none if it does not exist."""
    try:
        return [name.rstrip("/") for name in tf.io.gfile.listdir(directory)]
    except tf.errors.NotFoundError:
        return []


def make_directory(directory: str) -> None:
    """Makes a directory with its parents; a remote one needs no making."""
    if directory and not is_remote(directory):
        tf.io.gfile.makedirs(directory)


def remove(path: str) -> None:
    """Removes a file, unless it is gone already."""
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(path)


def remove_directory(path: str) -> None:
    """Removes a directory with all in it, unless it is gone already."""
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.rmtree(path)


def map_requests(function: Callable[[Any], Any], arguments: Iterable[Any], title: str) -> list[Any]:
    """Returns `function` of each argument; many wait for the object store at the same time.

    Args:
      title: of the progress, which is reported where there are many.
    """
    arguments, results = list(arguments), []
    progress = Progress(title, len(arguments), unit="file")
    with concurrent.futures.ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool, progress:
        for result in pool.map(function, arguments):
            results.append(result)
            if len(arguments) >= _MANY_REQUESTS:
                progress.update(len(results))
    return results


def sizes(paths: Sequence[str]) -> dict[str, int]:
    """Returns path -> bytes.

    Raises:
      OSError, tf.errors.OpError: if there is no such file.
    """

    if not any(map(is_remote, paths)):
        # TensorFlow takes twice as long for a local file, which counts for 100,000 of them.
        return {path: os.path.getsize(path) for path in paths}
    title = f"looking at the files of {os.path.dirname(paths[0])}"
    return dict(zip(paths, map_requests(lambda path: tf.io.gfile.stat(path).length, paths, title)))


def write_atomically(path: str, data: bytes | str) -> None:
    """Writes `data` to `path` so that no reader ever sees half of it; makes its directory."""
    if is_remote(path):
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(data)
        return
    with whole_files(os.path.dirname(path)) as local_path:
        local = local_path(os.path.basename(path))
        with tf.io.gfile.GFile(local, "wb") as file:
            file.write(data)


@contextlib.contextmanager
def whole_files(directory: str) -> Iterator[Callable[[str], str]]:
    """Yields a function from the name of a file to the local path at which to write it.

    At the end of the block all files get their names in `directory`, in the order in which the
    function was called. After an exception none does, and nothing is left.
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
    """Copies a local file to a remote place, where it appears whole.

    Raises:
      OSError, tf.errors.OpError: if the object is not there afterwards in its size.
    """
    tf.io.gfile.copy(local, path, overwrite=True)
    there, here = tf.io.gfile.stat(path).length, os.path.getsize(local)
    if there != here:
        raise OSError(f"{path} has {there:,} bytes after {here:,} were uploaded: run it again")


def upload_directory(local: str, remote: str, last: Sequence[str] = ()) -> None:
    """Copies the files of a local directory; those that `last` names come last, in its order.

    Whatever reads the directory meanwhile knows by the last file that the others are there.
    """
    names = [
        os.path.relpath(os.path.join(parent, name), local)
        for parent, _, children in os.walk(local)
        for name in children
    ]

    def copy(name: str) -> None:
        upload(os.path.join(local, name), os.path.join(remote, name))

    map_requests(copy, sorted(set(names) - set(last)), f"uploading to {remote}")
    for name in last:
        copy(name)


@contextlib.contextmanager
def new_directory(path: str) -> Iterator[str]:
    """Yields a local directory to fill; it becomes `path` at the end, or vanishes on an error.

    Raises:
      ValueError: if `path` exists.
    """
    path = path.rstrip("/")
    if not path or tf.io.gfile.exists(path):
        raise UserError(f"{path!r} exists already: name a new directory")
    if is_remote(path):
        with tempfile.TemporaryDirectory() as space:
            yield space
            upload_directory(space, path)
        return
    partial = partial_name(path)
    try:
        yield partial
        tf.io.gfile.rename(partial, path)
    except BaseException:
        if tf.io.gfile.exists(partial):
            tf.io.gfile.rmtree(partial)
        raise


def read_json(path: str) -> dict:
    """Reads a JSON object.

    Raises:
      ValueError: if the file holds something else; it names the file.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        data = file.read()
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged or not JSON ({error})") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a JSON object")
    return values


def partial_name(path: str) -> str:
    """Returns a name beside `path` for its unfinished content, unique to this thread."""
    directory, name = os.path.split(path)
    who = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    return os.path.join(directory, f".{name}.partial-{who}")


def sha256(path: str) -> str:
    """Returns the hexadecimal SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
