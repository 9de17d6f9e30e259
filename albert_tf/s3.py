"""TensorFlow's plugin for `s3://`: how it is loaded, and what it says that is not so."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import warnings

import tensorflow as tf

from albert_tf.errors import UserError


def load_plugin(*paths: str) -> None:
    """Imports the plugin by which TensorFlow reads and writes `s3://`, if a path needs it.

    A process that has imported it ends without the exit handlers of C and C++ libraries.

    Raises:
      UserError: if there is no such plugin.
    """
    if plugin_is_loaded() or not any(path.startswith("s3://") for path in paths):
        return
    with contextlib.suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a plugin that is built for another TensorFlow
        import tensorflow_io  # noqa: F401
    if not plugin_is_loaded():
        advice = "pip install 'albert_tf[s3]' (in a checkout: pip install -e '.[s3]')"
        if sys.version_info >= (3, 12):
            advice = "there is none for TensorFlow 2.21; use Python 3.9 to 3.11"
        raise UserError(f"s3:// needs the plugin tensorflow-io: {advice}")
    # At exit the plugin uses what it has destroyed before, and aborts with code 134. This handler
    # runs before its own ones: https://github.com/tensorflow/io/issues/2039
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # of glibc; it passes the exit code
        libc.on_exit(libc._exit, None)


def plugin_is_loaded() -> bool:
    """Tells whether this process can use `s3://`."""
    return "s3" in tf.io.gfile.get_registered_schemes()


def check_answers(path: str) -> None:
    """Raises an OSError if a path is on `s3://` and its bucket does not answer.

    The plugin calls empty or missing what it could not ask for. A run would start anew beside its
    checkpoints.
    """
    if not path.startswith("s3://"):
        return
    bucket = f"s3://{path.split('/')[2]}/"
    if not tf.io.gfile.isdir(bucket):
        raise OSError(f"{path}: {bucket} does not answer, or there is no such bucket")
