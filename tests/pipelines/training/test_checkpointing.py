"""Checkpoints that are damaged, lost, half written or half removed: what a restart makes of them.

Each case is made of a directory with finished checkpoints of steps 4, 8 and 12.
"""

from __future__ import annotations

import logging
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import optimization
from albert_tf.checkpoints import model_directory
from albert_tf.jobs import program
from albert_tf.models import AlbertForPreTraining
from pipelines.training.checkpointing import Checkpointer
from tests.builders import tiny_config


def make_run(model_dir, loss_scale=False, **options):
    """Returns a Checkpointer with the model and the optimizer whose state it keeps."""
    tf.keras.utils.set_random_seed(5)
    model = AlbertForPreTraining(tiny_config())
    model.create_variables()
    optimizer = optimization.lamb(0.1)
    optimization.create_slots(optimizer, model)
    if loss_scale:
        optimization.add_loss_scale(optimizer)
    return Checkpointer(str(model_dir), model, optimizer, **options), model, optimizer


def stand_at(step, model, optimizer):
    """Gives every variable a value that tells the step."""
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


def steps_of(model_dir):
    return sorted(int(name[5:-6]) for name in names(model_dir) if name.endswith(".index"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")
    save(make_run(directory), 4, 8, 12)
    return directory


@pytest.fixture
def run_dir(tmp_path, finished):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def warnings(caplog):
    """What is logged as a warning."""
    return lambda: [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.PermissionDeniedError(None, None, "HTTP response code 403 at gs://bucket/a"),
        # What a reader of checkpoints raises, without the class of its code.
        tf.errors.OpError(
            None, None, "All 10 retry attempts failed. The last failure: 503 at gs://bucket/a", 2
        ),
    ],
)
def test_a_store_that_fails_is_no_damage(run_dir, monkeypatch, error):
    def fail(*_):
        raise error

    run = make_run(run_dir)
    before = names(run_dir)
    with monkeypatch.context() as patch:
        patch.setattr(tf.train.Checkpoint, "read", fail)
        with pytest.raises(tf.errors.OpError) as raised:
            run[0].restore()
    assert program.is_user_error(raised.value)
    assert names(run_dir) == before
    assert run[0].restore() == 12


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def garbage(path):
    path.write_bytes(np.random.default_rng(2).bytes(path.stat().st_size))


def one_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


def lost(path):
    path.unlink()


PARTS = ["data-00000-of-00001", "index"]


def damage_files(model_dir, damage, part, *steps):
    for step in steps:
        damage(model_dir / "checkpoints" / f"ckpt-{step}.{part}")


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        *((damage, PARTS[0]) for damage in (cut, zeros, one_bit, lost)),
        *((damage, PARTS[1]) for damage in (empty, garbage, one_bit, lost)),
    ],
)
def test_a_damaged_checkpoint_falls_back_with_a_warning(run_dir, warnings, damage, part):
    damage_files(run_dir, damage, part, 12)
    run = assert_restores(run_dir, 8)
    [warning] = warnings()
    assert "ckpt-12 is damaged, trying the one before" in warning
    # What the run writes next takes the place of what could not be read.
    save(run, 10)
    assert_restores(run_dir, 10)
    assert steps_of(run_dir) == [4, 8, 10]
    assert model_directory.find_checkpoint(str(run_dir))[1].endswith("ckpt-10")


def test_two_damaged_ones(run_dir, warnings):
    damage_files(run_dir, cut, PARTS[0], 8)
    damage_files(run_dir, garbage, PARTS[1], 12)
    assert_restores(run_dir, 4)
    assert len(warnings()) == 2


@pytest.mark.parametrize(("damage", "part"), [(zeros, PARTS[0]), (lost, PARTS[1])])
def test_all_damaged_is_an_error_and_no_new_start(run_dir, damage, part):
    damage_files(run_dir, damage, part, 4, 8, 12)
    before = names(run_dir)
    with pytest.raises(ValueError, match=r"none of the 3 checkpoints in .* can be read") as error:
        make_run(run_dir)[0].restore()
    assert program.is_user_error(error.value)
    assert names(run_dir) == before


class TestListOfCheckpoints:
    """TensorFlow's file `checkpoint`, which says what the newest one is."""

    @pytest.mark.parametrize("damage", [empty, garbage, lost])
    def test_lost_or_damaged(self, run_dir, damage):
        damage(run_dir / "checkpoints" / "checkpoint")
        assert model_directory.find_checkpoint(str(run_dir))[1].endswith("ckpt-12")
        assert_restores(run_dir, 12)
        run = make_run(run_dir)
        assert run[0].restore() == 12
        save(run, 16)
        assert steps_of(run_dir) == [8, 12, 16]
        assert tf.train.latest_checkpoint(str(run_dir / "checkpoints")).endswith("ckpt-16")

    def test_names_a_removed_checkpoint(self, run_dir):
        for path in (run_dir / "checkpoints").glob("ckpt-12.*"):
            path.unlink()
        assert model_directory.find_checkpoint(str(run_dir))[1].endswith("ckpt-8")
        assert_restores(run_dir, 8)

    def test_all_checkpoints_are_gone(self, run_dir):
        for path in (run_dir / "checkpoints").glob("ckpt-*"):
            path.unlink()
        with pytest.raises(ValueError, match="none of the 0 checkpoints"):
            make_run(run_dir)[0].restore()

    def test_is_behind_after_a_kill(self, run_dir, finished):
        run = make_run(run_dir)
        run[0].restore()
        save(run, 16)
        shutil.copy(finished / "checkpoints" / "checkpoint", run_dir / "checkpoints")
        assert_restores(run_dir, 16)


