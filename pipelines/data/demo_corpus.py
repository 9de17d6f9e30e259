"""Writes a corpus of English prose that every installation holds: Python's own documentation.

The help topics of Python and the docstrings of the standard library and all installed packages,
without code, tables and markup: one sentence per line, blank lines between documents. Each topic
and each docstring is a document: it opens with a summary, from which the order of its sentences can
be learnt. Nothing is downloaded, and no package is imported to read it. For demonstrations, in
place of your own text.

Example:
  python -m pipelines.data.demo_corpus --output_file=demo/corpus.txt
"""

from __future__ import annotations

import ast
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
from albert_tf.storage.errors import UserError
from albert_tf.storage.progress import Progress

FLAGS = flags.FLAGS

_NOT_READ = {"test", "tests", "site-packages", "_vendor", "idlelib", "lib2to3", "__pycache__"}
_MIN_SENTENCES = 2  # of a document
_MIN_WORDS = 4  # of a sentence
_MAX_CHARACTERS = 1000  # of a sentence
_MAX_REPEATS = 3  # of the same sentence, over all documents

# Sections in NumPy's style, headed by an underlined line, that hold tables or code.
_TABLES = re.compile(
    r"(other )?(parameters|returns|yields|raises|warns|attributes|methods|see also|references|"
    r"examples?|routines|functions|classes)\b",
    re.IGNORECASE,
)
# What is indented below a line that ends in a colon is code or a table, but for these.
_PROSE_HEADING = re.compile(r"(\.\. )?(notes?|warning|caution|important|tip|caveats?)\b", re.I)
_MARKUP = (
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # [text](address)
    (re.compile(r":[\w:+.-]+:`~?([^`<]+?)(\s*<[^`>]*>)?`"), r"\1"),  # :class:`text <target>`
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_*"), r"\1"),  # `text <address>`_
    (re.compile(r"`+([^`]*)`+_*"), r"\1"),  # `text`
    (re.compile(r"(?<!\w)(\*{1,2})(\w[^*]*?)\1(?!\w)"), r"\2"),  # *text*
)
_BULLET = re.compile(r"([*+•-]|\(?(\d{1,2}|[a-z])[.)])\s+")
_UNDERLINE = re.compile(r"[-=~^*#\"]{3,}$")
_WORD = re.compile(r"[\"'(]*[A-Za-z]+(?:['’/-][A-Za-z]+)*[\"')]*[.,;:!?]*[\"')]*")
_INNER_DOT = re.compile(r"(?<=\w\w)\.(?=\w)")  # not the dots of "i.e."
_DOT_FOR_NOW = "\ue000"


def define_flags() -> None:
    """Defines the flags; not at import, as programs share the names of flags."""
    flags.DEFINE_string("output_file", None, "Where to write the corpus.", required=True)


def main(_) -> None:
    """Reads the flags."""
    from pydoc_data.topics import topics

    paths = sysconfig.get_paths()
    roots = dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib"))
    write_demo_corpus(FLAGS.output_file, list(roots), topics)


def write_demo_corpus(output_file: str, roots: list[Path], topics: dict[str, str]) -> None:
    """Writes the corpus, unless it is there already.

    Args:
      output_file: the file to write.
      roots: directories of Python packages.
      topics: the texts of Python's `help("...")`.

    Raises:
      UserError: if there is no prose at all.
    """
    if tf.io.gfile.exists(output_file):
        print(f"{output_file} is there already: nothing to do")
        return
    sources = [path for root in roots for path in source_files(root)]
    print(f"demo corpus: docstrings of {len(sources):,} files of this installation", flush=True)
    documents, repeats, seen = [], Counter(), set()

    def add(text: str) -> None:
        """Adds a document, unless it was there before."""
        if text in seen:
            return
        seen.add(text)
        sentences = []
        for sentence in prose_sentences(text):
            repeats[sentence] += 1
            if repeats[sentence] <= _MAX_REPEATS:
                sentences.append(sentence)
        if len(sentences) >= _MIN_SENTENCES:
            documents.append("\n".join(sentences) + "\n")

    for _, text in sorted(topics.items()):
        add(text)
    with Progress("reading", len(sources), unit="file") as progress:
        for done, path in enumerate(sources, start=1):
            for text in docstrings(path):
                add(text)
            progress.update(done)
    if not documents:
        raise UserError("no prose in this installation's packages: cannot make a demo corpus")
    text = "\n".join(documents)
    files.write_atomically(output_file, text)
    print(
        f"{output_file}: {len(text.encode()) / 1e6:.1f} MB, {len(documents):,} documents, "
        f"{sum(document.count(chr(10)) for document in documents):,} sentences"
    )


