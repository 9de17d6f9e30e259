"""What a process has held in memory at most; imports nothing that would count in it."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path


def peak_megabytes() -> int:
    """Returns the most that this process has had in memory so far."""
    if sys.platform == "linux":
        # What getrusage says begins with the peak of the process that started this one.
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) // 1_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_000_000
