"""Finds the versions of an export: directories named by whole numbers, which TF Serving watches.

A local version appears complete. A remote version grows object by object. It is finished when it
contains files.PROVENANCE_FILE, which is uploaded last.
"""

from __future__ import annotations

import os

import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError


def existing(directory: str) -> list[int]:
    """Returns the finished versions in a directory, oldest first; none if it does not exist."""
    if files.is_remote(directory):
        marks = tf.io.gfile.glob(os.path.join(directory, "*", files.PROVENANCE_FILE))
        names = [mark.split("/")[-3] for mark in marks]
    else:
        names = files.names_in(directory)
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def newest_saved_model(path: str) -> str:
    """Returns the SavedModel at `path`, or the newest version in it."""
    candidates = [path, *(os.path.join(path, str(v)) for v in reversed(existing(path)))]
    for candidate in candidates:
        if tf.io.gfile.exists(os.path.join(candidate, "saved_model.pb")):
            return candidate
    raise UserError(
        f"no SavedModel at {path!r}, nor a version of one in it: see export_saved_model"
    )
