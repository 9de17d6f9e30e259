"""Pages: links, files, commands and recipes exist; words are within budget, and none is hard."""

import ast
import dataclasses
import json
import re

import albert_tf
from albert_tf.jobs.command import PROGRAMS
from tests.jobs import PROJECT, run_code
from tests.test_import_rules import FILES, nodes

RECIPES = PROJECT / "pipelines/recipes"
# The largest number of words of a page, without the generated table.
BUDGET = {
    "README.md": 700,
    "BUILD_NOTES.md": 3000,
    "pipelines/README.md": 3000,
    "pipelines/recipes/README.md": 2000,
    "pipelines/tasks/README.md": 3000,
    "export/README.md": 2500,
    "export/serving/README.md": 1500,
    "tests/README.md": 1800,
    "tests/benchmarks/README.md": 4000,
}
PAGES = {name: (PROJECT / name).read_text(encoding="utf-8") for name in BUDGET}
LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_budgets():
    assert {*BUDGET} == {str(p.relative_to(PROJECT)) for p in PROJECT.glob("[!.]*/**/*.md")} | {
        p.name for p in PROJECT.glob("*.md")
    }
    signatures = re.compile(r"^\| kind \| signature .*?\n\n", re.DOTALL | re.MULTILINE)
    counts = {name: len(signatures.sub("", text).split()) for name, text in PAGES.items()}
    assert not {name: count for name, count in counts.items() if count > BUDGET[name]}
    assert len(PAGES["README.md"].splitlines()) <= 75


def anchors(text):
    """Returns the anchors of a page's headings, as GitHub forms them."""
    titles = re.findall(r"^#+ (.*)", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links():
    for name, text in PAGES.items():
        for target, anchor in LINK.findall(FENCE.sub("", text)):
            path = ((PROJECT / name).parent / target).resolve() if target else PROJECT / name
            assert path.exists(), f"{name}: {target}"
            if anchor:
                assert anchor in anchors(path.read_text(encoding="utf-8")), f"{name}: {anchor}"


def paths_in_trees(text: str) -> list[str]:
    """Returns the entries of ```text blocks: folders by indent; two spaces precede the phrase."""
    found = []
    for _, block in FENCE.findall(text):
        folders = []
        for line in block.splitlines() if block.startswith("albert_tf/") else ():
            depth = (len(line) - len(line.lstrip())) // 2
            names = re.split(r"\s{2,}", line.strip())[0].split()
            found += ["".join(folders[:depth]) + name for name in names]
            folders[depth:] = [names[0]]
    return found


def test_the_map_of_the_house():
    page = PAGES["tests/README.md"]
    paths = paths_in_trees(page)
    assert len(paths) > 50
    codes = re.findall(r"`([\w./-]+(?:\.(?:py|txt|tsv)|/))`", FENCE.sub("", page))
    missing = [path for path in paths if not (PROJECT / path).exists()]
    folders = ("albert_tf", "pipelines", "export", "tests")
    files = [str(path) for folder in folders for path in (PROJECT / folder).rglob("*")]
    missing += [
        code
        for code in codes
        if not (PROJECT / code).exists()
        and not any(f"{path}/".endswith(f"/{code.rstrip('/')}/") for path in files)
    ]
    assert not missing


CODE = re.compile(r"^```\w*\n(.*?)^```|`([^`\n]+)`", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"\b(?:python -m (?:pipelines|export)\.(?:\w+\.)*|albert )(\w+)([^\n;|&)#]*)")
# A flag and its value, which may be in quotes. Shell variables and capitals stand for the user's.
FLAG = re.compile(r"--(?!flagfile)(\w+)(?:=('[^']*'|\"[^\"]*\"|\S*))?")
MODULES = {module.rpartition(".")[2]: module for module in PROGRAMS}
PARSE = r"""
import importlib, json, sys
from absl import flags
known = set()
for module, commands in json.loads(sys.argv[1]):
    for name in [*flags.FLAGS]:
        delattr(flags.FLAGS, name)
    importlib.import_module(module).define_flags()
    known |= {*flags.FLAGS}
    for place, found in commands:
        for name, value in found:
            if name not in flags.FLAGS and name.removeprefix("no") not in flags.FLAGS:
                print(f"{place}: {module} has no flag --{name}")
            elif value and not set(value) & {*"$*"} and not value.isupper():
                try:
                    flags.FLAGS[name].parse(value.strip("'\""))
                except flags.Error as error:
                    print(f"{place}: {error}")
for place, name in json.loads(sys.argv[2]):
    if name not in known and name.removeprefix("no") not in known:
        print(f"{place}: no program has a flag --{name}")
"""


def test_commands():
    """Every command names a program and flags that exist, with values that the flags accept."""
    found, alone = {}, []
    for page, text in PAGES.items():
        for block, inline in CODE.findall(text):
            code = (block or inline).replace("\\\n", " ")
            for program, flags in COMMAND.findall(code):
                found.setdefault(program, []).append((page, FLAG.findall(flags)))
            if page.startswith("pipelines/") or page == "export/README.md":
                alone += [(page, name) for name in re.findall(r"^--(\w+)", inline)]
    assert {*found} - {"NAME", "PROGRAM"} == {*MODULES}
    commands = [(MODULES[name], found[name]) for name in MODULES]
    out, _ = run_code(PARSE, json.dumps(commands), json.dumps(alone))
    assert not out


def test_the_page_has_every_field_of_a_config():
    table = re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGES["pipelines/README.md"], re.MULTILINE)
    defaults = dataclasses.asdict(albert_tf.AlbertConfig())
    assert {name: json.loads(default) for name, default in table} == defaults


