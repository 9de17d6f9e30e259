"""README's table of signatures is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from export.signatures import KINDS, Signature

README = Path(__file__).resolve().parents[2] / "README.md"


def row(kind: str, name: str, signature: Signature) -> str:
    inputs, outputs = (", ".join(fields) for fields in (signature.inputs, signature.outputs))
    return f"| {kind} | `{name}` | {inputs} | {outputs} |"


def table() -> list[str]:
    """Each kind's own signatures, then what is the same in several."""
    kinds = {}
    for kind, signatures in KINDS.items():
        for name, signature in signatures.items():
            kinds.setdefault((name, row("", name, signature)), (signature, []))[1].append(kind)
    rows = []
    for (name, _), (signature, names) in kinds.items():
        rows.append(row("all" if len(names) == len(KINDS) else ", ".join(names), name, signature))
    return rows


def test_the_readme_says_what_is_served():
    found = re.findall(r"^\| .* \| `\w+` \| .* \|$", README.read_text(encoding="utf-8"), re.M)
    assert sorted(found) == sorted(table())


if __name__ == "__main__":
    print(*table(), sep="\n")
