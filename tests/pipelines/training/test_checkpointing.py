"""Damaged, lost and half-written checkpoints beside whole ones of steps 4, 8 and 12.

In the order of names, that of step 12 would be the oldest.
"""

import logging
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import optimization
from albert_tf.checkpoints import model_directory
from albert_tf.storage import files
from pipelines.training.checkpointing import Checkpointer
from tests.builders import raises_one_line
from tests.pipelines.training.test_train_loop import Toy


def make_run(model_dir, **options):
    """Returns a Checkpointer with the model and the optimizer whose state it keeps."""
    tf.keras.utils.set_random_seed(5)
    model = Toy(0.0)
    optimizer = optimization.lamb(0.1)
    optimization.create_slots(optimizer, model)
    return Checkpointer(str(model_dir), model, optimizer, **options), model, optimizer


def stand_at(step, model, optimizer):
    for variable in (*model.variables, *optimizer.variables()[1:]):
        variable.assign(tf.fill(variable.shape, float(step)))
    optimizer.iterations.assign(step)


def save(run, *steps):
    for step in steps:
        stand_at(step, *run[1:])
        run[0].save(step)


def assert_restores(model_dir, step):
    """Returns the run that was restored."""
    checkpointer, model, optimizer = run = make_run(model_dir)
    assert checkpointer.restore() == step
    for variable in (*model.variables, *optimizer.variables()):
        np.testing.assert_array_equal(variable.numpy(), np.full(variable.shape, step))
    return run


def names(model_dir):
    return sorted(path.name for path in (model_dir / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")
    save(make_run(directory), 4, 8, 12)
    return directory


@pytest.fixture
def run_dir(tmp_path, finished):
    return shutil.copytree(finished, tmp_path / "run")


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "garbage": lambda content: np.random.default_rng(2).bytes(len(content)),
    "one bit": lambda content: bytes([*content[:50], content[50] ^ 4, *content[51:]]),
    "behind": lambda content: content.replace(b"ckpt-12", b"ckpt-8"),
}
DATA, INDEX = PARTS = ["data-00000-of-00001", "index"]


def damage(model_dir, kind, *files):
    for name in files:
        path = model_dir / "checkpoints" / name
        if kind == "lost":
            path.unlink()
        else:
            path.write_bytes(DAMAGES[kind](path.read_bytes() if path.exists() else bytes(99)))


@pytest.mark.parametrize(
    ("damages", "expected", "warned"),
    [
        *(({f"ckpt-12.{DATA}": kind}, 8, 1) for kind in ("cut", "one bit", "lost")),
        *(({f"ckpt-12.{INDEX}": kind}, 8, 1) for kind in ("empty", "garbage", "lost")),
        ({f"ckpt-8.{DATA}": "cut", f"ckpt-12.{INDEX}": "garbage"}, 4, 2),
        # TensorFlow's list, which says what the newest one is; here it names one that is not there.
        *(({"checkpoint": kind}, 12, 0) for kind in ("garbage", "behind", "lost")),
        ({f"ckpt-12.{DATA}": "lost", f"ckpt-12.{INDEX}": "lost"}, 8, 0),
        # Killed while the newest was written, and while the oldest was removed.
        ({f"ckpt-16.{DATA}": "garbage"}, 12, 1),
        ({f"ckpt-4.{INDEX}": "lost"}, 12, 0),
    ],
)
def test_the_newest_that_can_be_read_is_restored(run_dir, caplog, damages, expected, warned):
    for name, kind in damages.items():
        damage(run_dir, kind, name)
    if expected == 12 or not warned:
        assert model_directory.find_checkpoint(str(run_dir))[1].endswith(f"ckpt-{expected}")
    run = assert_restores(run_dir, expected)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert sum("is damaged, trying the one before" in message for message in warnings) == warned
    # What the run writes next takes the place of what could not be read.
    save(run, expected + 2)
    assert_restores(run_dir, expected + 2)
    kept = [*range(4, expected + 1, 4), expected + 2][-3:]
    assert names(run_dir) == sorted(["checkpoint", *(f"ckpt-{n}.{p}" for n in kept for p in PARTS)])
    assert model_directory.find_checkpoint(str(run_dir))[1].endswith(f"ckpt-{expected + 2}")
    newest = tf.train.latest_checkpoint(str(run_dir / "checkpoints"))
    assert newest.endswith(f"ckpt-{expected + 2}")


@pytest.mark.parametrize(
    ("kind", "parts", "number"), [("cut", [DATA], 3), ("lost", [INDEX], 3), ("lost", PARTS, 0)]
)
def test_all_damaged_is_an_error_and_no_new_start(run_dir, kind, parts, number):
    damage(run_dir, kind, *(f"ckpt-{step}.{part}" for step in (4, 8, 12) for part in parts))
    before = names(run_dir)
    with raises_one_line(rf"none of the {number} checkpoints in .*"):
        make_run(run_dir)[0].restore()
    assert names(run_dir) == before


def test_a_run_begins_where_no_checkpoint_was_finished(run_dir, tmp_path):
    assert make_run(tmp_path / "new")[0].restore() == 0
    with pytest.raises(ValueError, match="holds no finished checkpoint"):
        model_directory.find_checkpoint(str(tmp_path / "new"))
    # Data without an index, and nothing else.
    directory = tmp_path / "first" / "checkpoints"
    directory.mkdir(parents=True)
    shutil.copy(run_dir / "checkpoints" / f"ckpt-4.{DATA}", directory)
    (directory / "ckpt-4_temp").mkdir()
    run = make_run(tmp_path / "first")
    assert run[0].restore() == 0
    save(run, 4)
    assert_restores(tmp_path / "first", 4)
    assert names(tmp_path / "first") == ["checkpoint", *(f"ckpt-4.{part}" for part in PARTS)]


def test_leftovers_are_removed(run_dir):
    before = names(run_dir)
    directory = run_dir / "checkpoints"
    (directory / "ckpt-16_temp").mkdir()
    (directory / "ckpt-16_temp" / f"part-00000-of-00001.{DATA}").write_bytes(b"1")
    (directory / "ckpt-16.index.tempstate4711").write_bytes(b"2")
    make_run(run_dir, writes=False)[0].restore()
    assert len(names(run_dir)) == len(before) + 2, "not this host's to remove"
    assert_restores(run_dir, 12)
    assert names(run_dir) == before


def test_a_remote_checkpoint_is_uploaded_its_index_last(run_dir, monkeypatch):
    upload, uploaded = files.upload, []

    def recorded(local, remote):
        uploaded.append(os.path.basename(remote))
        upload(local, remote)

    run = make_run(run_dir)
    monkeypatch.setattr(files, "is_remote", lambda path: "/run/checkpoints" in path)
    monkeypatch.setattr(files, "upload", recorded)
    save(run, 16)
    assert uploaded == ["ckpt-16.data-00000-of-00001", "ckpt-16.index"]
    assert_restores(run_dir, 16)
