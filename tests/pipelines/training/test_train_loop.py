import itertools
import json
import math
import os
import shutil
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import optimization
from albert_tf.checkpoints import model_directory
from albert_tf.models import AlbertForPreTraining
from pipelines.training import metrics_log
from pipelines.training.run import Run
from pipelines.training.settings import LoopSettings, TrainingSettings, precision
from pipelines.training.train_loop import TrainLoop
from pipelines.training.train_step import TrainStep, pretraining_objective
from tests.builders import tiny_config
from tests.jobs import curves, weights
from tests.replicas import mirrored

GLOBAL_BATCH, SEQ_LEN, PREDICTIONS = 6, 11, 3


def batches(first_step, replica_batch_size):
    """Batches that are a pure function of the step, like the real ones."""

    def global_batch(step):
        rng = np.random.default_rng(step)
        places = [rng.permutation(SEQ_LEN)[:PREDICTIONS] for _ in range(GLOBAL_BATCH)]
        # Rows differ in their number of predictions, so that a mean of means would be wrong.
        weights = np.arange(PREDICTIONS) < rng.integers(1, 4, [GLOBAL_BATCH, 1])
        return {
            "input_word_ids": rng.integers(5, 37, [GLOBAL_BATCH, SEQ_LEN]).astype(np.int32),
            "input_mask": np.ones([GLOBAL_BATCH, SEQ_LEN], np.int32),
            "input_type_ids": np.tile(np.arange(SEQ_LEN) > 6, [GLOBAL_BATCH, 1]).astype(np.int32),
            "masked_lm_positions": np.sort(places).astype(np.int32),
            "masked_lm_ids": np.full([GLOBAL_BATCH, PREDICTIONS], 7, np.int32),
            "masked_lm_weights": weights.astype(np.float32),
            "sentence_order_labels": rng.integers(0, 2, GLOBAL_BATCH).astype(np.int32),
            "sentence_order_weights": (rng.random(GLOBAL_BATCH) < 0.8).astype(np.float32),
        }

    signature = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), global_batch(0))
    dataset = tf.data.Dataset.from_generator(
        lambda: map(global_batch, itertools.count(first_step)), output_signature=signature
    )
    return dataset.rebatch(replica_batch_size, drop_remainder=True)


class Toy(tf.keras.Model):
    """Has the outputs of AlbertForPreTraining; its step is traced in a second."""

    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout
        self.table = self.add_weight("table", [61, 8], initializer="normal")
        self.out = self.add_weight("out", [8, 61], initializer="normal")

    def call(self, batch, dropout_seed):
        mean = tf.reduce_mean(tf.gather(self.table, batch["input_word_ids"]), axis=1)
        mean = tf.nn.experimental.stateless_dropout(mean, self.dropout, dropout_seed)
        logits = tf.cast(mean @ self.out, tf.float32)
        masked = tf.tile(logits[:, tf.newaxis], [1, PREDICTIONS, 1])
        return {"masked_lm_logits": masked, "sentence_order_logits": logits[:, :2]}


def albert(layers=1, dropout=0.0, recompute=False):
    """Returns a function that creates a small model."""
    sizes = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}

    def create():
        model = AlbertForPreTraining(tiny_config(num_hidden_layers=layers, **sizes), recompute)
        model.create_variables()
        return model

    return create


def run(
    model_dir,
    num_steps,
    stop_step=None,
    strategy=None,
    create=None,
    dropout=0.0,
    dataset_fn=batches,
    evaluations=None,
    every=4,
    loop=None,
    evaluated=("heldout_accuracy",),
    **options,
):
    """Trains a Toy, or the model that `create` returns.

    `evaluations` are the figures that the evaluations find, in order. They are logged under the
    names `evaluated`, of which the first one selects the best weights.
    """
    strategy = strategy or tf.distribute.OneDeviceStrategy("/cpu:0")
    replica_batch = GLOBAL_BATCH // strategy.num_replicas_in_sync
    tf.keras.utils.set_random_seed(3)
    settings = TrainingSettings(GLOBAL_BATCH, num_steps, 2, 0.01, **options)
    with strategy.scope(), precision(settings.mixed_precision):
        model = create() if create else Toy(dropout)
        schedule = optimization.WarmUpPolynomialDecay(0.01, num_steps, 2)
        optimizer = optimization.lamb(schedule)
    figures = iter(evaluations or ())
    objective = pretraining_objective()._replace(best_by=evaluated)
    with strategy.scope():
        train_step = TrainStep(model, model, objective, optimizer, settings, seed=9)

    def evaluate(_):
        return dict(zip(evaluated, np.atleast_1d(next(figures)).tolist()))

    TrainLoop(
        Run(strategy, str(model_dir), {}),
        train_step,
        lambda step, _: dataset_fn(step, replica_batch),
        LoopSettings(every, every, **(loop or {})),
        SEQ_LEN,
        evaluate if evaluations else None,
        stop_step,
    ).train()
    return model


