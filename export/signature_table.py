"""Prints the table of signatures in export/README.md: python -m export.signature_table."""

from albert_tf.jobs import program
from .kinds import MODULES
from .signatures import Field


def markdown_table() -> str:
    """Formats all signatures as the Markdown table in export/README.md.

    Kinds with the same signature are in the same row. "all" means every kind.
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
