"""The error that programs print as one line, values in messages, and errors of object stores."""

from __future__ import annotations

import re

_LONGEST = 100  # characters of a value in a message
# TensorFlow's messages about an object store, up to the URL of the object.
_STORE_MESSAGE = re.compile(
    r"(?:All \d+ retry attempts failed|Error executing an HTTP request|File system scheme '|"
    r"GCS path doesn't contain)[^\[]*?\b(?!grpc|https?:)\w+://[^\s\[]*"
)


class UserError(ValueError):
    """Wrong input, flags or arguments. The message names the fault, its place and what to do.

    Programs print the message and exit with code 2: see program.run. A plain ValueError is a fault
    of the code and keeps its traceback.
    """


def shown(value: object) -> str:
    """Returns the repr of a value for a message; a long repr is truncated."""
    text = repr(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text):,} characters)"


def store_error(message: str) -> str | None:
    """Returns the part of an error message that comes from an object store, or None."""
    found = _STORE_MESSAGE.search(message)
    if not found:
        return None
    text = " ".join(found[0].split())
    if text.startswith("File system scheme"):
        remedy = "expected a local path or gs://; mount another store, or copy from it"
        return f"{text.rstrip(')')}): {remedy}"
    return f"{text} (retries did not help; run the same command again)"
