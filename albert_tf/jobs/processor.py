"""Reports whether float32 or bfloat16 is faster, based on this CPU's instruction set.

Speed is not measured at startup: measurements vary with the load of the machine, from 1.2 times
slower to 23 times faster within half an hour.
"""

_CPU_INFO = "/proc/cpuinfo"


def describe(precision: str, flag: str) -> str:
    """Describes `precision`, "float32" or "bfloat16" (selected by `flag`), and if the other is
    faster.
    """
    try:
        with open(_CPU_INFO, encoding="utf-8") as file:
            found = next(line.split() for line in file if line.startswith("flags"))
    except (OSError, StopIteration):
        return precision  # the CPU flags are unknown
    # Without any of these, bfloat16 is slower than float32.
    if instructions := ", ".join(name for name in ("amx_bf16", "avx512_bf16") if name in found):
        advice = f": {flag} is faster" if precision == "float32" else ""
        return f"{precision}; this processor has bfloat16 instructions ({instructions}){advice}"
    advice = ": float32 is faster" if precision == "bfloat16" else ""
    return f"{precision}; this processor has no bfloat16 instructions{advice}"