class TestKilledWhileWriting:
    def test_before_the_first_was_finished(self, run_dir, tmp_path):
        """Data without an index, and nothing else: the run begins."""
        directory = tmp_path / "first" / "checkpoints"
        directory.mkdir(parents=True)
        shutil.copy(run_dir / "checkpoints" / f"ckpt-4.{PARTS[0]}", directory)
        (directory / "ckpt-4_temp").mkdir()
        run = make_run(tmp_path / "first")
        assert run[0].restore() == 0
        save(run, 4)
        assert_restores(tmp_path / "first", 4)
        assert names(tmp_path / "first") == ["checkpoint", f"ckpt-4.{PARTS[0]}", "ckpt-4.index"]

    def test_leftovers_are_removed(self, run_dir):
        before = names(run_dir)
        directory = run_dir / "checkpoints"
        (directory / "ckpt-16_temp").mkdir()
        (directory / "ckpt-16_temp" / "part-00000-of-00001.data-00000-of-00001").write_bytes(b"1")
        (directory / "ckpt-16.index.tempstate4711").write_bytes(b"2")
        make_run(run_dir, writes=False)[0].restore()
        assert len(names(run_dir)) == len(before) + 2, "not this host's to remove"
        assert_restores(run_dir, 12)
        assert names(run_dir) == before

    def test_data_without_index_are_overwritten(self, run_dir):
        content = os.urandom(1000)
        (run_dir / "checkpoints" / "ckpt-16.data-00000-of-00001").write_bytes(content)
        assert model_directory.find_checkpoint(str(run_dir))[1].endswith("ckpt-12")
        run = make_run(run_dir)
        assert run[0].restore() == 12
        save(run, 16)
        assert_restores(run_dir, 16)
        assert steps_of(run_dir) == [8, 12, 16]

    def test_while_the_oldest_was_removed(self, run_dir):
        (run_dir / "checkpoints" / "ckpt-4.index").unlink()
        run = make_run(run_dir)
        assert run[0].restore() == 12
        save(run, 16)
        assert not list((run_dir / "checkpoints").glob("ckpt-4.*"))
        assert steps_of(run_dir) == [8, 12, 16]


def test_only_the_newest_are_kept_across_restarts(tmp_path):
    for step in (3, 5, 100, 20_000):
        run = make_run(tmp_path, max_to_keep=2)
        run[0].restore()
        save(run, step)
    assert steps_of(tmp_path) == [100, 20_000]
    run = make_run(tmp_path, max_to_keep=1)
    assert run[0].restore() == 20_000
    save(run, 20_001)
    assert names(tmp_path) == [
        "checkpoint",
        "ckpt-20001.data-00000-of-00001",
        "ckpt-20001.index",
    ]


def test_best_weights_stay_alone(tmp_path):
    run = make_run(tmp_path)
    for step in (4, 12):
        stand_at(step, *run[1:])
        run[0].save_best(step)
    again = make_run(tmp_path)
    stand_at(16, *again[1:])
    again[0].save_best(16)
    assert [path.name for path in (tmp_path / "best").glob("*.index")] == ["ckpt-16.index"]
    model_directory.restore_weights(run[1], str(tmp_path / "best" / "ckpt-16"))
    assert float(run[1].variables[0][0, 0]) == 16
    assert names_in_checkpoint(tmp_path / "best" / "ckpt-16") == {"model", "_CHECKPOINTABLE"}


def names_in_checkpoint(path):
    shapes = tf.train.load_checkpoint(str(path)).get_variable_to_shape_map()
    return {name.split("/")[0].split("_OBJECT")[0] for name in shapes}


def test_checkpoints_with_a_save_counter_are_read(tmp_path):
    """Those of tf.train.Checkpoint.save and tf.train.CheckpointManager."""
    _, model, optimizer = make_run(tmp_path)
    stand_at(7, model, optimizer)
    tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=optimizer),
        str(tmp_path / "checkpoints"),
        max_to_keep=3,
        checkpoint_name="ckpt",
    ).save(checkpoint_number=7)
    assert_restores(tmp_path, 7)
    stand_at(0, model, optimizer)
    model_directory.restore_weights(model, model_directory.find_checkpoint(str(tmp_path))[1])
    assert float(model.variables[0][0, 0]) == 7


def test_nothing_there_is_the_beginning(tmp_path):
    assert make_run(tmp_path / "new")[0].restore() == 0
    with pytest.raises(ValueError, match="no model directory or checkpoint"):
        model_directory.find_checkpoint(str(tmp_path / "new"))