def test_the_version_is_the_changelogs():
    changelog = PAGES["BUILD_NOTES.md"].split("## Changelog")[1]
    assert re.search(r"^- \*\*([0-9.]+)\*\*", changelog, re.MULTILINE)[1] == albert_tf.__version__


def test_the_output_on_the_first_page():
    """demo_output.txt is what the last commands of `make demo` printed."""
    printed = (PROJECT / "tests/demo_output.txt").read_text(encoding="utf-8").splitlines()
    [shown] = [block for kind, block in FENCE.findall(PAGES["README.md"]) if kind == "text"]
    assert not {*shown.splitlines()} - {*printed}


def test_every_recipe_is_named_and_those_of_fine_tuning_have_a_row():
    text = PAGES["pipelines/recipes/README.md"]
    flagfiles = {path: path.read_text(encoding="utf-8") for path in RECIPES.rglob("*.flags")}
    assert len(flagfiles) > 30
    in_loops = {"128", "128_four", "128_six"}
    named = {p for p in flagfiles if p.name in text or f"`{p.stem}`" in text or p.stem in in_loops}
    assert named == {*flagfiles}
    configs = {str(path.relative_to(PROJECT)) for path in RECIPES.rglob("*.json")}
    assert not {c for c in configs if c not in text + "".join(flagfiles.values())
                and c.removeprefix("pipelines/recipes/") not in text}  # fmt: skip
    rows = re.findall(r"^\| `finetune/(\w+)\.flags` \| ([\d,]+) x (\d+) ", text, re.MULTILINE)
    assert {name for name, *_ in rows} == {p.stem for p in RECIPES.glob("finetune/*.flags")}
    for name, steps, batch in rows:
        recipe = (RECIPES / f"finetune/{name}.flags").read_text(encoding="utf-8").splitlines()
        assert f"--num_train_steps={steps.replace(',', '')}" in recipe
        assert f"--global_batch_size={batch}" in recipe


# The pronouns hide a noun ("the batch size of the run"), and the verbs are a person's: a program
# returns whether, defines, prints, accepts, contains, resumes.
HARD = r"(?i)\b(?:those of|that of|of which|tells|says|asks|knows|lies|stands|goes on)\b"
QUOTED = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
MAX_WORDS = 30


def hard_words(text):
    return re.findall(HARD, " ".join(QUOTED.sub("x", text).split()))


def long_sentences(text):
    """A blank line, a command and a row of a table end a sentence, too."""
    ends = r"(?<=[.:;?!])\s|\n\s*\n|\n *(?=python )|\S {2,}\S.*"
    return [s for s in re.split(ends, QUOTED.sub("x", text)) if len(s.split()) > MAX_WORDS]


def test_pages():
    assert not {name: words for name, text in PAGES.items() if (words := hard_words(text))}


def test_docstrings():
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in FILES:
        found = (node for node in nodes(path) if isinstance(node, kinds))
        for text in (ast.get_docstring(node) or "" for node in found):
            assert not hard_words(text) + long_sentences(text), path.relative_to(PROJECT)