def test_stopped_and_resumed_ends_in_the_same_bits(nine_steps, tmp_path):
    """From step 4: the later checkpoints are damaged. Dropout is part of the state."""
    whole = run(tmp_path / "whole", 9, dropout=0.3)
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    for step in (8, 9):
        (tmp_path / f"parts/checkpoints/ckpt-{step}.data-00000-of-00001").write_bytes(b"cut")
    assert_equal_weights(whole, run(tmp_path / "parts", 9, dropout=0.3))
    assert curves(tmp_path / "whole") == curves(tmp_path / "parts")
    assert [entry["step"] for entry in curves(tmp_path / "parts")] == [4, 8, 9]
    _, without = nine_steps
    assert np.abs(without.variables[0].numpy() - whole.variables[0].numpy()).max() > 1e-4


def test_stop_step_saves_a_checkpoint_and_a_later_one_continues(nine_steps, tmp_path, capsys):
    run(tmp_path, 9, stop_step=5)
    assert "stopped at step 5 of 9 (--stop_step)" in capsys.readouterr().out
    assert tf.train.latest_checkpoint(str(tmp_path / "checkpoints")).endswith("ckpt-5")
    with pytest.raises(ValueError, match="is at step 5 already: give a later"):
        run(tmp_path, 9, stop_step=3)
    assert [entry["step"] for entry in curves(tmp_path)] == [4, 5]
    assert_equal_weights(nine_steps[1], run(tmp_path, 9, stop_step=99))


@pytest.mark.usefixtures("eager")
def test_a_stop_changes_neither_evaluations_nor_the_best_weights(tmp_path, capsys):
    """A stop step between two evaluations adds none, which could end the run early."""
    options = {"every": 1, "loop": {"eval_steps": 2, "early_stopping_evaluations": 2}}
    run(tmp_path / "run", 6, stop_step=3, evaluations=[0.3], **options)
    run(tmp_path / "run", 6, evaluations=[0.2, 0.4], **options)
    found = [entry for entry in curves(tmp_path / "run") if "heldout_accuracy" in entry]
    assert [entry["step"] for entry in found] == [2, 4, 6]
    best = model_directory.find_checkpoint(str(tmp_path / "run/best"))[1]
    assert best.endswith("ckpt-6")
    # A run that ended early is not said to have been stopped.
    run(tmp_path / "over", 6, evaluations=[0.3, 0.2, 0.1], stop_step=10, **options)
    capsys.readouterr()
    run(tmp_path / "over", 10, evaluations=["none is asked for"], stop_step=9, **options)
    out = capsys.readouterr().out
    assert "stopped early at step 6" in out and "--stop_step" not in out


def assert_equal_weights(a, b, **tolerance):
    for ours, theirs in zip(a.variables, b.variables):
        if "key/bias" in ours.name and tolerance:
            continue  # its true gradient is 0: LAMB scales up the noise
        np.testing.assert_allclose(
            ours.numpy(), theirs.numpy(), err_msg=ours.name, **(tolerance or {"rtol": 0})
        )


