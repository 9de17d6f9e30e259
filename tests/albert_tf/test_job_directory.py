import json
import os

import numpy as np
import pytest

import albert_tf
from albert_tf.jobs import job_directory
from albert_tf.jobs.job_directory import describe_difference


def test_a_directory_is_one_jobs(tmp_path):
    directory = str(tmp_path / "records")
    with job_directory.lock(directory):
        with (
            pytest.raises(ValueError, match=r"another job is writing to '.*records'"),
            job_directory.lock(directory),
        ):
            pass
        with job_directory.lock(str(tmp_path / "other")):
            pass
    with job_directory.lock(directory):
        assert os.listdir(directory) == []


def test_a_directory_of_another_run_or_of_something_else(tmp_path):
    job_directory.claim(str(tmp_path / "run"), {"batch": 6, "seed": 1})
    with pytest.raises(ValueError, match=r"another run \(batch 6 there, 7 here\)"):
        job_directory.claim(str(tmp_path / "run"), {"batch": 7, "seed": 1})
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="no run of this job"):
        job_directory.claim(str(tmp_path / "other"), {"batch": 6})
    with pytest.raises(ValueError, match="for a pattern"):
        job_directory.claim(str(tmp_path / "lr[0.1]"), {"batch": 6})
    assert {*os.listdir(tmp_path)} == {"run", "other"}


def test_versions_that_a_run_began_with(tmp_path, capsys, monkeypatch):
    for _ in range(2):
        job_directory.claim(str(tmp_path / "run"), {"batch": 6, "shape": (2, 3)})
    before = (tmp_path / "run/run.json").read_text()
    old = json.loads(before)["versions"]
    assert json.loads(before)["batch"] == 6
    assert old.keys() == {"albert_tf", "tensorflow", "numpy", "python"}
    assert (old["albert_tf"], old["numpy"]) == (albert_tf.__version__, np.__version__)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(np, "__version__", "9.0")
    monkeypatch.setattr(albert_tf, "__version__", "8.0")
    job_directory.claim(str(tmp_path / "run"), {"batch": 6, "shape": (2, 3)})
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(
        f"begun with other versions (albert_tf '{old['albert_tf']}' there, '8.0' here; numpy "
    )
    assert (tmp_path / "run/run.json").read_text() == before


def test_settings_inside_settings_are_named():
    theirs = {"seed": 1, "task": {"kind": "classifier", "labels": [*"abcdefgh"] * 20}}
    ours = {"seed": 1, "task": {**theirs["task"], "min_probability": 0.7}}
    assert describe_difference(theirs, ours) == "task.min_probability None there, 0.7 here"
    many = describe_difference({}, dict.fromkeys("abcdefg", 1))
    assert many.startswith("a None there, 1 here; b ") and many.endswith("; and 2 more")
