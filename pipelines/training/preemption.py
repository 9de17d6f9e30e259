"""Stops a run after the current step on Ctrl-C or on SIGTERM, which announces a preemption."""

import os
import signal
import threading

import tensorflow as tf


class StopRequest:
    """Context manager that sets `flag`, a bool variable on this host, on SIGTERM and SIGINT.

    The training loop then finishes the current step. A second signal exits immediately. `signal` is
    the number of the received signal, or None.
    """

    def __init__(self):
        with tf.device("/cpu:0"):
            self.flag = tf.Variable(False, trainable=False)
        self.signal: int | None = None

    def __enter__(self) -> "StopRequest":
        # Python runs signal handlers only in the main thread, which may be waiting for a loop of
        # many steps. Python's C handler writes to this pipe immediately, which wakes up `_watch`.
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)  # required by set_wakeup_fd
        self._wakeup_before = signal.set_wakeup_fd(self._write)
        self._handlers_before = {
            number: signal.signal(number, self._handle)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def _watch(self) -> None:
        while numbers := os.read(self._read, 1):  # b"" once the other end is closed
            if numbers[0] not in self._handlers_before:
                continue
            if self.signal is not None:
                os._exit(128 + numbers[0])
            self.signal = numbers[0]
            self.flag.assign(True)

    def _handle(self, number, _) -> None:
        """Does nothing, but replaces Python's default handler. `_watch` handles the signal."""
