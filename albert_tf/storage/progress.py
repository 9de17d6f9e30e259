"""Reports progress, rate and remaining time: as a bar on a terminal, else as lines in a log."""

import sys
import time

import tqdm


class Progress:
    """Reports progress of `total` units of work, the first `done` of them by an earlier run."""

    def __init__(self, label: str, total: int, done: int = 0, unit: str = "step"):
        self._label, self._total, self._unit = label, total, unit
        self._first, self._done = done, done
        self._started = self._last_line = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm.tqdm(
                desc=label, total=total, initial=done, unit=unit, dynamic_ncols=True
            )

    def update(self, done: int, detail: str = "") -> None:
        """Sets the total number of finished units to `done`; `detail` is appended to the report."""
        self._done = done
        if self._bar is not None:
            self._bar.set_postfix_str(detail, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        now = time.monotonic()
        if done < self._total and now - self._last_line < 10:  # seconds between lines of a log
            return
        self._last_line = now
        rate = (done - self._first) / max(now - self._started, 1e-9)
        left = duration((self._total - done) / rate) if rate else "?"
        share = 100.0 * done / max(self._total, 1)
        print(
            f"{self._label}: {done:,}/{self._total:,} {self._unit}s ({share:.0f} %), "
            f"{rate:,.1f} {self._unit}s/s, {left} left{'; ' + detail if detail else ''}",
            file=sys.stderr,
            flush=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.close()


def duration(seconds: float) -> str:
    """Formats a duration in seconds as `2h05m`, `3m20s` or `8s`."""
    seconds = round(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 60}m{seconds % 60:02d}s" if seconds >= 60 else f"{seconds}s"
