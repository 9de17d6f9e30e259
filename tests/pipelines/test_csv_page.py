import csv
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.builders import make_rows
from tests.jobs import PROJECT
from tests.pipelines.test_predict import read

PAGE = PROJECT / "pipelines/tasks/README.md"


@pytest.mark.slow
def test_the_commands_run(pretrained, tmp_path):
    for name, number, seed in (("tickets", 120, 1), ("new", 9, 2)):
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            rows = [row[1:] for row in make_rows(number, seed)]
            writer.writerows([("subject", "body", "queue"), *rows])
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/model").symlink_to(pretrained)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    first = PAGE.read_text(encoding="utf-8").partition("\n## Tasks\n")[0]  # then: other data
    blocks = re.findall(r"```bash\n(.*?)```", first, flags=re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    outputs = {}
    for _, *words in (shlex.split(line) for line in lines if line.startswith("python -m ")):
        if not any(word.startswith("--server") for word in words):
            command = [sys.executable, *words]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            outputs.setdefault(words[1], done.stdout)
    assert "2 labels: 'other' " in outputs["pipelines.finetune"]
    assert "label: " in outputs["export.ask"]
    assert len(read(tmp_path / "labelled.csv")) == 9
    assert json.loads((tmp_path / "runs/tickets/results.json").read_text())["dev"]
