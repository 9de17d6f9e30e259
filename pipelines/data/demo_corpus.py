"""Writes a demo corpus of English prose from the documentation of installed Python packages.

Each of Python's help topics, and each docstring of the standard library and of all installed
packages, is one document, without code, tables and markup. Documents start with a summary, so a
model can learn their sentence order. Nothing is downloaded, and none of the packages is imported.

Example:
  python -m pipelines.data.demo_corpus --output_file=demo/corpus.txt
"""

import ast
import contextlib
import itertools
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import sentencex
import tensorflow as tf
from absl import flags

from albert_tf.jobs import program
from albert_tf.storage import files

_NOT_READ = re.compile(
    r"/(tests?|site-packages|_vendor|idlelib|lib2to3)/|/test_[^/]*$|_(test|pb2)\.py$"
)
# What is no prose: a deeper or an underlined line, a doctest, a list, a directive or a table.
_NO_PROSE = re.compile(r"^[ \t]|[-=~^*#\"]{3,}$|^>>>|^[*+•:|@#.-]|:$", re.MULTILINE)
_ROLE = re.compile(r":[\w:+.-]+:`~?([^`<]+?)(\s*<[^`>]*>)?`")  # :class:`text <target>`
_MARKUP = re.compile(r"`+(?:_+(?!\w))?|(?<!\w)\*+(?=\w)|(?<=\w)\*+(?!\w)")
_INNER_DOT = re.compile(r"(?<=\w\w)\.(?=\w)")  # the dots of tf.keras.Model do not end a sentence
_WORD = re.compile(r"[\"'(]*[A-Za-z]+(?:['’/-][A-Za-z]+)*[\"')]*[.,;:!?]*[\"')]*")


def define_flags() -> None:
    """Defines the flags of this program. Other programs may use the same flag names."""
    flags.DEFINE_string("output_file", None, "Path of the corpus.", required=True)


def main(_) -> None:
    """Writes the corpus to --output_file, unless the file exists."""
    write_demo_corpus(flags.FLAGS.output_file)


def write_demo_corpus(output_file: str) -> None:
    """Writes the prose of Python's help topics and of the installed packages' docstrings."""
    if tf.io.gfile.exists(output_file):
        print(f"{output_file} is there already: nothing to do")
        return
    roots = dict.fromkeys(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    texts = [text for _, text in sorted(topics.items())]
    texts += itertools.chain.from_iterable(map(docstrings, map(Path, roots)))
    documents: list[list[str]] = []
    repeats: Counter[str] = Counter()
    for text in dict.fromkeys(texts):
        sentences = []
        for sentence in prose_sentences(text):
            repeats[sentence] += 1
            if repeats[sentence] <= 3:
                sentences.append(f"{sentence}\n")
        if len(sentences) > 1:  # a document of one sentence has no order to learn
            documents.append(sentences)
    corpus = "\n".join(map("".join, documents))
    files.write_atomically(output_file, corpus)
    print(
        f"{output_file}: {len(corpus.encode()) / 1e6:.1f} MB, {len(documents):,} documents, "
        f"{sum(map(len, documents)):,} sentences"
    )


def docstrings(root: Path) -> Iterator[str]:
    """Yields the docstrings of the Python files below a directory."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    warnings.simplefilter("ignore")  # about invalid escape sequences
    for path in sorted(root.rglob("*.py")):
        source = path.read_bytes()
        is_read = not _NOT_READ.search(f"/{path.relative_to(root).as_posix()}")
        if is_read and (b'"""' in source or b"'''" in source):
            with contextlib.suppress(SyntaxError, ValueError, RecursionError):
                nodes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, documented))
                yield from filter(None, map(ast.get_docstring, nodes))


def prose_sentences(text: str) -> Iterator[str]:
    """Yields the complete sentences, mostly words, of the paragraphs of a docstring."""
    joined = "\n\n".join(
        _INNER_DOT.sub("\ue000", _MARKUP.sub("", _ROLE.sub(r"\1", " ".join(paragraph.split()))))
        for paragraph in re.split(r"\n\s*\n", text.strip())
        if not _NO_PROSE.search(paragraph)
    )
    for found in sentencex.segment("en", joined) if joined else ():
        sentence = " ".join(found.replace("\ue000", ".").split())
        tokens = sentence.split(" ")
        if len(tokens) < 4 or len(sentence) > 1000 or "://" in sentence or sentence[0].islower():
            continue
        is_whole = sentence.rstrip("\"')”’").endswith((".", "!", "?"))
        if is_whole and sum(map(bool, map(_WORD.fullmatch, tokens))) >= 0.75 * len(tokens):
            yield sentence


if __name__ == "__main__":
    define_flags()
    program.run(main)