@pytest.mark.parametrize(
    ("replicas", "micro_batches"), [(1, 3), (2, 1), pytest.param(2, 3, marks=pytest.mark.slow)]
)
def test_replicas_and_micro_batches_add_up_to_the_batch(
    nine_steps, tmp_path, replicas, micro_batches
):
    directory, whole = nine_steps
    strategy = mirrored() if replicas == 2 else None
    parts = run(tmp_path, 9, strategy=strategy, gradient_accumulation_steps=micro_batches)
    for a, b in zip(curves(directory), curves(tmp_path)):
        assert a == pytest.approx(b, rel=1e-6 if replicas == 1 else 1e-5)
    assert_equal_weights(whole, parts, atol=3e-6 if replicas == 1 else 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "change", "tolerance"),
    [
        ({}, {"create": albert(2, 0.3, recompute=True)}, 3e-6),
        ({"create": albert()}, {"jit_compile": True}, 2e-5),
        ({"create": albert(), "strategy": "two"}, {"jit_compile": True}, 2e-5),
    ],
)
def test_recomputed_or_compiled_it_is_the_same_run(tmp_path, options, change, tolerance):
    if "strategy" in options:
        options = {**options, "strategy": mirrored()}
    plain = run(tmp_path / "plain", 9, **{"create": albert(2, 0.3), **options})
    other = run(tmp_path / "other", 9, **{**options, **change})
    assert_equal_weights(plain, other, atol=tolerance)


class TestSignal:
    @pytest.mark.parametrize(
        "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
    )
    def test_ends_after_the_step_in_flight_with_a_checkpoint(self, tmp_path, number):
        def send(step):
            if step == 130:
                os.kill(os.getpid(), number)
            return step

        def sending(step, batch):
            sent = tf.numpy_function(send, [step], tf.int64)
            return {**batch, "step": tf.ensure_shape(sent, [])}

        handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
        with pytest.raises(SystemExit) as end:
            run(tmp_path, 200, dataset_fn=changed(sending))
        assert end.value.code == 128 + number
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
        stopped_at = curves(tmp_path)[-1]["step"]
        assert 100 < stopped_at < 200
        newest = tf.train.latest_checkpoint(str(tmp_path / "checkpoints"))
        assert newest.endswith(f"ckpt-{stopped_at}")

    @pytest.mark.usefixtures("eager")
    def test_in_the_last_evaluation_is_not_forgotten(self, tmp_path):
        """What follows, such as another seed, may take long."""

        def figures():
            yield 0.3
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
            yield 0.5

        with pytest.raises(SystemExit) as end:
            run(tmp_path, 4, evaluations=figures(), every=2, loop={"eval_steps": 2})
        assert end.value.code == 128 + signal.SIGTERM
        before = curves(tmp_path)
        assert before[-1] == {"step": 4, "heldout_accuracy": 0.5}
        run(tmp_path, 4, evaluations=["none is asked for"], every=2, loop={"eval_steps": 2})
        assert curves(tmp_path) == before


@pytest.mark.usefixtures("eager")
def test_entries_checkpoints_and_evaluations_need_no_common_divisor(tmp_path):
    loop = LoopSettings(4, 5, eval_steps=7)
    ends, step = [], 0
    while step < 16:
        ends.append(step := loop.end_after(step))
    assert ends == [4, 5, 7, 8, 10, 12, 14, 15, 16]
    run(tmp_path, 8, evaluations=[0.3, 0.2], every=4, loop={"eval_steps": 7})
    entries = [(entry["step"], "loss" in entry) for entry in curves(tmp_path)]
    assert entries == [(4, True), (7, True), (7, False), (8, True), (8, False)]


