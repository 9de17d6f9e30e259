"""Breaks the code in places that a seed chooses, and shows which breaks the tests notice.

A mutant is one change: a comparison flipped, a number or boolean changed, a condition negated, a
branch dropped, a call left out. mutants.json maps each module to the tests that cover it. A copy of
the checkout is broken and tested, one mutant after the other. The same command resumes. `--mutants`
applies the mutants of an earlier --output to another checkout, whose lines may have moved.

Example: python -m tests.benchmarks.mutants --output=head.json
"""

from __future__ import annotations

import ast
import collections
import contextlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path

import hypothesis
from absl import app, flags

FLAGS = flags.FLAGS

_FLIPS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_NOT_CODE = ("annotation", "returns", "decorator_list")
_MESSAGE = re.compile(r"(logging\.\w+|print|warnings\.warn|\w*Error)\(|if (__name__|TYPE_CHECK)")
_KEY = ("module", "function", "line", "occurrence", "change")
# Packages of others that the tests import: imported once, before the forks.
_PACKAGES = (
    "pytest tensorflow tensorflow_addons tensorflow_text scipy.stats sklearn.linear_model"
).split()


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("tree", ".", "Checkout to test.")
    flags.DEFINE_string("output", None, "JSON of the mutants and their outcomes.", required=True)
    flags.DEFINE_string("mutants", None, "JSON of the mutants to apply. Default: chosen by seed.")
    flags.DEFINE_integer("per_module", 8, "Number of mutants to choose in each module.")
    flags.DEFINE_integer("choice_seed", 1, "Seed of the choice.")
    flags.DEFINE_list("only", [], "Modules, by their names in mutants.json. Default: all.")
    flags.DEFINE_float("seconds", float("inf"), "Time after which no further mutant starts.")


def main(_) -> None:
    """Tests the mutants that --output lacks."""
    options = types.SimpleNamespace(**FLAGS.flag_values_dict())
    for flag in FLAGS.get_key_flags_for_module(sys.argv[0]):
        delattr(FLAGS, flag.name)  # Programs that the tests call have flags of these names.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1", TF_NUM_INTRAOP_THREADS="1")
    until = time.monotonic() + options.seconds
    output = Path(options.output)
    results = json.loads(output.read_text()) if output.exists() else {"unbroken": {}, "mutants": []}
    known = set(map(_key, results["mutants"]))
    for name in _PACKAGES:
        importlib.import_module(name)
    # To shrink a failing example takes minutes.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", phases=phases)
    hypothesis.settings.load_profile("mutants")
    with tempfile.TemporaryDirectory() as directory:
        copy = _copy(Path(options.tree).resolve(), Path(directory))
        for mutant, path, source, tests in _mutants(copy, options):
            if _key(mutant) in known:
                continue
            if time.monotonic() > until:
                return
            unbroken = results["unbroken"]
            name = f"{mutant['module']}: {' '.join(tests)}"
            if name not in unbroken:
                outcome, unbroken[name], by = run_tests(copy, tests, timeout=600)
                assert outcome == "survived", f"{name} without a change: {outcome} {by}"
            outcome, seconds, by = "absent", 0, ""
            if source:
                with broken(path, source):
                    outcome, seconds, by = run_tests(copy, tests, 60 + 5 * unbroken[name])
            results["mutants"].append({**mutant, "outcome": outcome, "by": by, "seconds": seconds})
            output.write_text(json.dumps(results, indent=1, ensure_ascii=False))
            where = f"{path.relative_to(copy)}:{mutant['number']}"
            print(f"{where} {mutant['change']}: {outcome}, {seconds} s {by}", flush=True)
    print(dict(collections.Counter(mutant["outcome"] for mutant in results["mutants"])))


def _key(mutant: dict) -> tuple:
    return tuple(mutant[name] for name in _KEY)


def _mutants(copy: Path, options) -> Iterator[tuple[dict, Path, str, list[str]]]:
    """Yields the mutants to test; of each the module's path, broken source (or "") and tests."""
    given = json.loads(Path(options.mutants).read_text())["mutants"] if options.mutants else None
    cover = json.loads(Path(__file__).with_suffix(".json").read_text())
    for module in options.only or cover:
        path = next(copy / p for p in cover[module]["paths"] if (copy / p).exists())
        tests = [t for t in cover[module]["tests"] if (copy / t).exists()]
        places = find_places(module, path.read_text(encoding="utf-8"))
        if given is None:
            chosen = choose([mutant for mutant, _ in places.values()], options)
        else:
            chosen = [mutant for mutant in given if mutant["module"] == module]
        for mutant in chosen:
            mutant, source = places.get(_key(mutant), ({**mutant, "number": 0}, ""))
            mutant = {name: mutant[name] for name in (*_KEY, "kind", "number")}
            yield mutant, path, source, tests


