"""The input of a training job runs on another host: a worker in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from albert_tf.text.tokenization import AlbertTokenizer
from tests.jobs import PROJECT
from tests.pipelines.data.small_records import write_records

# Seconds for all datasets: they take some ten, on a busy machine a minute.
TIME_LIMIT = 150


@pytest.fixture(scope="module")
def directory(tmp_path_factory, tiny_vocabulary):
    path = tmp_path_factory.mktemp("remote")
    shutil.copy(tiny_vocabulary, path / "vocabulary.model")
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    for name, counts in (("one", [7, 0, 13, 3]), ("two", [2, 7])):
        (path / name).mkdir()
        write_records(path / name, tokenizer, {"train": counts, "heldout": [5, 6]})
    return path


@pytest.mark.slow
def test_a_worker_in_another_process_yields_the_batches_of_a_local_dataset(directory):
    """As TPUStrategy places each host's input. Python generators would hang there for ever."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.remote_input", str(directory)],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"no batch from the worker in {TIME_LIMIT} s; before: {late.stdout}")
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == 4, done.stdout
    for name, equal, local, there, _ in reports:
        assert equal == local == there >= 3, name
