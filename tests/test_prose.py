"""Docstrings and pages avoid words that make a reader go back; docstrings have short sentences."""

import ast
import re

from tests.jobs import PROJECT
from tests.test_import_rules import FILES, nodes

PAGES = ["README.md", "BUILD_NOTES.md", "pipelines/README.md", "pipelines/tasks/README.md",
         "pipelines/tasks/FROM_CSV.md", "export/README.md", "export/serving/README.md"]  # fmt: skip
# The pronouns hide a noun ("the batch size of the run"), and the verbs are a person's: a program
# returns whether, defines, prints, accepts, contains, resumes.
HARD = r"(?i)\b(?:those of|that of|of which|tells|says|asks|knows|lies|stands|goes on)\b"
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
MAX_WORDS = 30


def hard_words(text):
    return re.findall(HARD, " ".join(CODE.sub("x", text).split()))


def long_sentences(text):
    """A blank line, a row of a table and a line with less indent end a sentence, too."""
    parts, indent = [""], 0
    for line in CODE.sub("x", text).splitlines():
        margin, is_row = len(line) - len(line.lstrip()), re.search(r"\S {2,}\S", line)
        parts += [""] if not line or is_row or margin < indent else []
        parts[-1] += "" if is_row else f"{line} "
        indent = margin
    found = [s for part in parts for s in re.split(r"(?<=[.:;?!])\s", part)]
    return [s for s in found if len(s.split()) > MAX_WORDS]


def test_pages():
    assert not {p: w for p in PAGES if (w := hard_words((PROJECT / p).read_text(encoding="utf-8")))}


def test_docstrings():
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in FILES:
        found = (node for node in nodes(path) if isinstance(node, kinds))
        for text in (ast.get_docstring(node) or "" for node in found):
            assert not hard_words(text) + long_sentences(text), path.relative_to(PROJECT)
