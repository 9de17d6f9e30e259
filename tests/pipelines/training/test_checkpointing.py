"""Checkpoints that are damaged, lost, half written or half removed: what a restart makes of them.

Each case is made of a directory with finished checkpoints of steps 4, 8 and 12.
"""

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


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "garbage": lambda content: np.random.default_rng(2).bytes(len(content)),
    "one bit": lambda content: bytes([*content[:50], content[50] ^ 4, *content[51:]]),
}


PARTS = ["data-00000-of-00001", "index"]


def damage(path, kind):
    if kind == "lost":
        path.unlink()
    else:
        path.write_bytes(DAMAGES[kind](path.read_bytes()))


def damage_checkpoints(model_dir, kind, part, *steps):
    for step in steps:
        damage(model_dir / "checkpoints" / f"ckpt-{step}.{part}", kind)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        *((kind, PARTS[0]) for kind in ("cut", "zeros", "one bit", "lost")),
        *((kind, PARTS[1]) for kind in ("empty", "garbage", "one bit", "lost")),
    ],
)
def test_a_damaged_checkpoint_falls_back_with_a_warning(run_dir, warnings, kind, part):
    damage_checkpoints(run_dir, kind, part, 12)
    run = assert_restores(run_dir, 8)
    [warning] = warnings()
    assert "ckpt-12 is damaged, trying the one before" in warning
    # What the run writes next takes the place of what could not be read.
    save(run, 10)
    assert_restores(run_dir, 10)
    assert steps_of(run_dir) == [4, 8, 10]
    assert model_directory.find_checkpoint(str(run_dir))[1].endswith("ckpt-10")


def test_two_damaged_ones(run_dir, warnings):
    damage_checkpoints(run_dir, "cut", PARTS[0], 8)
    damage_checkpoints(run_dir, "garbage", PARTS[1], 12)
    assert_restores(run_dir, 4)
    assert len(warnings()) == 2


@pytest.mark.parametrize(("kind", "part"), [("zeros", PARTS[0]), ("lost", PARTS[1])])
def test_all_damaged_is_an_error_and_no_new_start(run_dir, kind, part):
    damage_checkpoints(run_dir, kind, part, 4, 8, 12)
    before = names(run_dir)
    with pytest.raises(ValueError, match=r"none of the 3 checkpoints in .* can be read") as error:
        make_run(run_dir)[0].restore()
    assert program.is_user_error(error.value)
    assert names(run_dir) == before


class TestListOfCheckpoints:
    """TensorFlow's file `checkpoint`, which says what the newest one is."""

    @pytest.mark.parametrize("kind", ["empty", "garbage", "lost"])
    def test_lost_or_damaged(self, run_dir, kind):
        damage(run_dir / "checkpoints" / "checkpoint", kind)
        assert model_directory.find_checkpoint(str(run_dir))[1].endswith("ckpt-12")
        save(assert_restores(run_dir, 12), 16)
        assert steps_of(run_dir) == [8, 12, 16]
        assert tf.train.latest_checkpoint(str(run_dir / "checkpoints")).endswith("ckpt-16")

    def test_names_removed_checkpoints(self, run_dir):
        for path in (run_dir / "checkpoints").glob("ckpt-12.*"):
            path.unlink()
        assert model_directory.find_checkpoint(str(run_dir))[1].endswith("ckpt-8")
        assert_restores(run_dir, 8)
        for path in (run_dir / "checkpoints").glob("ckpt-*"):
            path.unlink()
        with pytest.raises(ValueError, match="none of the 0 checkpoints"):
            make_run(run_dir)[0].restore()

    def test_is_behind_after_a_kill(self, run_dir, finished):
        save(assert_restores(run_dir, 12), 16)
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

    @pytest.mark.parametrize("killed", ["writing the newest", "removing the oldest"])
    def test_half_a_checkpoint_is_no_checkpoint(self, run_dir, killed):
        if killed == "writing the newest":
            (run_dir / "checkpoints" / f"ckpt-16.{PARTS[0]}").write_bytes(os.urandom(1000))
        else:
            (run_dir / "checkpoints" / "ckpt-4.index").unlink()
        assert model_directory.find_checkpoint(str(run_dir))[1].endswith("ckpt-12")
        save(assert_restores(run_dir, 12), 16)
        assert_restores(run_dir, 16)
        assert steps_of(run_dir) == [8, 12, 16]
        assert not list((run_dir / "checkpoints").glob("ckpt-4.*"))


def test_only_the_newest_are_kept_across_restarts(tmp_path):
    before = 0
    for step, max_to_keep in ((3, 2), (5, 2), (100, 2), (20_000, 2), (20_001, 1)):
        run = make_run(tmp_path, max_to_keep=max_to_keep)
        assert run[0].restore() == before
        save(run, step)
        before = step
        if step == 20_000:
            assert steps_of(tmp_path) == [100, 20_000]
    assert names(tmp_path) == ["checkpoint", *[f"ckpt-20001.{part}" for part in PARTS]]


def test_best_weights_stay_alone(tmp_path):
    for step in (4, 12, 16):
        run = make_run(tmp_path)
        stand_at(step, *run[1:])
        run[0].save_best(step)
    assert [path.name for path in (tmp_path / "best").glob("*.index")] == ["ckpt-16.index"]
    best = str(tmp_path / "best" / "ckpt-16")
    stand_at(0, *run[1:])
    model_directory.restore_weights(run[1], best)
    assert float(run[1].variables[0][0, 0]) == 16
    names = tf.train.load_checkpoint(best).get_variable_to_shape_map()
    assert {name.split("/")[0].split("_OBJECT")[0] for name in names} == {
        "model",
        "_CHECKPOINTABLE",
    }


def test_checkpoints_with_a_save_counter_are_read(tmp_path):
    """Those of tf.train.Checkpoint.save and tf.train.CheckpointManager."""
    _, model, optimizer = make_run(tmp_path)
    stand_at(7, model, optimizer)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    directory = str(tmp_path / "checkpoints")
    manager = tf.train.CheckpointManager(checkpoint, directory, 3, checkpoint_name="ckpt")
    manager.save(checkpoint_number=7)
    assert_restores(tmp_path, 7)
    stand_at(0, model, optimizer)
    model_directory.restore_weights(model, model_directory.find_checkpoint(str(tmp_path))[1])
    assert float(model.variables[0][0, 0]) == 7


def test_nothing_there_is_the_beginning(tmp_path):
    assert make_run(tmp_path / "new")[0].restore() == 0
    with pytest.raises(ValueError, match="no model directory or checkpoint"):
        model_directory.find_checkpoint(str(tmp_path / "new"))
