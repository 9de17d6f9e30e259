"""Stops a run after the current step on SIGTERM (sent before a preemption) and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading

import tensorflow as tf


class StopRequest:
    """A context in which SIGTERM and SIGINT set a flag that the loop on the device reads.

    The first signal lets the current step finish; a second signal ends the program at once.

    Attributes:
      flag: bool variable of this host.
      signal: the signal's number, or None.
    """

    def __init__(self):
        with tf.device("/cpu:0"):
            self.flag = tf.Variable(False, trainable=False)
        self.signal: int | None = None

    def __enter__(self) -> StopRequest:
        # Python runs signal handlers only in its main thread, which may wait for a loop of many
        # steps. Python's C handler writes to this pipe at once, which wakes the watching thread.
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)  # as set_wakeup_fd requires
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
        """Does nothing but replace Python's default handler; the watching thread does the work."""
