"""Keeps what TensorFlow logs at its start off the terminal: `hide()`, for programs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator


def hide() -> None:
    """Hides messages of TensorFlow's start, unless the user has set TF_CPP_MIN_LOG_LEVEL.

    They would be the first thing a user meets; real failures raise. TensorFlow 2.21 logs on stderr
    while it is imported (oneDNN is on, no CUDA driver, absl::InitializeLog) whatever the level is,
    so stderr is held back during its import.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") != "3" or sys.stderr is None:
        return
    if sys.version_info >= (3, 12) and "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _TensorFlowFinder())


class _TensorFlowFinder:
    """Finds the package `tensorflow` as Python does, and imports it with stderr held back."""

    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_quietly(module):
                with _stderr_held_back():
                    execute(module)

            spec.loader.exec_module = execute_quietly
        return spec


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
        try:
            yield
            guard.stdin.write(b"imported\n")
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            guard.communicate()
