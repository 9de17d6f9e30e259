"""A full disk and killed processes: the records are those of an undisturbed job, byte for byte."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.data.records import Manifest
from tests import builders, jobs
from tests.builders import raises_one_line
from tests.conftest import make_text
from tests.jobs import PROJECT, finish
from tests.pipelines.data.small_records import contents, create_records


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Two files of 1,700 and 300 documents, of which 100 are also in the first; some 1.4 MB."""
    directory = tmp_path_factory.mktemp("corpus")
    text = make_text(1700, seed=1)
    copies = "\n\n".join(text.split("\n\n")[:100]).upper()
    (directory / "a.txt").write_text(text, encoding="utf-8")
    (directory / "b.txt").write_text(f"{make_text(200, seed=2)}\n{copies}", encoding="utf-8")
    return directory


def create(corpus, vocabulary, output) -> None:
    with builders.units_in_this_process():
        create_records(f"{corpus}/*.txt", output, vocabulary, 9000, remove_duplicates=True)


@pytest.fixture(scope="module")
def undisturbed(corpus, tiny_vocabulary, tmp_path_factory) -> dict[str, bytes]:
    """The files that a job leaves to which nothing happens."""
    output = tmp_path_factory.mktemp("undisturbed")
    create(corpus, tiny_vocabulary, output)
    assert Manifest.read(str(output)).duplicate_documents == 100
    return contents(output)


def finished_shards(output, undisturbed) -> dict[str, int]:
    """Returns the inodes of the files with a final name, all of which must be whole."""
    inodes = {}
    for path in Path(output).rglob("[!.]*-of-*"):
        name = str(path.relative_to(output))
        assert path.read_bytes() == undisturbed[name], name
        inodes[name] = path.stat().st_ino
    return inodes


def done_units(output, undisturbed) -> dict[str, int]:
    """Returns the finished files of units with a marker: they are not done again."""
    inodes = finished_shards(output, undisturbed)
    done = [".hashes", *(Path(name).stem for name in inodes if name.endswith(".json"))]
    return {name: inode for name, inode in inodes.items() if any(part in name for part in done)}


def start(corpus, vocabulary, output, *more):
    return jobs.start(
        "pipelines.create_pretraining_data",
        *(f"--input_file={corpus}/*.txt", f"--spm_model_file={vocabulary}"),
        *(f"--output_dir={output}", "--max_seq_length=41", "--shard_bytes=9000"),
        *("--heldout_fraction=0.2", "--remove_duplicates", *more),
    )


def wait_for_files(directory, pattern, count, process) -> None:
    jobs.wait_for(lambda: len(list(directory.glob(pattern))) >= count, [process])
    assert process.poll() is None, process.communicate()[1]


@contextlib.contextmanager
def small_disk(directory, kilobytes):
    """A file system of its own that is soon full."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(directory)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_nothing(corpus, tiny_vocabulary, undisturbed, tmp_path):
    with small_disk(tmp_path / "disk", 700) as disk:
        output = disk / "records"
        with raises_one_line("the disk is full: free space at .*/records.*, then run"):
            create(corpus, tiny_vocabulary, output)
        assert not list(output.rglob(".*"))
        before = done_units(output, undisturbed)
        assert 20 < len(before) < len(undisturbed)
        subprocess.run(["mount", "-o", "remount,size=8000k", str(disk)], check=True)
        create(corpus, tiny_vocabulary, output)
        assert contents(output) == undisturbed
        assert before.items() <= finished_shards(output, undisturbed).items()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_job_resumes(corpus, tiny_vocabulary, undisturbed, tmp_path, seed, monkeypatch):
    """Killed with SIGKILL at two moments, and started again at once."""
    # A company's proxy must not get the calls between the processes of this machine.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    rng = random.Random(seed)
    units = sum(name.endswith(".json") for name in undisturbed) - 2
    for kind, share in (("hashes", rng.random()), ("json", 0.8 * rng.random())):
        process = start(corpus, tiny_vocabulary, tmp_path, "--num_workers=2")
        wait_for_files(tmp_path, f"units/*-of-*.{kind}", int(share * units) + 1, process)
        process.kill()
        finish(process, -signal.SIGKILL)
        assert not (tmp_path / "manifest.json").exists()
        before = done_units(tmp_path, undisturbed)
    finish(start(corpus, tiny_vocabulary, tmp_path, "--num_workers=2"))
    assert contents(tmp_path) == undisturbed
    assert len(before) > 10
    assert before.items() <= finished_shards(tmp_path, undisturbed).items()


@pytest.mark.slow
def test_a_killed_worker_ends_the_job_which_resumes(corpus, tiny_vocabulary, undisturbed, tmp_path):
    process = start(corpus, tiny_vocabulary, tmp_path, "--num_workers=2")
    wait_for_files(tmp_path, "units/*.json", 1, process)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
    _, error = finish(process, 2)
    assert error.splitlines()[-1].startswith("error: a worker process was killed")
    assert not (tmp_path / "manifest.json").exists()
    before = done_units(tmp_path, undisturbed)
    create(corpus, tiny_vocabulary, tmp_path)
    assert contents(tmp_path) == undisturbed
    assert before.items() <= finished_shards(tmp_path, undisturbed).items()


@contextlib.contextmanager
def dask_cluster(directory, workers):
    """Dask's scheduler and worker processes of one thread each on this machine."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "CUDA_VISIBLE_DEVICES": "-1"}
    dask = [sys.executable, "-m", "dask"]
    file = f"--scheduler-file={directory}/scheduler.json"
    worker = ["worker", file, "--no-nanny", "--nthreads=1", "--no-dashboard"]
    commands = [["scheduler", file, "--host=127.0.0.1", "--port=0", "--no-dashboard"]]
    commands += [worker] * workers
    processes = []
    try:
        for command in commands:
            process = subprocess.Popen(
                [*dask, *command], cwd=directory, env=environment, stderr=subprocess.DEVNULL
            )
            processes.append(process)
        yield file.removeprefix("--scheduler-file="), processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.extras("distributed")
@pytest.mark.parametrize("kill", [False, True])
def test_on_dask_also_when_a_worker_dies(corpus, tiny_vocabulary, undisturbed, tmp_path, kill):
    output = tmp_path / "records"
    with dask_cluster(tmp_path, workers=2) as (scheduler_file, workers):
        process = start(
            *(corpus, tiny_vocabulary, output),
            "--runner=apache_beam.runners.dask.dask_runner.DaskRunner",
            f"--beam_options=--dask_scheduler_file={scheduler_file} --dask_partition_size=1",
        )
        if kill:
            wait_for_files(output, "units/*.json", 21, process)
            workers[0].kill()
            left = len(undisturbed) - len(contents(output))
            assert left > 100
        finish(process)
        assert workers[1].poll() is None
    assert contents(output) == undisturbed
