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
from pipelines.training import metrics_log, train_loop
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


def albert(dropout=0.0):
    sizes = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = AlbertForPreTraining(tiny_config(num_hidden_layers=1, **sizes))
    model.create_variables()
    return model


def run(
    model_dir,
    num_steps,
    stop_step=None,
    strategy=None,
    create=Toy,
    dropout=0.0,
    dataset_fn=batches,
    evaluations=None,
    every=4,
    loop=None,
    evaluated=("heldout_accuracy",),
    **options,
):
    """Returns the trained model.

    `evaluations` are the figures that the evaluations find, in order. They are logged under the
    names `evaluated`, of which the first one selects the best weights.
    """
    strategy = strategy or tf.distribute.OneDeviceStrategy("/cpu:0")
    replica_batch = GLOBAL_BATCH // strategy.num_replicas_in_sync
    tf.keras.utils.set_random_seed(3)
    settings = TrainingSettings(GLOBAL_BATCH, num_steps, 2, 0.01, **options)
    objective = pretraining_objective()._replace(best_by=evaluated)
    with strategy.scope(), precision(settings.mixed_precision):
        model = create(dropout)
        optimizer = optimization.lamb(optimization.WarmUpPolynomialDecay(0.01, num_steps, 2))
        train_step = TrainStep(model, model, objective, optimizer, settings, seed=9)
    figures = iter(evaluations or ())

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


@pytest.mark.usefixtures("eager")
def test_stopped_and_resumed_ends_in_the_same_bits(three_steps, tmp_path, capsys):
    """Dropout is part of the state."""
    parts, options = tmp_path / "parts", {"every": 2, "dropout": 0.3}
    whole = run(tmp_path / "whole", 4, **options)
    run(parts, 4, stop_step=3, **options)
    assert "stopped at step 3 of 4 (--stop_step)" in capsys.readouterr().out
    assert tf.train.latest_checkpoint(str(parts / "checkpoints")).endswith("ckpt-3")
    with pytest.raises(ValueError, match="is at step 3 already: give a later"):
        run(parts, 4, stop_step=2, **options)
    stopped = shutil.copytree(parts, tmp_path / "stopped")
    assert_equal_weights(whole, run(stopped, 4, stop_step=99, **options))
    assert [entry["step"] for entry in curves(stopped)] == [2, 3, 4]
    # From step 2, because the later checkpoint is damaged: its log entry goes, too.
    (parts / "checkpoints/ckpt-3.data-00000-of-00001").write_bytes(b"cut")
    assert_equal_weights(whole, run(parts, 4, **options))
    assert curves(tmp_path / "whole") == curves(parts)
    _, without = three_steps
    assert np.abs(without.variables[0].numpy() - whole.variables[0].numpy()).max() > 1e-4


@pytest.mark.usefixtures("eager")
def test_a_stop_changes_neither_evaluations_nor_the_best_weights(tmp_path):
    """A stop step between two evaluations adds none, which could end the run early."""
    options = {"every": 1, "loop": {"eval_steps": 2, "early_stopping_evaluations": 2}}
    run(tmp_path, 5, stop_step=3, evaluations=[0.3], **options)
    run(tmp_path, 5, evaluations=[0.2, 0.4], **options)
    found = [entry for entry in curves(tmp_path) if "heldout_accuracy" in entry]
    assert [entry["step"] for entry in found] == [2, 4, 5]
    best = model_directory.find_checkpoint(str(tmp_path / "best"))[1]
    assert best.endswith("ckpt-5")


def assert_equal_weights(a, b, **tolerance):
    for ours, theirs in zip(a.variables, b.variables):
        if "key/bias" in ours.name and tolerance:
            continue  # its true gradient is 0: LAMB scales up the noise
        np.testing.assert_allclose(
            ours.numpy(), theirs.numpy(), err_msg=ours.name, **(tolerance or {"rtol": 0})
        )


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("strategy", [None, mirrored])
def test_replicas_and_micro_batches_add_up_to_the_batch(three_steps, tmp_path, strategy):
    directory, whole = three_steps
    options = {"every": 2, "gradient_accumulation_steps": 3}
    parts = run(tmp_path, 3, strategy=strategy and strategy(), **options)
    for a, b in zip(curves(directory), curves(tmp_path)):
        assert a == pytest.approx(b, rel=1e-5 if strategy else 1e-6)
    assert_equal_weights(whole, parts, atol=2e-5 if strategy else 3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [None, mirrored])
def test_compiled_it_is_the_same_run(tmp_path, strategy):
    options = {"create": albert, "strategy": strategy and strategy()}
    plain = run(tmp_path / "plain", 9, **options)
    compiled = run(tmp_path / "compiled", 9, jit_compile=True, **options)
    assert_equal_weights(plain, compiled, atol=2e-5)


