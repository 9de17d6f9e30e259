"""The error that a program prints as one line, how it shows a value, and a store's errors."""

from __future__ import annotations

import re

_LONGEST = 100  # characters of a value
_STORE_MESSAGE = re.compile(
    r"(?:All \d+ retry attempts failed|Error executing an HTTP request|File system scheme '|"
    r"GCS path doesn't contain)[^\[]*?\b(?!grpc|https?:)\w+://[^\s\[]*"
)


class UserError(ValueError):
    """Input, flags or arguments are wrong; the message names what, where and what to do.

    Programs print the message and exit with code 2: see program.run. A plain ValueError is a fault
    of the code and keeps its traceback.
    """


def shown(value: object) -> str:
    """Returns a value of a file as a message shows it: its repr, of a long one the beginning."""
    text = repr(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text):,} characters)"


def store_error(message: str) -> str | None:
    """Returns an object store's own error message from `message`, or None if it has none."""
    found = _STORE_MESSAGE.search(message)
    if not found:
        return None
    text = " ".join(found[0].split())
    if text.startswith("File system scheme"):
        remedy = "expected a local path or gs://; mount another store, or copy from it"
        return f"{text.rstrip(')')}): {remedy}"
    return f"{text} (the store was tried again as often as it allows; run the same command again)"
