"""How every program starts and ends: one clear line and exit code 2 for bad input."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Callable

from absl import app

_PROJECT = Path(__file__).resolve().parent.parent
_OUR_PACKAGES = tuple(str(_PROJECT / name) for name in ("albert_tf", "pipelines", "export"))


def run(main: Callable[[list[str]], None]) -> None:
    """Runs `main` under absl and turns the user's errors into one line on stderr.

    A ValueError raised by our own code is the user's to mend: one line, exit code 2. So is an
    OSError of any origin (no such file, disk full, no permission), also in TensorFlow's clothes.
    Every other exception is a fault of ours and keeps its traceback. Ctrl-C exits with 130.
    """

    def guarded(argv: list[str]) -> None:
        if len(argv) > 1:
            _fail(f"unknown argument {argv[1]!r}: every option is a flag, see --help")
        try:
            main(argv)
        except KeyboardInterrupt:
            print("\ninterrupted; the same command goes on where it was", file=sys.stderr)
            sys.exit(130)
        except Exception as error:
            if not is_user_error(error):
                raise
            _fail(str(error))

    app.run(guarded)


def is_user_error(error: Exception) -> bool:
    """Tells whether the message of `error` is meant for the user and says all there is to say."""
    if isinstance(error, OSError):
        return True
    if isinstance(error, ValueError):
        innermost = traceback.extract_tb(error.__traceback__)[-1].filename
        return innermost.startswith(_OUR_PACKAGES)
    # TensorFlow's errors of the file system are not OSErrors. Imported late: an error exists only
    # where TensorFlow was imported already.
    file_errors = ("NotFoundError", "PermissionDeniedError", "ResourceExhaustedError")
    return type(error).__name__ in file_errors and getattr(error, "op", None) is None


def _fail(message: str) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