class TestSignal:
    def test_ends_after_the_step_in_flight_with_a_checkpoint(self, tmp_path):
        def send(step):
            if step == 40:
                os.kill(os.getpid(), signal.SIGTERM)
            return step

        def sending(step, batch):
            sent = tf.numpy_function(send, [step], tf.int64)
            return {**batch, "step": tf.ensure_shape(sent, [])}

        handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
        with pytest.raises(SystemExit) as end:
            run(tmp_path, 110, dataset_fn=changed(sending))
        assert end.value.code == 128 + signal.SIGTERM
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
        stopped_at = curves(tmp_path)[-1]["step"]
        assert 10 < stopped_at < 110
        newest = tf.train.latest_checkpoint(str(tmp_path / "checkpoints"))
        assert newest.endswith(f"ckpt-{stopped_at}")

    @pytest.mark.usefixtures("eager")
    def test_in_the_last_evaluation_is_not_forgotten(self, tmp_path):
        """What follows, such as another seed, may take long."""

        def figures():
            yield 0.3
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            yield 0.5

        with pytest.raises(SystemExit) as end:
            run(tmp_path, 2, evaluations=figures(), every=1, loop={"eval_steps": 1})
        assert end.value.code == 128 + signal.SIGINT
        before = curves(tmp_path)
        assert before[-1] == {"step": 2, "heldout_accuracy": 0.5}
        run(tmp_path, 2, evaluations=["none is asked for"], every=1, loop={"eval_steps": 1})
        assert curves(tmp_path) == before


@pytest.mark.usefixtures("eager")
def test_entries_checkpoints_and_evaluations_need_no_common_divisor(tmp_path):
    loop = LoopSettings(4, 5, eval_steps=7)
    ends, step = [], 0
    while step < 16:
        ends.append(step := loop.end_after(step))
    assert ends == [4, 5, 7, 8, 10, 12, 14, 15, 16]
    run(tmp_path, 4, evaluations=[0.3, 0.2], every=2, loop={"eval_steps": 3})
    entries = [(entry["step"], "loss" in entry) for entry in curves(tmp_path)]
    assert entries == [(2, True), (3, True), (3, False), (4, True), (4, False)]


@pytest.mark.usefixtures("eager")
def test_best_weights_stay_until_nothing_better_ends_the_run(tmp_path, capsys):
    """A restart remembers the best figure, and how many evaluations were no better."""
    options = {"every": 1, "loop": {"eval_steps": 1, "early_stopping_evaluations": 2}}
    options["evaluated"] = ("heldout_loss",)
    run(tmp_path, 40, stop_step=3, evaluations=[0.5, 0.3, 0.4], **options)
    assert "step 3: heldout_loss 0.4000, best 0.3000" in capsys.readouterr().out
    run(tmp_path, 40, stop_step=9, evaluations=[0.3], **options)
    out = capsys.readouterr().out
    assert "stopped early at step 4" in out and "--stop_step" not in out
    assert [entry["step"] for entry in curves(tmp_path)] == [1, 1, 2, 2, 3, 3, 4, 4]
    found = [entry.get("heldout_loss") for entry in curves(tmp_path)]
    assert [figure for figure in found if figure] == [0.5, 0.3, 0.4, 0.3]
    directory = tmp_path / "best"
    expected = str(tmp_path), str(directory / "ckpt-2")
    assert model_directory.find_checkpoint(str(directory)) == expected
    assert [path.name for path in directory.glob("*.index")] == ["ckpt-2.index"]
    best = weights(tmp_path, "best")
    saved = tf.train.load_checkpoint(str(tmp_path / "checkpoints/ckpt-2"))
    assert len(best) == 2
    np.testing.assert_equal(best, {name: saved.get_tensor(name) for name in best})
    before = curves(tmp_path)
    run(tmp_path, 40, evaluations=[], **options)
    assert curves(tmp_path) == before


def test_which_evaluation_is_better():
    for names, worse, better in (
        (("loss",), 0.7, 0.6),
        (("loss",), math.nan, 7.0),
        (("accuracy", "loss"), (0.4, 0.1), (0.5, 0.7)),
        (("accuracy", "loss"), (0.5, 0.7), (0.5, 0.6)),
        # Without [MASK], the loss of all predictions decides.
        (("at_mask_loss", "loss"), (math.nan, 0.2), (math.nan, 0.1)),
    ):
        entries = [dict(zip(names, np.atleast_1d(values))) for values in (worse, better)]
        worse, better = (train_loop._rank(entry, names) for entry in entries)
        assert worse < better, names


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
    bad = with_bad_batches(3, 4)
    with pytest.raises(ValueError, match=r"step 3 \(examples 18 to 23 of the run; learning"):
        run(tmp_path, 12, every=2, dataset_fn=bad)
    (first,) = curves(tmp_path)
    assert first["step"] == 2 and np.isfinite(list(first.values())).all()
    assert tf.train.latest_checkpoint(str(tmp_path / "checkpoints")).endswith("ckpt-2")
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
