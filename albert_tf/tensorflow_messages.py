"""Keeps what TensorFlow logs at its start off the terminal: `hide()`, for programs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from albert_tf import import_hook


def hide() -> None:
    """Hides messages of TensorFlow's start, unless the user has set TF_CPP_MIN_LOG_LEVEL.

    They would be the first thing a user meets; real failures raise. TensorFlow 2.21 logs on stderr
    while it is imported (oneDNN is on, no CUDA driver, absl::InitializeLog) whatever the level is,
    so stderr is held back during its import.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") != "3" or sys.stderr is None:
        return
    if sys.version_info >= (3, 12) and "tensorflow" not in sys.modules:
        import_hook.add("tensorflow", _execute_quietly)


def _execute_quietly(execute, module) -> None:
    with _stderr_held_back():
        execute(module)


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Writes what the block writes to stderr only if the block fails or the process is aborted."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.NamedTemporaryFile() as held:
        # A process of its own, as an abort (a CPU without AVX) lets this one do nothing more.
        guard = subprocess.Popen(
            ["sh", "-c", 'read -r imported || cat "$0" >&2', held.name],
            stdin=subprocess.PIPE,
        )
        os.dup2(held.fileno(), 2)
        outcome = b""
        try:
            yield
            outcome = b"imported\n"
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            guard.communicate(outcome)
