"""Prints the size of the source: files, lines and functions of each package.

python -m tests.count_source
"""

from __future__ import annotations

import ast
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("albert_tf", "pipelines", "export", "tests")
MAX_FUNCTION_LINES, MAX_PARAMETERS = 60, 8


def functions(path: Path):
    """Yields name, lines (without the docstring) and parameters (no self, cls) of each function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            names += filter(None, [arguments.vararg, arguments.kwarg])
            count = sum(argument.arg not in ("self", "cls") for argument in names)
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            yield node.name, lines, count


def main() -> None:
    """Counts lines with blank lines, comments and docstrings."""
    for package in PACKAGES:
        paths = sorted((PROJECT / package).rglob("*.py"))
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
        number = sum(1 for path in paths for _ in functions(path))
        print(f"{package}: {len(paths)} files, {lines:,} lines, {number:,} functions")


if __name__ == "__main__":
    main()
