import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import grpc
import pytest

from pipelines.data import beam_job
from pipelines.data.beam_job import Workers
from tests.builders import raises_one_line
from tests.jobs import PROJECT, wait_for


@pytest.mark.parametrize("runner", ["DirectRunner", "BundleBasedDirectRunner"])
def test_every_unit_is_done(tmp_path, runner):
    names = [f"unit-{i}" for i in range(23)]
    beam_job.run(lambda name: (tmp_path / name).touch(), names, Workers(runner, 1))
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    beam_job.run(lambda unit: 1 / 0, [], Workers("NoSuchRunner"))


def test_what_is_not_installed_is_one_line():
    google = "--project=my-project --region=europe-west1 --temp_location=gs://bucket/tmp"
    for runner, options, message in (
        ("DataflowRunner", google, r"please install apache_beam\[gcp\]"),
        ("no.such.Runner", "", "No module named 'no'; expected a runner of Apache Beam, or MODULE"),
    ):
        if "gcp" in message and importlib.util.find_spec("google.api_core"):
            continue  # apache-beam[gcp] is installed
        with raises_one_line(f"--runner={runner}.*: .*{message}"):
            beam_job.run(print, ["a"], Workers(runner, 1, options))
        assert logging.root.manager.disable == logging.NOTSET


@pytest.mark.parametrize("end", [ZeroDivisionError, KeyboardInterrupt])
def test_what_ends_a_unit_comes_out_and_logging_comes_back(end):
    def ended(_):
        raise end("why")

    with pytest.raises(end, match="why"):
        beam_job.run(ended, ["a", "b", "c"], Workers(num_workers=1))
    assert logging.root.manager.disable == logging.NOTSET


def test_threads_that_fail_after_a_killed_worker_print_nothing(monkeypatch):
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    monkeypatch.setattr(beam_job.atexit, "register", lambda *_: None)

    def fail(error):
        raise error

    def fail_in_thread(error):
        thread = threading.Thread(target=fail, args=[error])
        thread.start()
        thread.join()

    killed = RuntimeError("Worker subprocess exited with return code -9")
    with raises_one_line("a worker process was killed"):
        beam_job._run_in_thread(lambda: fail_in_thread(killed))
    fail_in_thread(grpc.RpcError())
    assert not printed


# Each unit names its worker. The first one then sends a SIGTERM to the job, and dies.
JOB = """
import os, pathlib, signal, sys, time
from pipelines.data import beam_job

def work(unit):
    pathlib.Path(f"worker-{os.getpid()}").touch()
    time.sleep(float(os.environ["SECONDS"]))
    if unit == 0:
        os.kill(os.getppid(), signal.SIGTERM)
        os._exit(1)

signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
beam_job.prepare_environment()
beam_job.run(work, range(9), beam_job.Workers(num_workers=2))
"""


def start(seconds, directory):
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "SECONDS": seconds}
    how = {"cwd": directory, "env": environment, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", JOB], **how)


@pytest.mark.slow
def test_a_signal_is_the_end_not_the_worker_that_dies_of_it(tmp_path):
    assert start("1", tmp_path).wait(timeout=300) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_workers_do_not_outlive_their_job(tmp_path):
    """Else they would write beside the job that is started again after a kill."""
    process = start("600", tmp_path)
    try:
        wait_for(lambda: len(list(tmp_path.glob("worker-*"))) == 2, [process], timeout=60)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    pids = [path.name.removeprefix("worker-") for path in tmp_path.glob("worker-*")]
    deadline = time.monotonic() + 2  # by itself Beam takes three seconds
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, "the workers still run"
        time.sleep(0.1)


def is_running(pid: str) -> bool:
    """A zombie that nobody has waited for does nothing any more."""
    status = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True)
    return status.stdout.strip()[:1] not in ("", "Z")
