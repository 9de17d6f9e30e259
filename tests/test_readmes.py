"""Pages name files that exist and every recipe; they and docstrings avoid hard words."""

import ast
import dataclasses
import json
import re

import pytest

import albert_tf
from tests.jobs import PROJECT
from tests.test_import_rules import FILES, nodes

RECIPES = PROJECT / "pipelines/recipes"
READMES = [PROJECT / f"pipelines/{name}README.md" for name in ("", "tasks/", "recipes/")]

# What stands for files of the user, or of a run.
PLACEHOLDER = re.compile(r"[A-Z]_DIR|SPLIT|NAME")
PATH = re.compile(r"[\w./-]+(?:\.(?:py|md|flags|json|jsonl|tsv|txt)|/)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def paths_in_trees(text: str) -> list[str]:
    """Returns the entries of ```text blocks: folders by indent; two spaces precede the phrase."""
    found = []
    for language, block in FENCE.findall(text):
        if language != "text" or PLACEHOLDER.search(block.partition("\n")[0]):
            continue
        folders = []
        for line in block.splitlines():
            depth = (len(line) - len(line.lstrip())) // 2
            names = re.split(r"\s{2,}", line.strip())[0].split()
            found += ["".join(folders[:depth]) + name for name in names]
            folders[depth:] = [names[0]]
    return found


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_files_exist(readme):
    text = readme.read_text(encoding="utf-8")
    in_tree, codes = paths_in_trees(text), re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    words = [word.rpartition("=")[2] for code in codes for word in code.split()]
    modules = [module for code in codes for module in re.findall(r"-m ([\w.]+)", code)]
    words += [module.replace(".", "/") + ".py" for module in modules]
    in_backticks = [w for w in words if PATH.fullmatch(w) and not PLACEHOLDER.search(w)]
    assert len(in_backticks) >= 10 and len(in_tree) > 10
    missing = [path for path in in_tree if not (PROJECT / path).exists()]
    folders = (PROJECT, readme.parent)
    missing += [p for p in in_backticks if not any((folder / p).exists() for folder in folders)]
    assert not missing


def test_the_page_has_every_field_of_a_config():
    table = re.findall(
        r"^\| `(\w+)` \| (\S+) \|", READMES[0].read_text(encoding="utf-8"), re.MULTILINE
    )
    defaults = dataclasses.asdict(albert_tf.AlbertConfig())
    assert {name: json.loads(default) for name, default in table} == defaults


def test_the_version_is_the_changelogs():
    changelog = (PROJECT / "BUILD_NOTES.md").read_text(encoding="utf-8").split("## Changelog")[1]
    assert re.search(r"^- \*\*([0-9.]+)\*\*", changelog, re.MULTILINE)[1] == albert_tf.__version__


def test_every_recipe_is_named_and_those_of_fine_tuning_have_a_row():
    text = (RECIPES / "README.md").read_text(encoding="utf-8")
    named = set(paths_in_trees(text))
    recipes = [path for path in RECIPES.rglob("*") if path.suffix in (".flags", ".json")]
    assert len(recipes) > 50
    assert not {str(path.relative_to(PROJECT)) for path in recipes} - named
    rows = re.findall(r"^\| `finetune/(\w+)\.flags` \| ([\d,]+) x (\d+) ", text, re.MULTILINE)
    assert {name for name, *_ in rows} == {p.stem for p in RECIPES.glob("finetune/*.flags")}
    for name, steps, batch in rows:
        recipe = (RECIPES / f"finetune/{name}.flags").read_text(encoding="utf-8").splitlines()
        assert f"--num_train_steps={steps.replace(',', '')}" in recipe
        assert f"--global_batch_size={batch}" in recipe


PAGES = ["README.md", "BUILD_NOTES.md", "pipelines/README.md", "pipelines/tasks/README.md",
         "pipelines/tasks/FROM_CSV.md", "export/README.md", "export/serving/README.md",
         "tests/benchmarks/README.md"]  # fmt: skip
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
