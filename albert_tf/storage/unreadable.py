"""Converts TensorFlow's errors about unreadable files to errors of one line."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf
from google.protobuf.message import DecodeError

from albert_tf.storage.errors import UserError, store_error

# Errors that TensorFlow raises if a checkpoint is truncated, modified or from another model.
UNREADABLE = (
    *(tf.errors.OpError, DecodeError),
    *(AssertionError, ValueError, LookupError, RuntimeError),
)


def reraise_if_intact(error: Exception) -> None:
    """Re-raises an error of the object store or of too little memory: the file may be intact."""
    others = (tf.errors.PermissionDeniedError, tf.errors.ResourceExhaustedError)
    if isinstance(error, others) or store_error(str(error)):
        raise error


@contextlib.contextmanager
def refuse_unreadable(message: str, *further: type[Exception]) -> Iterator[None]:
    """Converts errors in UNREADABLE and `further` to a UserError with `message` and the reason.

    Errors of the object store and of too little memory are re-raised unchanged.
    """
    try:
        yield
    except (*UNREADABLE, *further) as error:
        reraise_if_intact(error)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if missing := re.findall(r"<tf.Variable '([^']+):0'", str(error)):
            reason = f"it lacks {missing[0]}" + f" and {len(missing) - 1} more" * (len(missing) > 1)
        raise UserError(f"{message}: {reason}") from error
