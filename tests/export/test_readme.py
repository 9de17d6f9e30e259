"""The table of signatures in export/README.md is the one that export/signatures.py generates."""

from __future__ import annotations

import re
from pathlib import Path

from export import signatures

README = Path(signatures.__file__).parent / "README.md"


def test_the_table_of_signatures_is_up_to_date():
    text = README.read_text(encoding="utf-8")
    section = re.search(r"^## Signatures\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)[1]
    found = [line for line in section.splitlines() if line.startswith("|")]
    assert found == signatures.markdown_table().splitlines(), (
        "replace the table in export/README.md by the output of `python -m export.signatures`"
    )
