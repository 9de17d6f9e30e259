import functools
import importlib.util
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from albert_tf.storage.errors import UserError
from pipelines.data import beam_job

PROJECT = Path(__file__).resolve().parents[3]


def touch(directory: str, name: str) -> None:
    (Path(directory) / name).touch()


@pytest.mark.parametrize("runner", ["DirectRunner", "BundleBasedDirectRunner"])
def test_every_unit_is_done(tmp_path, runner):
    names = [f"unit-{i}" for i in range(23)]
    beam_job.run(functools.partial(touch, str(tmp_path)), names, runner, 1, [])
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    beam_job.run(lambda unit: 1 / 0, [], "NoSuchRunner", 1, [])


def test_a_failing_unit_comes_out_and_logging_comes_back(tmp_path):
    with pytest.raises(Exception, match="No such file or directory"):
        work = functools.partial(touch, str(tmp_path / "nowhere"))
        beam_job.run(work, ["a", "b", "c"], "DirectRunner", 1, [])
    assert logging.root.manager.disable == logging.NOTSET


WHEEL = ["--temp_location=gs://albert_tf-b/tmp", "--extra_package=dist/albert_tf-1.whl"]


@pytest.mark.parametrize(
    ("runner", "options", "message"),
    [
        # Workers would find no `pipelines.data`: the wheel has albert_tf.pipelines.
        ("DirectRunner", WHEEL, r"=--extra_package=dist/albert_tf-1\.whl: .* install the"),
        ("DataflowRunner", [], r"needs apache-beam\[gcp\] .*pip install 'albert_tf\[dataflow\]'"),
        ("no.such.Runner", [], "No module named 'no'; expected a runner of Apache Beam, or MODULE"),
    ],
)
def test_what_is_not_installed_is_one_line(runner, options, message):
    if runner == "DataflowRunner" and importlib.util.find_spec("google.api_core"):
        pytest.skip("apache-beam[gcp] is installed")
    with pytest.raises(UserError, match=message) as error:
        beam_job.run(print, ["a"], runner, 1, options)
    assert "\n" not in str(error.value)
    assert logging.root.manager.disable == logging.NOTSET


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)], ids=type)
def test_an_interrupt_in_this_process_is_no_fault_of_the_job(end):
    def interrupted(_):
        raise end

    with pytest.raises(type(end)) as error:
        beam_job.run(interrupted, ["a"], "DirectRunner", 1, [])
    assert getattr(error.value, "code", None) == getattr(end, "code", None)


_PARENT = """
import os, pathlib, time
from pipelines.data import beam_job

def work(unit):
    pathlib.Path(f"worker-{os.getpid()}").touch()
    time.sleep(600)

beam_job.prepare_environment()
beam_job.run(work, range(7), "DirectRunner", 2, [])
"""


@pytest.mark.slow
def test_workers_do_not_outlive_their_job(tmp_path):
    """Else they would write beside the job that is started again after a kill."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while len(workers := list(tmp_path.glob("worker-*"))) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    pids = [int(path.name.removeprefix("worker-")) for path in workers]
    deadline = time.monotonic() + 2  # by itself Beam takes three seconds
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "the workers still run"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody has waited for does nothing any more.
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return not status.stdout.strip().startswith("Z") and bool(status.stdout.strip())
