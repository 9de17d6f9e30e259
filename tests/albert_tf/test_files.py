import os
import socket
from pathlib import Path

import pytest

from albert_tf.checkpoints import google, model_directory
from albert_tf.storage import files, versions
from tests.builders import raises_one_line
from tests.jobs import run_code


@pytest.fixture
def as_a_store(monkeypatch):
    monkeypatch.setattr(files, "is_remote", lambda path: True)
    write = files.write_atomically

    def write_in_new_directory(path, content):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write(path, content)

    monkeypatch.setattr(files, "write_atomically", write_in_new_directory)


def test_a_name_that_tensorflow_takes_for_a_pattern_is_refused(tmp_path):
    for name in ("lr[0.1]", "a*", "what?", "a\\b", "runs?/a"):
        with (
            pytest.raises(ValueError, match="for a pattern"),
            files.new_directory(str(tmp_path / name)),
        ):
            raise AssertionError("the block must not begin")
    assert not os.listdir(tmp_path)


def test_directories_are_no_patterns_where_files_are_looked_for(tmp_path):
    directory = tmp_path / "a[1]*"
    directory.mkdir()
    for name in ("ckpt-8.index", "ckpt-8.data-0", "v.model"):
        (directory / name).touch()
    find = lambda *of: [os.path.basename(path) for path in files.find(*of)]  # noqa: E731
    assert find(f"{directory}/", "*.model") == ["v.model"]
    assert find(f"{directory}/ckpt-8", ".*") == ["ckpt-8.data-0", "ckpt-8.index"]
    assert files.find(f"{tmp_path}/none/", "*") == []
    read_google = lambda path: google.read(f"{path}/ckpt-8", path)  # noqa: E731
    for read in (model_directory.find_checkpoint, read_google, versions.load_saved_model):
        with raises_one_line(r"a\[1\]\*.*: TensorFlow mistakes \* \[ in .* without \* \[, or copy"):
            read(str(directory))


def test_a_remote_directory_that_appears_meanwhile_is_left_alone(as_a_store, tmp_path):
    model = tmp_path / "model"
    with (
        pytest.raises(ValueError, match="has appeared meanwhile"),
        files.new_directory(str(model)) as space,
    ):
        Path(space, "a").write_text("ours")
        model.mkdir()
        (model / "theirs").write_text("another job's")
    assert [path.name for path in model.iterdir()] == ["theirs"]


def test_a_killed_upload_is_replaced_and_two_at_once_do_not_both_succeed(as_a_store, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / files.UNFINISHED_FILE).write_text("of a killed call")
    (model / "stale").write_text("of a killed call")
    with files.new_directory(str(model)) as space:
        Path(space, "a").write_text("whole")
    assert [path.name for path in model.iterdir()] == ["a"]
    (model / files.UNFINISHED_FILE).write_text("of a killed call")
    with (
        pytest.raises(ValueError, match="another call has written to"),
        files.new_directory(str(model)) as first,
    ):
        Path(first, "a").write_text("first")
        upload = files.upload_directory

        def overtaken(local, remote):
            files.upload_directory = upload
            with files.new_directory(remote) as second:
                Path(second, "a").write_text("second")
            upload(local, remote)

        files.upload_directory = overtaken


def test_what_killed_processes_left_beside_a_directory_is_removed(tmp_path):
    program = (
        "import os, sys; from albert_tf.storage import files; "
        "block = files.new_directory(sys.argv[1]); "
        "partial = block.__enter__(); os.mkdir(partial); open(partial + '/file', 'w').close(); "
        "os.kill(os.getpid(), 9)"
    )
    run_code(program, str(tmp_path / "model"), exit_code=-9)
    [left] = os.listdir(tmp_path)
    assert left.startswith(".model.partial-")
    alive = tmp_path / f".model.partial-{socket.gethostname()}-{os.getppid()}-1"
    elsewhere = tmp_path / f".model.partial-{socket.gethostname()}-2-{2**22}-1"  # another host
    for directory in (alive, elsewhere):
        directory.mkdir()
    (tmp_path / ".model2.partial-x").mkdir()
    with files.new_directory(str(tmp_path / "model")) as space:
        os.mkdir(space)
    assert {*os.listdir(tmp_path)} == {"model", elsewhere.name, ".model2.partial-x", alive.name}
