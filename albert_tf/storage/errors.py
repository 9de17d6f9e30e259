"""Error class for invalid input, and helpers for error messages."""

import contextlib
import errno
import re
import shutil

_LONGEST = 100  # maximum number of characters shown in a message
# Matches TensorFlow's error messages for object stores, up to the URL of the object.
_STORE_MESSAGE = re.compile(
    r"(?:All \d+ retry attempts failed|Error executing an HTTP request|File system scheme '|"
    r"GCS path doesn't contain)[^\[]*?\b(?!grpc|https?:)\w+://[^\s\[]*"
)


class UserError(ValueError):
    """Invalid input, flags or arguments. The message states what is wrong, where, and the remedy.

    Programs print the message and exit with code 2, see program.run. Any other ValueError is a bug
    and prints a traceback.
    """


def shown(value: object) -> str:
    """Returns the repr of a value for use in a message, truncated if it is long."""
    text = repr(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text):,} characters)"


def is_disk_full(error: Exception) -> bool:
    """Returns whether a file could not be written, because its disk has no space left."""
    return getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)


def disk_full(directory: str) -> str:
    """Returns the message about a full disk."""
    left = ""
    with contextlib.suppress(OSError):
        left = f" ({shutil.disk_usage(directory).free / 1e6:,.0f} MB are free)"
    return f"the disk is full: free space at {directory}{left}, then run the same command again"


def store_error(message: str) -> str | None:
    """Extracts an object store's message from an error message; returns None if there is none."""
    found = _STORE_MESSAGE.search(message)
    if not found:
        return None
    text = " ".join(found[0].split())
    if text.startswith("File system scheme"):
        remedy = "expected a local path or gs://; mount another store, or copy from it"
        return f"{text.rstrip(')')}): {remedy}"
    return f"{text} (retries did not help; run the same command again)"
