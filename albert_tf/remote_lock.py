"""A lock on a directory in an object store: an object that names the process writing there.

It refuses a job that starts while another one holds the directory and renews its lock. Of two that
start before either has written its lock, one may run until its next renewal. After
_PATIENCE_SECONDS without a renewal, another job may take over; the previous holder ends at its next
renewal, and if that overwrites the other's lock, both end.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError

LOCK_FILE = ".lock.json"
_RENEWAL_SECONDS = 30.0
_PATIENCE_SECONDS = 100.0  # of a holder on another machine that does not renew its lock
_SETTLING_SECONDS = 1.0  # between writing the lock and looking who wrote last
_BYTES = 400  # always, so that a reader needs no new size


@contextlib.contextmanager
def hold(directory: str) -> Iterator[None]:
    """Holds a remote directory for the time of the block.

    The lock of a process of this machine that has ended is taken over at once. That of another
    machine is taken over when it was not renewed for _PATIENCE_SECONDS, for which this waits.

    Raises:
      UserError: if another job holds the directory.
    """
    path, began = os.path.join(directory, LOCK_FILE), time.monotonic()
    if seen := _read(path):
        if holder := _living(path, seen):
            raise UserError(
                f"another job is writing to {directory!r}: process {holder['process']} on "
                f"{holder['host']}, last heard at {holder['time']} UTC; wait for its end, or end it"
            )
        began = time.monotonic()
    run_id = secrets.token_hex(8)
    _write(path, run_id)
    written = time.monotonic()
    # Whoever has read and written a lock meanwhile may have been overwritten unseen. It ends at its
    # next renewal.
    is_slow = written - began > _SETTLING_SECONDS
    time.sleep(_SETTLING_SECONDS + (_RENEWAL_SECONDS if is_slow else 0))
    _check(path, run_id)
    stop = threading.Event()

    def renew() -> None:
        nonlocal written
        while not stop.wait(_RENEWAL_SECONDS):
            try:
                _check(path, run_id)
                checked = time.monotonic()
                _write(path, run_id)
                now = time.monotonic()
                if now - written > _PATIENCE_SECONDS and now - checked > _SETTLING_SECONDS:
                    raise UserError(
                        f"the lock of {directory!r} was not renewed for {now - written:.0f} s, and "
                        "another job may have taken over: this job ends, so that not two write "
                        "there; run the same command again"
                    )
                written = now
            except UserError as error:
                print(f"\nerror: {error}", file=sys.stderr, flush=True)
                os._exit(2)
            except (OSError, tf.errors.OpError):
                pass  # what the job itself writes will tell

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        # The lock of a job that took over meanwhile is not ours to remove.
        with contextlib.suppress(OSError, tf.errors.OpError, UserError):
            _check(path, run_id)
            files.remove(path)


def _write(path: str, run_id: str) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    holder = {
        "run": run_id,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "started": _start_of(os.getpid()),
        "time": now,
    }
    files.write_atomically(path, json.dumps(holder).ljust(_BYTES))


def _read(path: str) -> dict | None:
    def found() -> dict | None:
        with contextlib.suppress(tf.errors.NotFoundError):
            return files.read_json(path)
        return None

    holder = found() or files.ask_again(found, path)
    if holder and not {"run", "host", "process", "started", "time"} <= holder.keys():
        raise UserError(f"{path}: no lock of a job; remove it if no job writes there")
    return holder


def _check(path: str, run_id: str) -> None:
    holder = _read(path)
    if holder is None or holder["run"] != run_id:
        who = f"process {holder['process']} on {holder['host']}" if holder else "somebody"
        raise UserError(
            f"{who} took over {os.path.dirname(path)!r}: this job ends, so that not two write there"
        )


def _living(path: str, holder: dict) -> dict | None:
    """Returns the lock of a holder that still runs, None if it has ended.

    Waits for a sign of one on another machine.
    """
    if holder["started"] and holder["host"] == socket.gethostname():
        return holder if _start_of(holder["process"]) == holder["started"] else None
    print(
        f"{os.path.dirname(path)!r} was locked by process {holder['process']} on "
        f"{holder['host']} at {holder['time']} UTC; waiting {_PATIENCE_SECONDS:.0f} s for a sign "
        "that it still runs",
        file=sys.stderr,
        flush=True,
    )
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(5.0, _PATIENCE_SECONDS))
        now = _read(path)
        if now != holder:
            return now
    return None


def _start_of(process: int) -> str:
    """Returns when a process of this machine was started; "" if it has ended or none can say."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            state, *numbers = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else numbers[18]
