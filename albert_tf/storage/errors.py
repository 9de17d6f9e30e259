"""UserError, which a program prints as one line; values in messages; errors of object stores."""

from __future__ import annotations

import re

_LONGEST = 100  # characters of a value in a message
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
    """Returns the repr of a value for a message; a long repr is truncated."""
    text = repr(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text):,} characters)"


def store_error(message: str) -> str | None:
    """Extracts an object store's own message from an error message; None if there is none."""
    found = _STORE_MESSAGE.search(message)
    if not found:
        return None
    text = " ".join(found[0].split())
    if text.startswith("File system scheme"):
        remedy = "expected a local path or gs://; mount another store, or copy from it"
        return f"{text.rstrip(')')}): {remedy}"
    return f"{text} (the store was tried again as often as it allows; run the same command again)"
