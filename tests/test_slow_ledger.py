"""The ledger of slow tests, in a project of its own that has a commit or two."""

import os
import shutil
import subprocess
import sys

import pytest

from tests import slow_ledger

# Names of tests by what they do; test_half passes in one of its cases.
ONE = """
import pytest
pytestmark = pytest.mark.slow
@pytest.mark.parametrize("case", [1, 2])
def test_good(case): pass
@pytest.mark.parametrize("good", [True, False])
def test_half(good): assert good
def test_skips(): pytest.skip("a program is missing")
"""
TWO = "def test_fast(): pass\n"
INI = "[pytest]\nmarkers=slow\ntestpaths=tests\n"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tests").mkdir()
    files = {"tests/test_one.py": ONE, "tests/test_two.py": TWO, "pytest.ini": INI}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    shutil.copy(slow_ledger.__file__, tmp_path / "tests")
    git(tmp_path, "init", "--quiet")
    for _ in range(2):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "--message=one more")
    return tmp_path


def git(project, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=b", "-C", project, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def ledger(project):
    lines = (project / "tests/slow_tests.txt").read_text().splitlines()
    assert lines == sorted(lines)
    return dict(line.split(" ", 1) for line in lines)


def fill(project, *entries):
    lines = [f"tests/test_{entry}\n" for entry in sorted(entries)]
    (project / "tests/slow_tests.txt").write_text("".join(lines))


@pytest.mark.slow
def test_two_workers_write_one_ledger_of_what_passed(project):
    head = git(project, "rev-parse", "--short", "HEAD")
    fill(
        project,
        "one.py::test_half passed aaaaaaa 1",
        "one.py::test_good passed aaaaaaa 1 no server",
        "two.py::test_fast passed aaaaaaa 1",
        "gone.py::test passed aaaaaaa 1",
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.slow_ledger", "-p", "xdist.plugin"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, "-mslow", "-n2"], cwd=project, env=environment)
    assert done.returncode == 1
    assert ledger(project) == {
        "tests/test_one.py::test_good": f"passed {head} 2 no server",
        "tests/test_one.py::test_half": "passed aaaaaaa 1",
        "tests/test_one.py::test_skips": f"never {head} 2",
    }


@pytest.mark.parametrize(
    ("entries", "code", "word"),
    [
        (["passed aaaaaaa -98"], 0, ""),
        (["passed aaaaaaa -99"], 1, "test_one.py::test_good last passed on aaaaaaa, age: 101"),
        (["never aaaaaaa -99"], 1, "OLD tests/test_one.py::test_good never passed"),
        (["passed aaaaaaa -99 no server"], 0, "NOT IN CI tests/test_one.py::test_good"),
        ([], 1, "has 0 slow tests"),
    ],
)
def test_an_old_entry_fails_the_check(project, capsys, entries, code, word):
    fill(project, *(f"one.py::test_good {entry}" for entry in entries))
    assert slow_ledger.main(project) == code
    out = capsys.readouterr().out
    assert word in out and bool(word) == bool(out)
