"""The training loop on made-up batches: resume to the bit, replicas, a loss that is none."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import losses, optimization
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from pipelines.training import checkpointing, metrics_log, train_loop

GLOBAL_BATCH, SEQ_LEN, PREDICTIONS = 6, 11, 3


def tiny_config(**changes):
    values = {
        "vocab_size": 37,
        "embedding_size": 5,
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 13,
        "max_position_embeddings": 17,
        **changes,
    }
    return AlbertConfig(**values)


def batches(first_step, replica_batch_size, learnable=True):
    """Batches that are a pure function of the step, like the real ones."""

    def global_batch(step):
        rng = np.random.default_rng(step)
        positions = np.sort(
            np.stack([rng.permutation(SEQ_LEN)[:PREDICTIONS] for _ in range(GLOBAL_BATCH)])
        )
        # Rows differ in their number of predictions, so that a mean of means would be wrong.
        weights = (np.arange(PREDICTIONS) < rng.integers(1, 4, [GLOBAL_BATCH, 1])).astype(
            np.float32
        )
        return {
            "input_word_ids": rng.integers(5, 37, [GLOBAL_BATCH, SEQ_LEN]).astype(np.int32),
            "input_mask": np.ones([GLOBAL_BATCH, SEQ_LEN], np.int32),
            "input_type_ids": np.tile(np.arange(SEQ_LEN) > 6, [GLOBAL_BATCH, 1]).astype(np.int32),
            "masked_lm_positions": positions.astype(np.int32),
            "masked_lm_ids": np.full([GLOBAL_BATCH, PREDICTIONS], 7, np.int32),
            "masked_lm_weights": weights,
            "sentence_order_labels": rng.integers(0, 2, GLOBAL_BATCH).astype(np.int32),
            "sentence_order_weights": (rng.random(GLOBAL_BATCH) < 0.8).astype(np.float32),
        }

    def generate():
        step = first_step
        while True:
            yield global_batch(step)
            step += 1

    signature = tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape, x.dtype), global_batch(first_step)
    )
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return dataset.rebatch(replica_batch_size, drop_remainder=True)


def run(model_dir, num_steps, stop_at=None, strategy=None, dropout=0.0, learning_rate=0.01):
    strategy = strategy or tf.distribute.OneDeviceStrategy("/cpu:0")
    replica_batch = GLOBAL_BATCH // strategy.num_replicas_in_sync
    tf.keras.utils.set_random_seed(3)
    config = tiny_config(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    with strategy.scope():
        model = AlbertForPreTraining(config)
        model.create_variables()
        optimizer = optimization.lamb(
            optimization.WarmUpPolynomialDecay(learning_rate, num_steps, 2)
        )
    train_loop.train(
        strategy=strategy,
        model=model,
        optimizer=optimizer,
        dataset_fn=lambda step, _: batches(step, replica_batch),
        objectives=losses.PRETRAINING_OBJECTIVES,
        sums_fn=losses.pretraining_sums,
        loss_fn=losses.pretraining_loss,
        model_dir=str(model_dir),
        num_train_steps=stop_at or num_steps,
        steps_per_loop=4,
        save_checkpoint_steps=4,
        global_batch_size=GLOBAL_BATCH,
        max_seq_length=SEQ_LEN,
        seed=9,
    )
    return model


def logged(model_dir):
    rates = ("examples_per_second", "tokens_per_second")
    return [
        {key: value for key, value in entry.items() if key not in rates}
        for entry in metrics_log.read_metrics(str(model_dir))
    ]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_stopped_and_resumed_ends_in_the_same_bits(tmp_path, dropout):
    whole = run(tmp_path / "whole", 14, dropout=dropout)
    run(tmp_path / "parts", 14, stop_at=8, dropout=dropout)
    resumed = run(tmp_path / "parts", 14, dropout=dropout)
    for a, b in zip(whole.variables, resumed.variables):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.name)
    assert logged(tmp_path / "whole") == logged(tmp_path / "parts")
    assert [entry["step"] for entry in logged(tmp_path / "parts")] == [4, 8, 12, 14]


def test_dropout_changes_the_run(tmp_path):
    without, with_dropout = run(tmp_path / "a", 5), run(tmp_path / "b", 5, dropout=0.3)
    assert np.abs(without.variables[0].numpy() - with_dropout.variables[0].numpy()).max() > 1e-4


def test_two_replicas_equal_one(tmp_path):
    one = run(tmp_path / "one", 9)
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert len(devices) >= 2
    two = run(tmp_path / "two", 9, strategy=tf.distribute.MirroredStrategy(devices[:2]))
    for a, b in zip(logged(tmp_path / "one"), logged(tmp_path / "two")):
        assert a == pytest.approx(b, rel=1e-5)
    for a, b in zip(one.variables, two.variables):
        if "key/bias" not in a.name:  # its true gradient is 0: LAMB scales up the noise
            np.testing.assert_allclose(a.numpy(), b.numpy(), atol=2e-5, err_msg=a.name)


def test_training_learns(tmp_path):
    run(tmp_path, 60, learning_rate=0.05)
    losses_ = [entry["masked_lm_loss"] for entry in logged(tmp_path)]
    assert losses_[-1] < 0.5 * losses_[0]


def test_damaged_newest_checkpoint_falls_back(tmp_path):
    whole = run(tmp_path / "whole", 14)
    run(tmp_path / "parts", 14, stop_at=8)
    for path in (tmp_path / "parts" / "checkpoints").glob("ckpt-8.data*"):
        path.write_bytes(path.read_bytes()[:100])
    resumed = run(tmp_path / "parts", 14)
    for a, b in zip(whole.variables, resumed.variables):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.name)
    assert logged(tmp_path / "whole") == logged(tmp_path / "parts")


def test_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="not finite"):
        run(tmp_path, 12, learning_rate=float("inf"))
    assert tf.train.latest_checkpoint(str(tmp_path / "checkpoints")) is None


def test_metrics_line_cut_by_a_kill_is_left_out(tmp_path):
    log = metrics_log.MetricsLog(str(tmp_path), 0)
    log.write(4, {"loss": 2.5})
    log.write(8, {"loss": 1.5})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 12, "lo')
    assert [entry["step"] for entry in metrics_log.read_metrics(str(tmp_path))] == [4, 8]
    metrics_log.MetricsLog(str(tmp_path), 4)
    assert (tmp_path / "metrics.jsonl").read_text() == json.dumps({"step": 4, "loss": 2.5}) + "\n"


class TestClaim:
    def test_same_settings_go_on(self, tmp_path):
        checkpointing.claim(str(tmp_path / "run"), {"batch": 6, "shape": (2, 3)})
        checkpointing.claim(str(tmp_path / "run"), {"batch": 6, "shape": (2, 3)})

    def test_another_run(self, tmp_path):
        checkpointing.claim(str(tmp_path), {"batch": 6, "seed": 1})
        with pytest.raises(ValueError, match=r"another run \(batch 6 there, 7 here\)"):
            checkpointing.claim(str(tmp_path), {"batch": 7, "seed": 1})

    def test_something_else(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("x")
        with pytest.raises(ValueError, match="no run of this job"):
            checkpointing.claim(str(tmp_path), {"batch": 6})
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