def source_files(root: Path) -> list[Path]:
    """Returns the Python files below a directory, sorted, tests and generated code left out."""
    found = []
    for path in sorted(root.rglob("*.py")):
        directories = path.relative_to(root).parts[:-1]
        is_test = path.name.startswith("test_") or path.name.endswith(("_test.py", "_pb2.py"))
        if not is_test and not _NOT_READ.intersection(directories):
            found.append(path)
    return found


def docstrings(path: Path) -> Iterator[str]:
    """Yields the docstrings of a file, in its order; none if it cannot be parsed."""
    source = path.read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in the packages' strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    yield from _docstrings_below(tree)


def _docstrings_below(node: ast.AST) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, documented) and (text := ast.get_docstring(node)):
        yield text
    for block in ("body", "handlers", "orelse", "finalbody"):
        children = getattr(node, block, ())
        for child in children if isinstance(children, list) else ():
            yield from _docstrings_below(child)


def prose_sentences(text: str) -> list[str]:
    """Returns the sentences of the prose of a docstring."""
    joined = "\n\n".join(paragraphs(text))
    # A dot inside a name ends no sentence: tf.keras.Model.
    split = sentencex.segment("en", _INNER_DOT.sub(_DOT_FOR_NOW, joined)) if joined else ()
    sentences = (" ".join(s.replace(_DOT_FOR_NOW, ".").split()) for s in split)
    return [sentence for sentence in sentences if is_prose(sentence)]


def paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring, without code, tables and markup."""
    lines = text.expandtabs().splitlines()
    paragraph: list[str] = []
    skip_below = None  # leave out lines indented deeper than this
    in_fence = in_doctest = in_table = False
    for line, next_line in zip(lines, [*lines[1:], ""]):
        content = line.strip()
        indent = len(line) - len(line.lstrip())
        if content.startswith(("```", "~~~")):
            in_fence = not in_fence
            content = ""
        if content and _UNDERLINE.match(next_line.strip()):
            in_table = bool(_TABLES.match(content))
            content = ""  # the heading
        in_doctest = bool(content) and (in_doctest or content.startswith(">>>"))
        if content and skip_below is not None and indent <= skip_below:
            skip_below = None
        is_heading = content.endswith(":")
        is_left_out = in_fence or in_doctest or in_table or skip_below is not None
        is_left_out |= is_heading and " " not in content
        # Directives, fields, tables, comments, decorators.
        is_left_out |= content.startswith(("..", ":", "|", "+-", "#", "@")) or bool(
            _UNDERLINE.match(content)
        )
        starts_anew = not content or is_left_out or _BULLET.match(content)
        if starts_anew and paragraph:
            yield _without_markup(" ".join(paragraph))
            paragraph = []
        if content and not is_left_out:
            paragraph.append(_BULLET.sub("", content, count=1) if starts_anew else content)
        if is_heading and skip_below is None and not _PROSE_HEADING.match(content):
            skip_below = indent
    if paragraph:
        yield _without_markup(" ".join(paragraph))


def _without_markup(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text


def is_prose(sentence: str) -> bool:
    """Returns whether a sentence is whole, of words for the most part, and not too long."""
    tokens = sentence.split(" ")
    if len(tokens) < _MIN_WORDS or len(sentence) > _MAX_CHARACTERS or "://" in sentence:
        return False
    if not sentence.rstrip("\"')”’").endswith((".", "!", "?")) or sentence[0].islower():
        return False
    return sum(map(bool, map(_WORD.fullmatch, tokens))) >= 0.75 * len(tokens)


if __name__ == "__main__":
    define_flags()
    program.run(main)
