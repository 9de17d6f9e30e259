"""The ledger of slow tests, tests/slow_tests.txt: the commit on which each of them last passed.

As a pytest plugin (`-p tests.slow_ledger`, as `make test-slow` loads it) this module runs the tests
first that never passed, then those that did not pass for longest. It skips what has not begun after
TEST_SECONDS and writes the ledger at the end of the session. `python -m tests.slow_ledger` fails if
an entry is too old.

tests/README.md defines a line. A test passes if all its cases pass in one session. The age of an
entry is a difference of two NUMBERs, which a rebase does not change.
"""

import collections
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

LEDGER = "tests/slow_tests.txt"
MAX_AGE = 100


class Entry(NamedTuple):
    state: str
    commit: str
    number: int
    reason: str = ""


def read_head(root):
    """Returns the entry of a test that passes now; None where commits cannot be counted."""

    def git(*arguments):
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
        return done.stdout.strip()

    if git("rev-parse", "--is-shallow-repository") != "false":
        return None
    commit, number = git("rev-parse", "--short", "HEAD"), git("rev-list", "--count", "HEAD")
    return Entry("passed", commit, int(number)) if commit else None


def read(path):
    """Returns {test: Entry}, empty without a file."""
    entries = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        test, state, commit, number, *reason = line.split()
        entries[test] = Entry(state, commit, int(number), " ".join(reason))
    return entries


def pytest_configure(config):
    if any("::" in arg for arg in config.args):
        raise pytest.UsageError("the ledger counts the cases of whole files: name no single test")
    config.pluginmanager.register(Recorder(config))


class Recorder:
    def __init__(self, config):
        self.config = config
        self.path = config.rootpath / LEDGER
        self.now, self.entries = read_head(config.rootpath), read(self.path)
        self.cases = {}  # the number of slow cases of each function collected
        self.passed, self.failed = set(), set()
        self.seconds = float(os.environ.get("TEST_SECONDS", "inf"))
        self.began = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items):
        """Counts cases before any is deselected; in the end puts the oldest entries first."""
        for item in items:
            self.cases.setdefault(function_of(item.nodeid), 0)
            self.cases[function_of(item.nodeid)] += item.get_closest_marker("slow") is not None
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["cases"] = self.cases
        yield
        oldest = {}
        for item in items:
            number = self.number_of(item.nodeid)
            oldest[item.path] = min(number, oldest.get(item.path, number))
        items.sort(key=lambda i: (oldest[i.path], i.path, self.number_of(i.nodeid)))

    def number_of(self, nodeid):
        entry = self.entries.get(function_of(nodeid))
        return entry.number if entry and entry.state == "passed" else -sys.maxsize

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self):
        if time.monotonic() - self.began > self.seconds:
            pytest.skip(f"NOT RUN: the {self.seconds:.0f} seconds of TEST_SECONDS are over")

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.cases.update(getattr(node, "workeroutput", {}).get("cases", {}))

    def pytest_sessionfinish(self):
        if hasattr(self.config, "workeroutput") or self.now is None:
            return
        counts = collections.Counter(map(function_of, self.passed - self.failed))
        files = {function.split("::")[0] for function in self.cases}

        def is_gone(test):
            file = test.split("::")[0]
            is_missing = file in files or not (self.config.rootpath / file).exists()
            return is_missing and not self.cases.get(test)

        entries = read(self.path)  # another session may have ended meanwhile
        entries = {test: entry for test, entry in entries.items() if not is_gone(test)}
        for test, cases in self.cases.items():
            if cases and counts[test] == cases:
                entries[test] = self.now._replace(reason=entries.get(test, self.now).reason)
            elif cases:
                entries.setdefault(test, self.now._replace(state="never"))
        lines = [" ".join(map(str, (test, *entry))) for test, entry in sorted(entries.items())]
        part = self.path.with_suffix(".part")
        part.write_text("".join(line.rstrip() + "\n" for line in lines))
        part.replace(self.path)

    def pytest_terminal_summary(self, terminalreporter):
        if self.now is None:
            terminalreporter.line(f"{LEDGER} not written: commits cannot be counted in this clone")


def function_of(nodeid):
    return nodeid.split("[")[0]


def main(root):
    """Prints what CI cannot run and what is too old; returns the exit code."""
    entries, now = read(root / LEDGER), read_head(root)
    if entries and now is None:
        print("not checked: the age of slow tests is unknown in a clone that is not complete")
        return 0
    num_stale = 0
    for test, entry in sorted(entries.items()):
        stale = not entry.reason and now.number - entry.number > MAX_AGE
        num_stale += stale
        if stale or entry.reason:
            event = "last passed on" if entry.state == "passed" else "never passed, listed on"
            age = f"age: {now.number - entry.number} commits. {entry.reason}"
            print("OLD" if stale else "NOT IN CI", test, event, f"{entry.commit}, {age}".rstrip())
    if entries and not num_stale:
        return 0
    print(
        f"error: {LEDGER} has {len(entries)} slow tests, of which {num_stale} did not pass within "
        f"{MAX_AGE} commits: run `make test-slow` and commit that file"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
