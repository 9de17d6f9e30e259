"""Writes a demo corpus of English prose from the documentation of installed Python packages.

The corpus consists of Python's help topics and the docstrings of the standard library and of all
installed packages, without code, tables and markup. Each topic and each docstring is one document.
The file has one sentence per line and a blank line between documents. Documents start with a
summary, so a model can learn their sentence order. The program downloads nothing and imports none
of the packages. Use the corpus for demonstrations if you have no text of your own.

Example:
  python -m pipelines.data.demo_corpus --output_file=demo/corpus.txt
"""

from __future__ import annotations

import ast
import contextlib
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import sentencex
import tensorflow as tf
from absl import flags

from albert_tf.jobs import program
from albert_tf.storage import files
from albert_tf.storage.progress import Progress

FLAGS = flags.FLAGS

_NOT_READ = re.compile(
    r"/(tests?|site-packages|_vendor|idlelib|lib2to3)/|/test_[^/]*$|_(test|pb2)\.py$"
)
_MAX_REPEATS = 3  # maximum number of copies of a sentence in the corpus
# Underlined headings of NumPy-style sections that contain tables or code.
_TABLES = re.compile(
    r"(other )?(parameters|returns|yields|raises|warns|attributes|methods|see also|references|"
    r"examples?|functions|classes)\b",
    re.IGNORECASE,
)
_UNDERLINE = re.compile(r"[-=~^*#\"]{3,}$")
# Lines that are not prose: directives, fields, tables, comments, decorators, one-word headings and
# underlines.
_NO_PROSE = re.compile(rf"\.\.|[:|#@]|\+-|[^ ]*:$|{_UNDERLINE.pattern}")
# An indented block after a colon is code or a table, except under these headings.
_PROSE_HEADING = re.compile(r"(\.\. )?(notes?|warning|caution|important|tip|caveats?)\b", re.I)
_BULLET = re.compile(r"^([*+•-]|\(?(\d{1,2}|[a-z])[.)])\s+")
_MARKUP = (
    (r"\[([^\]]+)\]\([^)]*\)", r"\1"),  # [text](address)
    (r":[\w:+.-]+:`~?([^`<]+?)(\s*<[^`>]*>)?`", r"\1"),  # :class:`text <target>`
    (r"`([^`<]+?)\s*<[^`>]*>`_*", r"\1"),  # `text <address>`_
    (r"`+([^`]*)`+_*", r"\1"),  # `text`
    (r"(?<!\w)(\*{1,2})(\w[^*]*?)\1(?!\w)", r"\2"),  # *text*
    (r"(?<=\w\w)\.(?=\w)", "\ue000"),  # the dots of tf.keras.Model do not end a sentence
)
_WORD = re.compile(r"[\"'(]*[A-Za-z]+(?:['’/-][A-Za-z]+)*[\"')]*[.,;:!?]*[\"')]*")


def define_flags() -> None:
    """Defines the flags. Not done on import, because several programs use the same flag names."""
    flags.DEFINE_string("output_file", None, "Path of the corpus.", required=True)


def main(_) -> None:
    """Writes the corpus to --output_file."""
    from pydoc_data.topics import topics

    warnings.simplefilter("ignore")  # about invalid escape sequences in the packages
    paths = sysconfig.get_paths()
    roots = dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib"))
    write_demo_corpus(FLAGS.output_file, list(roots), topics)


def write_demo_corpus(output_file: str, roots: list[Path], topics: dict[str, str]) -> None:
    """Writes the prose of help topics and package docstrings, unless `output_file` exists."""
    if tf.io.gfile.exists(output_file):
        print(f"{output_file} is there already: nothing to do")
        return
    sources = [path for root in roots for path in source_files(root)]
    print(f"demo corpus: docstrings of {len(sources):,} files of this installation", flush=True)
    texts = [text for _, text in sorted(topics.items())]
    with Progress("reading", len(sources), unit="file") as progress:
        for done, path in enumerate(sources, start=1):
            source = path.read_bytes()
            if b'"""' in source or b"'''" in source:
                with contextlib.suppress(SyntaxError, ValueError, RecursionError):
                    texts.extend(docstrings(ast.parse(source)))
            progress.update(done)
    documents, repeats = [], Counter()
    for text in dict.fromkeys(texts):
        sentences = []
        for sentence in prose_sentences(text):
            repeats[sentence] += 1
            if repeats[sentence] <= _MAX_REPEATS:
                sentences.append(f"{sentence}\n")
        # A document of one sentence has no order to learn.
        if len(sentences) > 1:
            documents.append("".join(sentences))
    corpus = "\n".join(documents)
    files.write_atomically(output_file, corpus)
    print(
        f"{output_file}: {len(corpus.encode()) / 1e6:.1f} MB, {len(documents):,} documents, "
        f"{sum(document.count(chr(10)) for document in documents):,} sentences"
    )


def source_files(root: Path) -> list[Path]:
    """Returns a sorted list of the Python files below `root`, without tests and generated code."""
    names = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    return [root / name for name in names if not _NOT_READ.search(f"/{name.as_posix()}")]


def docstrings(node: ast.AST) -> Iterator[str]:
    """Yields all docstrings in a module or another statement, in source order."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, documented) and (text := ast.get_docstring(node)):
        yield text
    for block in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, block, ()):
            yield from docstrings(child)


def prose_sentences(text: str) -> list[str]:
    """Splits the prose of a docstring into sentences."""
    joined = "\n\n".join(paragraphs(text))
    split = sentencex.segment("en", joined) if joined else ()
    sentences = (" ".join(sentence.replace("\ue000", ".").split()) for sentence in split)
    return [sentence for sentence in sentences if is_prose(sentence)]


def paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring, without code, tables and markup."""
    lines = text.splitlines()
    found: list[list[str]] = [[]]
    skip_below = None  # skip lines that are indented deeper than this
    in_fence = in_doctest = in_table = False
    for line, next_line in zip(lines, [*lines[1:], ""]):
        content = line.strip()
        indent = len(line) - len(line.lstrip())
        if content.startswith(("```", "~~~")):
            in_fence = not in_fence
            content = ""
        if content and _UNDERLINE.match(next_line.strip()):
            in_table = bool(_TABLES.match(content))
            content = ""  # drop the heading
        in_doctest = bool(content) and (in_doctest or content.startswith(">>>"))
        if content and skip_below is not None and indent <= skip_below:
            skip_below = None
        is_left_out = in_fence or in_doctest or in_table or skip_below is not None
        if not content or is_left_out or _NO_PROSE.match(content):
            found.append([])
        elif _BULLET.match(content):
            found.append([_BULLET.sub("", content)])
        else:
            found[-1].append(content)
        is_heading = content.endswith(":")
        if is_heading and skip_below is None and not _PROSE_HEADING.match(content):
            skip_below = indent
    for paragraph in found:
        joined = " ".join(paragraph)
        for pattern, replacement in _MARKUP:
            joined = re.sub(pattern, replacement, joined)
        if joined:
            yield joined


def is_prose(sentence: str) -> bool:
    """Returns whether a sentence is complete, mostly words and not too long."""
    tokens = sentence.split(" ")
    if len(tokens) < 4 or len(sentence) > 1000 or "://" in sentence or sentence[0].islower():
        return False
    if not sentence.rstrip("\"')”’").endswith((".", "!", "?")):
        return False
    return sum(map(bool, map(_WORD.fullmatch, tokens))) >= 0.75 * len(tokens)


if __name__ == "__main__":
    define_flags()
    program.run(main)
