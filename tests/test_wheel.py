"""The wheel: what it holds, and the main job by its command from another directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.conftest import make_text
from tests.jobs import PROJECT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of what git tracks, as the build leaves files beside the sources."""
    directory = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if not name.startswith("tests/") and (PROJECT / name).exists():
            (directory / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, directory / "source" / name)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    subprocess.run(
        [sys.executable, "-c", build], cwd=directory / "source", capture_output=True, check=True
    )
    [path] = (directory / "source").glob("*.whl")
    return path


def test_it_holds_packages_recipes_and_serving_configs(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"albert_tf/encoder.py", "pipelines/tasks/squad.py", "export/ask.py"} <= names
    recipes = {str(path) for path in (PROJECT / "pipelines/recipes").rglob("*.*")}
    assert {name.removeprefix(f"{PROJECT}/") for name in recipes} <= names
    assert "export/serving/models.config" in names
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"albert_tf", "pipelines", "export"}
    [metadata] = [name for name in names if name.endswith("METADATA")]
    required = zipfile.ZipFile(wheel).read(metadata).decode().splitlines()
    assert any(line.startswith("Requires-Dist: tensorflow-text") for line in required)
    tools = [line for line in required if line.startswith("Requires-Dist: pytest")]
    assert tools and all("extra ==" in line for line in tools)


@pytest.mark.slow
def test_main_job_from_another_directory(wheel, tmp_path):
    """From raw text to an answer."""
    site, home = tmp_path / "site", tmp_path / "home"
    zipfile.ZipFile(wheel).extractall(site)
    home.mkdir()
    (home / "corpus.txt").write_text(make_text(80, seed=3), encoding="utf-8")
    config = {
        "vocab_size": 83,
        "embedding_size": 8,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 32,
    }
    (home / "config.json").write_text(json.dumps(config))
    records = ["--record_dir=records", "--spm_model_file=own.model"]
    programs = {
        "train_vocab": ["--input_file=corpus.txt", "--output_prefix=own", "--vocab_size=83"],
        "create_pretraining_data": [
            *("--input_file=corpus.txt", "--spm_model_file=own.model", "--output_dir=records"),
            *("--max_seq_length=32", "--heldout_fraction=0.2", "--num_workers=2"),
        ],
        "pretrain": [
            *records,
            *("--albert_config=config.json", "--model_dir=model", "--global_batch_size=8"),
            *("--num_train_steps=4", "--num_warmup_steps=1", "--steps_per_loop=2"),
        ],
        "evaluate": ["--checkpoint=model", "--record_dir=records"],
        "export_saved_model": ["--checkpoint=model", "--output=exports"],
        "recipes": [],
        "reproduce": ["--table=parameters"],
        "ask": ["--saved_model=exports", "--fill_mask=The [MASK] is here."],
    }
    for program, flags in programs.items():
        result = subprocess.run(
            [sys.executable, "-m", "albert_tf.command", program, *flags],
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(site), "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, f"{program}: {result.stderr}"
    assert "The [MASK] is here." in result.stdout
