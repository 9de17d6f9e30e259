"""Writes a demo corpus of English prose from the documentation of installed Python packages.

Each of Python's help topics, and each docstring of the standard library and of all installed
packages, is one document, without code, tables and markup. The file has one sentence per line and a
blank line between documents. Documents start with a summary, so a model can learn their sentence
order. The program downloads nothing and imports none of the packages.

Example:
  python -m pipelines.data.demo_corpus --output_file=demo/corpus.txt
"""

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

_NOT_READ = re.compile(
    r"/(tests?|site-packages|_vendor|idlelib|lib2to3)/|/test_[^/]*$|_(test|pb2)\.py$"
)
_MAX_REPEATS = 3  # maximum number of copies of a sentence in the corpus
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
    """Writes the corpus to --output_file."""
    from pydoc_data.topics import topics

    warnings.simplefilter("ignore")  # about invalid escape sequences in the packages
    paths = sysconfig.get_paths()
    roots = dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib"))
    write_demo_corpus(flags.FLAGS.output_file, list(roots), topics)


def write_demo_corpus(output_file: str, roots: list[Path], topics: dict[str, str]) -> None:
    """Writes the prose of help topics and package docstrings, unless `output_file` exists."""
    if tf.io.gfile.exists(output_file):
        print(f"{output_file} is there already: nothing to do")
        return
    names = [
        (root, path.relative_to(root)) for root in roots for path in sorted(root.rglob("*.py"))
    ]
    sources = [root / name for root, name in names if not _NOT_READ.search(f"/{name.as_posix()}")]
    print(f"demo corpus: docstrings of {len(sources):,} files of this installation", flush=True)
    texts = [text for _, text in sorted(topics.items())]
    with Progress("reading", len(sources), unit="file") as progress:
        for done, path in enumerate(sources, start=1):
            source = path.read_bytes()
            if b'"""' in source or b"'''" in source:
                with contextlib.suppress(SyntaxError, ValueError, RecursionError):
                    texts.extend(docstrings(ast.parse(source)))
            progress.update(done)
    documents: list[list[str]] = []
    repeats: Counter[str] = Counter()
    for text in dict.fromkeys(texts):
        sentences = []
        for sentence in prose_sentences(text):
            repeats[sentence] += 1
            if repeats[sentence] <= _MAX_REPEATS:
                sentences.append(f"{sentence}\n")
        if len(sentences) > 1:  # a document of one sentence has no order to learn
            documents.append(sentences)
    corpus = "\n".join(map("".join, documents))
    files.write_atomically(output_file, corpus)
    print(
        f"{output_file}: {len(corpus.encode()) / 1e6:.1f} MB, {len(documents):,} documents, "
        f"{sum(map(len, documents)):,} sentences"
    )


def docstrings(module: ast.Module) -> Iterator[str]:
    """Yields all docstrings in a module."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(module) if isinstance(node, documented))
    yield from filter(None, map(ast.get_docstring, nodes))


def prose_sentences(text: str) -> list[str]:
    """Returns the sentences of a docstring's paragraphs that are prose, without markup."""
    joined = "\n\n".join(
        _INNER_DOT.sub("\ue000", _MARKUP.sub("", _ROLE.sub(r"\1", " ".join(paragraph.split()))))
        for paragraph in re.split(r"\n\s*\n", text.strip())
        if not _NO_PROSE.search(paragraph)
    )
    split = sentencex.segment("en", joined) if joined else ()
    sentences = (" ".join(sentence.replace("\ue000", ".").split()) for sentence in split)
    return [sentence for sentence in sentences if is_prose(sentence)]


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