@pytest.mark.usefixtures("eager")
def test_best_weights_stay_until_nothing_better_ends_the_run(tmp_path, capsys):
    """A restart remembers the best figure, and how many evaluations were no better."""
    options = {"every": 1, "loop": {"eval_steps": 1, "early_stopping_evaluations": 2}}
    run(tmp_path, 40, stop_step=3, evaluations=[0.3, 0.5, 0.4], **options)
    run(tmp_path, 40, evaluations=[0.5], **options)
    assert "stopped early at step 4" in capsys.readouterr().out
    assert [entry["step"] for entry in curves(tmp_path)] == [1, 1, 2, 2, 3, 3, 4, 4]
    found = [entry.get("heldout_accuracy") for entry in curves(tmp_path)]
    assert [figure for figure in found if figure] == [0.3, 0.5, 0.4, 0.5]
    directory, found = model_directory.find_checkpoint(str(tmp_path / "best"))
    assert (directory, found) == (str(tmp_path), str(tmp_path / "best" / "ckpt-2"))
    best = weights(tmp_path, "best")
    saved = tf.train.load_checkpoint(str(tmp_path / "checkpoints/ckpt-2"))
    assert len(best) == 2
    np.testing.assert_equal(best, {name: saved.get_tensor(name) for name in best})
    before = curves(tmp_path)
    run(tmp_path, 40, evaluations=[], **options)
    assert curves(tmp_path) == before


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("evaluated", "figures", "best"),
    [
        (("heldout_loss",), [7.82, 6.99, 6.74, math.nan], 3),
        (("dev_accuracy", "dev_loss"), [(0.5, 0.7), (0.5, 0.6), (0.4, 0.1), (0.5, 0.65)], 2),
        # Without [MASK], the loss of all predictions decides.
        (("at_mask_loss", "heldout_loss"), [(math.nan, 0.2), (math.nan, 0.1)], 2),
    ],
)
def test_the_lower_loss_is_better_also_after_a_restart(tmp_path, evaluated, figures, best, capsys):
    options = {"every": 1, "evaluated": evaluated}
    options["loop"] = {"eval_steps": 1, "early_stopping_evaluations": 2}
    stop_step = len(figures)
    if len(evaluated) == 1:
        run(tmp_path, 9, stop_step=1, evaluations=figures[:1], **options)
        figures = figures[1:]
    run(tmp_path, 9, stop_step=stop_step, evaluations=figures, **options)
    directory = str(tmp_path / "best")
    assert model_directory.find_checkpoint(directory)[1].endswith(f"ckpt-{best}")
    assert ("stopped early at step 4" in capsys.readouterr().out) == (evaluated[0][:3] == "dev")


def test_metrics_line_cut_by_a_kill_is_left_out(tmp_path):
    written = metrics_log.MetricsLog(str(tmp_path), 0)
    written.write(4, {"loss": 2.5})
    written.write(8, {"loss": 1.5})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 12, "lo')
    first, second = metrics_log.read_metrics(str(tmp_path))
    assert time.time() - 60 < first["time"] <= second["time"] <= time.time() + 1
    assert (first["step"], second["step"]) == (4, 8)
    metrics_log.MetricsLog(str(tmp_path), 4)
    assert (tmp_path / "metrics.jsonl").read_text() == json.dumps(first) + "\n"


def changed(change):
    def dataset_fn(first_step, replica_batch_size):
        steps = tf.data.Dataset.counter(first_step)
        return tf.data.Dataset.zip((steps, batches(first_step, replica_batch_size))).map(change)

    return dataset_fn


def with_bad_batches(*bad_steps):
    """Batches of which some have a loss that is not a number."""

    def spoil(step, batch):
        is_bad = tf.reduce_any(step == tf.constant(bad_steps, tf.int64))
        weights = batch["masked_lm_weights"]
        return {**batch, "masked_lm_weights": tf.where(is_bad, np.nan * weights, weights)}

    return changed(spoil)


@pytest.mark.usefixtures("eager")
def test_a_bad_batch_ends_the_run(tmp_path):
    bad = with_bad_batches(5, 6)
    with pytest.raises(ValueError, match=r"step 5 \(examples 30 to 35 of the run; learning"):
        run(tmp_path, 12, dataset_fn=bad)
    (first,) = curves(tmp_path)
    assert first["step"] == 4 and np.isfinite(list(first.values())).all()
    assert tf.train.latest_checkpoint(str(tmp_path / "checkpoints")).endswith("ckpt-4")
    assert all(np.isfinite(value).all() for value in weights(tmp_path).values())


def test_curves_have_a_panel_for_each_logged_metric(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(metrics_log.pictures, "write", lambda figure, _: drawn.append(figure))
    entry = {"step": 1, "masked_lm_loss": 3.0, "heldout_masked_lm_accuracy": 0.2}
    for entries in ([], [entry, {**entry, "sentence_order_loss": 0.7}]):
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        (tmp_path / "metrics.jsonl").write_text(lines)
        metrics_log.draw_curves(str(tmp_path))
    titles = [{axis.get_title() for axis in figure.axes if axis.axison} for figure in drawn]
    panels = {"masked-LM loss, nats", "masked-LM accuracy", "sentence-order loss, nats"}
    assert titles == [set(), panels]
