"""The table of signatures in export/README.md is the one that export/signature_table.py prints."""

from __future__ import annotations

import re
from pathlib import Path

from export import signature_table

README = Path(signature_table.__file__).parent / "README.md"


def test_the_table_of_signatures_is_up_to_date():
    text = README.read_text(encoding="utf-8")
    section = re.search(r"^## Signatures\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)[1]
    found = [line for line in section.splitlines() if line.startswith("|")]
    assert found == signature_table.markdown_table().splitlines(), (
        "replace the table in export/README.md by the output of `python -m export.signature_table`"
    )
