"""What processes have held in memory at most; imports nothing that would count in it.

`python -m tests.benchmarks.memory COMMAND ...` runs a command and prints a JSON line.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

_MAXRSS_BYTES = 1024 if sys.platform == "linux" else 1


def peak_megabytes() -> int:
    """Returns the most that this process has had in memory so far."""
    if sys.platform == "linux":
        # What getrusage says begins with the peak of the process that started this one.
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) // 1_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_000_000


def _weigh(command: list[str]) -> int:
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        # Of the largest of its processes.
        "peak_megabytes": used.ru_maxrss * _MAXRSS_BYTES / 1e6,
    }
    if done.returncode:
        sys.stderr.buffer.write(done.stderr)
    print(json.dumps(figures))
    return done.returncode


if __name__ == "__main__":
    sys.exit(_weigh(sys.argv[1:]))
