"""Commands on the pages name programs and flags that exist, with values that the flags accept."""

import json
import re

from albert_tf.jobs.command import PROGRAMS
from tests.jobs import PROJECT, run_code

PAGES = sorted(path for path in PROJECT.rglob("*.md") if ".venv" not in str(path))
CODE = re.compile(r"^```\w*\n(.*?)^```|`([^`\n]+)`", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"\b(?:python -m (?:pipelines|export)\.(?:\w+\.)*|albert )(\w+)([^\n;|&)#]*)")
# A flag and its value, which may be in quotes. Shell variables and capitals stand for the user's.
FLAG = re.compile(r"--(\w+)(?:=('[^']*'|\"[^\"]*\"|\S*))?")
MODULES = {module.rpartition(".")[2]: module for module in PROGRAMS}
PARSE = """
import importlib, json, sys
from absl import flags
for module, commands in json.loads(sys.argv[1]):
    for name in [*flags.FLAGS]:
        delattr(flags.FLAGS, name)
    importlib.import_module(module).define_flags()
    for place, found in commands:
        for name, value in found:
            if name not in flags.FLAGS and name.removeprefix("no") not in flags.FLAGS:
                print(f"{place}: {module} has no flag --{name}")
            elif value and not set(value) & {*"$*"} and not value.isupper():
                try:
                    flags.FLAGS[name].parse(value.strip("'\\""))
                except flags.Error as error:
                    print(f"{place}: {error}")
"""


def commands():
    """Maps each program to its commands on the pages: (page, [(flag, value)])."""
    found = {}
    for page in PAGES:
        for block, inline in CODE.findall(page.read_text(encoding="utf-8")):
            for program, flags in COMMAND.findall((block or inline).replace("\\\n", " ")):
                place = str(page.relative_to(PROJECT))
                found.setdefault(program, []).append(
                    (place, [f for f in FLAG.findall(flags) if f[0] != "flagfile"])
                )
    return found


def test_commands():
    found = commands()
    assert {*found} - {"NAME", "PROGRAM", "signature_table"} == {*MODULES}
    out, _ = run_code(PARSE, json.dumps([(MODULES[name], found[name]) for name in MODULES]))
    assert not out
