"""Finds the versions of an export, which are directories with integer names as in TF Serving.

Local versions are always complete, remote ones if they contain files.PROVENANCE_FILE, which is
uploaded last.
"""

import glob
import os

import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.storage.unreadable import refuse_unreadable


def existing(directory: str) -> list[int]:
    """Returns the complete versions in a directory in ascending order; [] if it does not exist."""
    if files.is_remote(directory):
        marks = tf.io.gfile.glob(os.path.join(glob.escape(directory), "*", files.PROVENANCE_FILE))
        names = [mark.split("/")[-3] for mark in marks]
    else:
        names = files.names_in(directory)
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def newest_saved_model(path: str) -> str | None:
    """Returns `path` if it is a SavedModel, else the newest version in it, or None."""
    candidates = [path, *(os.path.join(path, str(v)) for v in reversed(existing(path)))]
    is_there = (tf.io.gfile.exists(os.path.join(found, "saved_model.pb")) for found in candidates)
    return next((found for found, there in zip(candidates, is_there) if there), None)


def refuse_parent(path: str) -> None:
    """Raises a UserError if `path` is a directory of several exports with their versions."""
    for name in sorted(files.names_in(path)):
        export = os.path.join(path, name)
        if newest_saved_model(export):
            raise UserError(f"{path!r} is a directory of exports: name one, such as {export!r}")


def load_saved_model(path: str):
    """Loads a SavedModel. Raises a UserError if its files are damaged or missing."""
    files.check_directory_name(path)
    with refuse_unreadable(f"{path!r} is damaged: copy or export it again", OSError):
        return tf.saved_model.load(path)
