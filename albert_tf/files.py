"""Files on any file system that tf.io.gfile reaches: find them, write them whole or not at all."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf

from albert_tf.errors import UserError


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
        # 100,000 local files are ten times sooner looked at without TensorFlow.
        found = [
            name
            for name in names
            if not (tf.io.gfile.isdir(name) if "://" in name else os.path.isdir(name))
        ]
        if not found:
            hint = " (only directories do: write DIR/* for the files in one)" if names else ""
            raise UserError(f"--{flag_name}: no file matches {pattern!r}{hint}")
        for name in found:
            files.setdefault(absolute(name), name)  # also where it is spelt in two ways
    return sorted(files.values())


def absolute(path: str) -> str:
    """Returns a path in full; a remote one (`gs://`) as it is."""
    return path if "://" in path else os.path.abspath(path)


def sizes(paths: Sequence[str]) -> dict[str, int]:
    """Returns path -> bytes.

    Raises:
      OSError, tf.errors.OpError: if there is no such file.
    """

    def size(path: str) -> int:
        # TensorFlow takes twice as long for a local file, which counts for 100,000 of them.
        return tf.io.gfile.stat(path).length if "://" in path else os.path.getsize(path)

    if not any("://" in path for path in paths):
        return {path: size(path) for path in paths}
    # A remote size is one request: send 16 at a time.
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return dict(zip(paths, pool.map(size, paths)))


def write_atomically(path: str, data: bytes | str) -> None:
    """Writes `data` to `path` so that no reader ever sees half of it; makes its directory."""
    partial = partial_name(path)
    if directory := os.path.dirname(path):
        tf.io.gfile.makedirs(directory)
    try:
        with tf.io.gfile.GFile(partial, "wb") as file:
            file.write(data)
        tf.io.gfile.rename(partial, path, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(partial):
            tf.io.gfile.remove(partial)
        raise


@contextlib.contextmanager
def new_directory(path: str) -> Iterator[str]:
    """Yields a directory to fill; it gets the name `path` at the end, or vanishes on an error.

    Raises:
      ValueError: if `path` exists.
    """
    path = path.rstrip("/")
    if not path or tf.io.gfile.exists(path):
        raise UserError(f"{path!r} exists already: name a new directory")
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