def find_places(module: str, source: str) -> dict[tuple, tuple[dict, str]]:
    """Returns all mutants of a module by key, and the broken source of each."""
    tree, lines = ast.parse(source), source.splitlines()
    places, seen = {}, collections.Counter()
    for node, function in _nodes(tree, ""):
        for kind, change, field, new in _changes(node):
            mutant = {"module": module, "function": function, "number": node.lineno, "kind": kind}
            mutant.update(line=lines[node.lineno - 1].strip(), change=change)
            seen[function, mutant["line"], change] += 1
            mutant["occurrence"] = seen[function, mutant["line"], change]
            old = getattr(node, field)
            setattr(node, field, new)
            places[_key(mutant)] = mutant, ast.unparse(tree)
            setattr(node, field, old)
    return places


def _nodes(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    """Yields what may be broken, and the function that it is in."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if field in _NOT_CODE or not isinstance(child, ast.AST):
                continue
            if isinstance(child, (ast.JoinedStr, ast.Raise, ast.Assert)):
                continue
            if isinstance(child, (ast.Expr, ast.If)) and _MESSAGE.match(ast.unparse(child)):
                continue
            inside = function
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inside = f"{function}.{child.name}".lstrip(".")
            yield child, inside
            yield from _nodes(child, inside)


def _changes(node: ast.AST) -> Iterator[tuple[str, str, str, object]]:
    """Yields kind and name of each change of a node, and which field gets which value."""
    if isinstance(node, ast.Compare):
        for i, old in enumerate(node.ops):
            for new in _FLIPS[type(old)]:
                name = f"{type(old).__name__} -> {new.__name__}"
                yield "comparison", name, "ops", [*node.ops[:i], new(), *node.ops[i + 1 :]]
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        new = node.value + 1
        if isinstance(node.value, bool):
            new = not node.value
        elif isinstance(node.value, float) and node.value:
            new = 2 * node.value
        yield "constant", f"{node.value} -> {new}", "value", new
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield "condition", "negated", "test", ast.UnaryOp(ast.Not(), node.test)
        if isinstance(node, ast.If):
            yield "branch", "dropped", "body", [ast.Pass()]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call", "left out", "value", ast.Constant(None)


def choose(mutants: list[dict], options) -> list[dict]:
    """Returns mutants spread over the functions, and over the kinds of changes."""
    random.Random(options.choice_seed).shuffle(mutants)
    taken, chosen = collections.Counter(), []
    for _ in range(min(options.per_module, len(mutants))):
        mutant = min(mutants, key=lambda m: (taken[m["function"]], taken[m["kind"]]))
        taken.update([mutant["function"], mutant["kind"]])
        mutants.remove(mutant)
        chosen.append(mutant)
    return chosen


def _copy(tree: Path, directory: Path) -> Path:
    ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "build", "dist")
    shutil.copytree(tree, directory / "tree", ignore=ignored)
    if (tree.parent / "shared").exists():
        (directory / "shared").symlink_to((tree.parent / "shared").resolve())
    return directory / "tree"


@contextlib.contextmanager
def broken(path: Path, source: str) -> Iterator[None]:
    """Replaces a module for a while, and its bytecode."""
    original = path.read_bytes()
    for content in (source.encode(), original):
        path.write_bytes(content)
        for bytecode in path.parent.glob(f"__pycache__/{path.stem}.*"):
            bytecode.unlink()
        if content is not original:
            yield


def run_tests(copy: Path, tests: list[str], timeout: float) -> tuple[str, float, str]:
    """Runs the first file and then the others; returns outcome, seconds, the test that failed."""
    began = time.monotonic()
    outcome, by = _fork(copy, tests[:1], began + timeout)
    if outcome == "survived" and tests[1:]:
        outcome, by = _fork(copy, tests[1:], began + timeout)
    return outcome, round(time.monotonic() - began, 1), by


def _fork(copy: Path, tests: list[str], until: float) -> tuple[str, str]:
    output = copy.parent / "output.txt"
    process = os.fork()
    if not process:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(copy)
        sys.path[0] = str(copy)
        # The copy has its own, and programs that the tests start look for their main module.
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        sys.modules["__main__"] = types.ModuleType("__main__")
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        options.append(f"--basetemp={copy.parent}/made")
        os._exit(sys.modules["pytest"].main([*options, *tests]))
    ended = 0
    try:
        while not ended and time.monotonic() < until:
            time.sleep(0.05)
            ended, status = os.waitpid(process, os.WNOHANG)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
    if not ended:
        os.waitpid(process, 0)
        return "timeout", ""
    printed = output.read_text(encoding="utf-8", errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", printed, re.MULTILINE)
    return "killed" if status else "survived", " ".join(failed)


if __name__ == "__main__":
    define_flags()
    app.run(main)
