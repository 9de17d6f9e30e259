"""Locks a directory in an object store with a file that identifies the writing process.

If two jobs start at the same time, within the duration of one request, both may run.
"""

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator

import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError

LOCK_FILE = ".lock.json"


@contextlib.contextmanager
def hold(directory: str, take_over: bool = False) -> Iterator[None]:
    """Locks a remote directory for the duration of the block, or raises a UserError.

    `take_over` replaces a lock of another machine; if the job there still runs, both write. A lock
    of this machine is replaced only if its process has ended.
    """
    path = os.path.join(directory, LOCK_FILE)
    holder = files.read_json_if_exists(path)
    is_here = holder.get("started") and holder.get("host") == socket.gethostname()
    lives_here = is_here and _start_of(holder["process"]) == holder["started"]
    if lives_here or (holder and not is_here and not take_over):
        advice = "" if lives_here else ", or if it has ended, add --take_over"
        raise UserError(
            f"another job is writing to {directory!r}: process {holder.get('process')} on "
            f"{holder.get('host')}, begun at {holder.get('time')} UTC; wait for its end{advice}"
        )
    own = {
        "run": secrets.token_hex(8),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "started": _start_of(os.getpid()),
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
    }
    files.write_atomically(path, json.dumps(own))
    try:
        yield
    finally:
        # Do not delete the lock of a job that has taken over.
        with contextlib.suppress(OSError, tf.errors.OpError, UserError):
            if files.read_json_if_exists(path) == own:
                files.remove(path)


def _start_of(process: int) -> str:
    """Returns the start time of a local process; "" if the process has ended or is unknown."""
    # In /proc/PID/stat, states Z and X are zombie and dead. Field 22 is the start in clock ticks.
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            state, *numbers = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else numbers[18]
