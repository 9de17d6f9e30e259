"""Reports whether float32 or bfloat16 is faster, based on this CPU's instruction set.

Speed is not measured at startup, because measurements vary with the load of the machine. Within
half an hour, three programs on one machine measured bfloat16 as 1.2 times slower, 1.2 times faster
and 23 times faster than float32.
"""

# CPU flags for bfloat16 multiplication. Without any of them, bfloat16 is slower than float32.
_BFLOAT16 = ("amx_bf16", "avx512_bf16")
_CPU_INFO = "/proc/cpuinfo"


def describe(precision: str, flag: str) -> str:
    """Describes `precision`, "float32" or "bfloat16", and whether the other one is faster here.

    `flag` is the command-line flag that selects bfloat16.
    """
    try:
        with open(_CPU_INFO, encoding="utf-8") as file:
            found = next(line.split() for line in file if line.startswith("flags"))
    except (OSError, StopIteration):
        return precision  # the CPU flags are unknown
    if instructions := ", ".join(name for name in _BFLOAT16 if name in found):
        advice = f": {flag} is faster" if precision == "float32" else ""
        return f"{precision}; this processor has bfloat16 instructions ({instructions}){advice}"
    advice = ": float32 is faster" if precision == "bfloat16" else ""
    return f"{precision}; this processor has no bfloat16 instructions{advice}"
