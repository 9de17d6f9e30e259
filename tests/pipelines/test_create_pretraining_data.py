import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines import create_pretraining_data as job
from pipelines.data import shard_writer
from pipelines.data.records import Manifest
from pipelines.data.shard_writer import Settings
from tests.conftest import make_text

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Two files of 31 and 17 documents."""
    directory = tmp_path_factory.mktemp("texts")
    (directory / "a.txt").write_text(make_text(31, seed=1), encoding="utf-8")
    (directory / "b.txt").write_text(make_text(17, seed=2), encoding="utf-8")
    return directory


@pytest.fixture
def create(texts, tiny_vocabulary, tmp_path):
    """Runs the job over the texts, with other settings where they are named."""

    def run(
        output="records", input_file=f"{texts}/*.txt", shard_bytes=9000, num_workers=1, **changes
    ) -> Manifest:
        values = {
            "spm_model_file": str(tiny_vocabulary),
            "do_lower_case": True,
            "max_seq_length": 41,
            "short_seq_prob": 0.1,
            "heldout_fraction": 0.2,
            "random_seed": 12345,
            "on_decode_error": "error",
            **changes,
        }
        return job.create_pretraining_data(
            input_file=str(input_file),
            output_dir=str(tmp_path / output),
            settings=Settings(**values),
            shard_bytes=shard_bytes,
            num_workers=num_workers,
        )

    return run


def contents(directory) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file()
    }


def test_manifest_says_what_there_is(create, tmp_path, capsys):
    manifest = create()
    assert manifest == Manifest.read(str(tmp_path / "records"))
    assert (manifest.documents, manifest.max_seq_length, manifest.seed) == (48, 41, 12345)
    assert manifest.splits["train"].examples > manifest.splits["heldout"].examples > 0
    assert manifest.pieces == sum(split.pieces for split in manifest.splits.values())
    shards = manifest.split("train") + manifest.split("heldout")
    for shard in shards:
        content = (tmp_path / "records" / shard.file).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.bytes, shard.sha256)
    found = {name for name in os.listdir(tmp_path / "records") if name.endswith(".tfrecord")}
    assert found == {shard.file for shard in shards}
    shown = capsys.readouterr()
    assert "2 files" in shown.out and "48 documents" in shown.out
    assert "(100 %)" in shown.err


def test_a_finished_job_is_not_done_again(create, tmp_path, monkeypatch, capsys):
    create()
    before = contents(tmp_path)
    monkeypatch.setattr(job.beam_job, "run", None)
    create()
    assert contents(tmp_path) == before
    assert "finished before" in capsys.readouterr().out


def test_goes_on_after_a_crash(create, tmp_path, monkeypatch):
    create()
    records = tmp_path / "records"
    whole = contents(records)
    # As a killed job leaves it: no manifest, a unit without its marker, unfinished files.
    (records / "manifest.json").unlink()
    lost = "00001-of-00005"
    (records / "units" / f"{lost}.json").unlink()
    (records / f"train-{lost}.tfrecord").write_bytes(b"old")
    (records / f".train-{lost}.tfrecord.partial-123").write_bytes(b"half")
    (records / "units" / f".{lost}.json.partial-123").write_bytes(b"half")
    (records / "units" / "error.txt").write_text("the error of then")
    done = []
    write_unit = shard_writer.write_unit
    monkeypatch.setattr(
        shard_writer, "write_unit", lambda unit, *rest: (done.append(unit), write_unit(unit, *rest))
    )
    create()
    assert contents(records) == whole
    assert [unit.name for unit in done] == [lost]


def test_records_do_not_depend_on_the_order_of_units(create, tmp_path, monkeypatch):
    create("forward")
    run = job.beam_job.run
    monkeypatch.setattr(
        job.beam_job, "run", lambda function, units, *rest: run(function, units[::-1], *rest)
    )
    create("backward")
    assert contents(tmp_path / "forward") == contents(tmp_path / "backward")


def test_the_size_of_shards_changes_no_record(create, tmp_path):
    few, many = create("few", shard_bytes=10**6), create("many", shard_bytes=999)
    assert len(many.split("train")) > len(few.split("train")) == 2

    def records(output, manifest, split):
        paths = [tmp_path / output / shard.file for shard in manifest.split(split)]
        return b"".join(path.read_bytes() for path in paths)

    for split in ("train", "heldout"):
        assert records("few", few, split) == records("many", many, split)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 40}, "max_seq_length 41 there, 40 here"),
        ({"random_seed": 1}, "random_seed 12345 there, 1 here"),
        ({"shard_bytes": 8999}, "shard_bytes 9000 there, 8999 here"),
        ({"input_file": "only a"}, "input_file '2 files .*there, '1 files"),
    ],
)
def test_refuses_the_directory_of_another_job(create, texts, changes, message):
    create()
    if "input_file" in changes:
        changes = {"input_file": texts / "a.txt"}
    with pytest.raises(ValueError, match=message):
        create(**changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no text"),
        (b"\n \n\t\r\n", "no text"),
        (b"one\n\ntwo\n\nthr\xe9e\n", r"x.txt:5: byte 0xE9 is not UTF-8"),
        ("text\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_refuses_unusable_text(create, tmp_path, content, message):
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        create(input_file=path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "records" / "manifest.json").exists()
    assert not list((tmp_path / "records").glob("**/.*"))


def test_refuses_missing_files(create):
    with pytest.raises(ValueError, match=r"--input_file: no file matches 'nowhere\.txt'"):
        create(input_file="nowhere.txt")


def test_skipping_may_be_decided_later(create, tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"one\n\ntwo\n\xe9\nthree\n\nfour\n")
    with pytest.raises(ValueError, match="--on_decode_error=skip"):
        create(input_file=path, shard_bytes=5)
    manifest = create(input_file=path, shard_bytes=5, on_decode_error="skip")
    assert (manifest.skipped_lines, manifest.documents, manifest.sentences) == (1, 3, 4)


def test_units_cover_files():
    units = job.plan_units({"a": 25, "b": 0, "c.gz": 31, "d": 10}, shard_bytes=10)
    assert [(unit.source, unit.begin, unit.end) for unit in units] == [
        ("a", 0, 8),
        ("a", 8, 16),
        ("a", 16, 25),
        ("c.gz", 0, 31),
        ("d", 0, 10),
    ]
    assert [unit.name for unit in units][-1] == "00004-of-00005"


def program_command(text, vocabulary, output, *more) -> list[str]:
    return [
        *(sys.executable, "-m", "pipelines.create_pretraining_data"),
        *(f"--input_file={text}", f"--spm_model_file={vocabulary}", f"--output_dir={output}"),
        *("--max_seq_length=41", "--shard_bytes=9000", "--heldout_fraction=0.2", *more),
    ]


def run_program(*arguments) -> subprocess.CompletedProcess:
    command = program_command(*arguments)
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_two_processes_write_the_same_bytes_as_one(create, texts, tiny_vocabulary, tmp_path):
    create("one")
    result = run_program(f"{texts}/*.txt", tiny_vocabulary, tmp_path / "two", "--num_workers=2")
    assert result.returncode == 0, result.stderr
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.slow
def test_errors_in_processes_come_out_as_one_line(texts, tiny_vocabulary, tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes((texts / "a.txt").read_bytes() + b"\n\xe9\n")
    line = path.read_bytes().count(b"\n")
    output = tmp_path / "records"
    result = run_program(path, tiny_vocabulary, output, "--num_workers=2")
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"error: {path}:{line}: byte 0xE9 is not UTF-8"), result.stderr
    assert "Traceback" not in result.stderr
    assert not (output / "manifest.json").exists()
    assert json.loads((output / "run.json").read_text())["max_seq_length"] == 41


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "job"])
def test_a_killed_job_ends_and_goes_on(create, tiny_vocabulary, tmp_path, victim):
    path, output = tmp_path / "x.txt", tmp_path / "killed"
    path.write_text(make_text(3000, seed=3), encoding="utf-8")
    options = {"input_file": path, "shard_bytes": 3000}
    command = program_command(
        path, tiny_vocabulary, output, "--num_workers=2", "--shard_bytes=3000"
    )
    process = subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(output.glob("units/*.json")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    os.kill(int(children.stdout.split()[0]) if victim == "worker" else process.pid, signal.SIGKILL)
    error = process.communicate(timeout=60)[1]
    if victim == "worker":
        assert process.returncode == 2
        assert error.splitlines()[-1].startswith("error: a worker process was killed")
    assert not (output / "manifest.json").exists()
    # The workers of a killed job notice at their next word to it: the last unit may be written yet.
    time.sleep(3)
    assert create("killed", **options) == create("whole", **options)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
