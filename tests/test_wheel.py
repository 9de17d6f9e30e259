"""The wheel: what it holds, and the main job by its command from another directory."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.builders import tiny_config
from tests.conftest import make_text
from tests.jobs import PROJECT, pretrain_flags, record_flags, run_code

# Those in which an installation is tried, each in an environment of its own.
PYTHONS = os.environ.get("ALBERT_TF_PYTHONS", "").split()


def run(*command, cwd=None, **variables):
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    environment.update(variables)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of what git tracks, as the build leaves files beside the sources."""
    directory = tmp_path_factory.mktemp("wheel")
    for name in run("git", "ls-files", cwd=PROJECT).stdout.splitlines():
        if not name.startswith("tests/") and (PROJECT / name).exists():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, directory / name)
    build = "from setuptools import build_meta; build_meta.build_wheel('.')"
    run(sys.executable, "-c", build, cwd=directory)
    [path] = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(directory)
    return directory


def test_it_holds_packages_and_serving_configs(wheel):
    """Under one top-level name: `pipelines` and `export` are names that other teams use."""
    names = zipfile.ZipFile(wheel).namelist()
    globs = ("albert_tf/**/*.py", "pipelines/**/*.py", "export/**/*.py", "export/serving/*.*")
    files = {path.relative_to(PROJECT).as_posix() for glob in globs for path in PROJECT.glob(glob)}
    assert {f"albert_tf/{name.removeprefix('albert_tf/')}" for name in files} <= set(names)
    # PEP 561: without this file a type checker takes all of the package for Any.
    assert "albert_tf/py.typed" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"albert_tf"}
    [metadata] = [name for name in names if name.endswith("METADATA")]
    required = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "\nRequires-Dist: tensorflow-text" in required and "Dist: pytest" not in required


def main_job(home):
    """Writes what the main job reads; returns the commands of `albert` from text to an answer."""
    home.mkdir()
    for name in ("pipelines", "export"):  # names that a checkout has
        (home / f"{name}.py").write_text("raise ImportError('of another project')")
    rows = [f"the {('door', 'house')[i % 2]} number {i} is open,{'ab'[i % 2]}\n" for i in range(40)]
    (home / "table.csv").write_text("text,label\n" + "".join(rows))
    (home / "corpus.txt").write_text(make_text(80, seed=3), encoding="utf-8")
    tiny_config(vocab_size=83).write(str(home / "config.json"))
    return {
        "train_vocab": ["--input_file=corpus.txt", "--output_prefix=vocabulary", "--vocab_size=83"],
        "create_pretraining_data": [*record_flags(".", "records"), "--num_workers=2"],
        "pretrain": [*pretrain_flags(".", "model"), "--num_train_steps=4"],
        "evaluate": ["--checkpoint=model", "--record_dir=records"],
        "finetune": [
            *"--task=classification --train_file=table.csv --dev_fraction=0.2".split(),
            *"--text_column=text --label_column=label --init_checkpoint=model".split(),
            *"--num_epochs=1 --global_batch_size=8".split(),
            "--output_dir=fine_tuned",
        ],
        "export_saved_model": ["--checkpoint=model", "--output=exports"],
        "ask": ["--saved_model=exports", "--text=The [MASK] is here."],
    }


# The process that is forked has imported the checkout.
HELP = """
import runpy, sys
for name in list(sys.modules):
    if name.partition(".")[0] == "albert_tf":
        del sys.modules[name]
_, site, module = sys.argv
sys.path.insert(0, site)
sys.argv = [module, "--help"]
runpy.run_module(module, None, "__main__", alter_sys=True)
"""


def test_programs_are_modules_of_albert_tf(site):
    out, _ = run_code(HELP, str(site), "albert_tf.pipelines.train_vocab")
    assert "\n  albert train_vocab --input_file" in out and "python -m" not in out
    assert run_code(HELP, str(site), "albert_tf.jobs.command")[0].count("\n  ") == 14


@pytest.mark.slow
def test_main_job_from_another_directory(site, tmp_path):
    home = tmp_path / "home"
    albert = [sys.executable, "-m", "albert_tf.jobs.command"]
    for program, flags in main_job(home).items():
        done = run(*albert, program, *flags, cwd=home, PYTHONPATH=str(site))
    assert "The [MASK] is here." in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not PYTHONS, reason="ALBERT_TF_PYTHONS is not set")
@pytest.mark.parametrize("python", PYTHONS)
def test_installed_in_an_empty_environment(python, wheel, tmp_path):
    """`pip install WHEEL`, then the main job. test_other_stack.py resumes runs of other Pythons."""
    own, home = tmp_path / "env/bin/python", tmp_path / "home"
    run(python, "-m", "venv", tmp_path / "env")
    run(own, "-m", "pip", "install", "--quiet", wheel)
    run(own, "-m", "pip", "check")
    for program, flags in main_job(home).items():
        done = run(tmp_path / "env/bin/albert", program, *flags, cwd=home)
    assert "The [MASK] is here." in done.stdout


@pytest.mark.slow
def test_make_install_serves_every_directory(wheel, tmp_path):
    build = f"from setuptools import build_meta; build_meta.build_editable({str(tmp_path)!r})"
    run(sys.executable, "-c", build, cwd=wheel.parent)
    [path] = tmp_path.glob("*.whl")
    zipfile.ZipFile(path).extractall(tmp_path)
    # Without the installation that `make test` made in this environment.
    code = f"""
import site, sys
sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", "")]
for name in [name for name in sys.modules if name.startswith("__editable__")]:
    del sys.modules[name]
sys.path.insert(0, {str(tmp_path)!r})
site.addsitedir({str(tmp_path)!r})
import importlib.util
print(importlib.util.find_spec("albert_tf.pipelines.predict").origin)
"""
    done = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH="")
    assert done.stdout.strip() == str(wheel.parent / "pipelines/predict.py")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "lines"),
    [("-m pipelines.finetune --help", 2, 1), ("-c import\talbert_tf", 1, None)],
)
def test_without_the_environment_one_line(arguments, exit_code, lines):
    command = [sys.executable, "-S", *arguments.split(" ")]  # -S: no site-packages
    done = subprocess.run(command, cwd=PROJECT, env={}, capture_output=True, text=True)
    shown = done.stderr.splitlines()
    assert done.returncode == exit_code and len(shown) == (lines or len(shown))
    assert "No module named 'absl'" in shown[-1] and "make install" in shown[-1]
