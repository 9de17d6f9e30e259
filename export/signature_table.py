"""Prints the table of signatures of export/README.md: python -m export.signature_table."""

from __future__ import annotations

from albert_tf.jobs import program
from .kinds import MODULES
from .signatures import Field


def markdown_table() -> str:
    """Returns the signatures as the Markdown table of export/README.md.

    Kinds that share a signature share its row; "all" means every kind.
    """
    kinds_of_row: dict[str, list[str]] = {}
    for kind, module in MODULES.items():
        for name, signature in module.table.items():
            row = f"`{name}` | {_table_cell(signature.inputs)} | {_table_cell(signature.outputs)}"
            kinds_of_row.setdefault(row, []).append(kind)
    lines = ["| kind | signature | inputs | outputs |", "| --- | --- | --- | --- |"]
    for row, kinds in kinds_of_row.items():
        lines.append(f"| {'all' if len(kinds) == len(MODULES) else ', '.join(kinds)} | {row} |")
    return "\n".join(lines)


def _table_cell(fields: dict[str, Field]) -> str:
    return "<br>".join(f"`{name}` {form}" for name, form in fields.items()) or "none"


if __name__ == "__main__":
    program.run(lambda _: program.print_help(markdown_table()))
