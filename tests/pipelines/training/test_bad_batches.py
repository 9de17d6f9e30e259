"""Batches without a finite loss: they end a run, or are passed over and leave no figures."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from pipelines.tasks.running import seed_run
from pipelines.training.settings import LoopSettings
from tests.builders import finetune
from tests.jobs import log
from tests.pipelines.training.test_train_loop import batches, logged, run


def with_bad_batches(*bad_steps):
    """Batches of which some have a loss that is not a number."""

    def dataset_fn(first_step, replica_batch_size):
        def spoil(step, batch):
            is_bad = tf.reduce_any(step == tf.constant(bad_steps, tf.int64))
            weights = batch["masked_lm_weights"]
            batch["masked_lm_weights"] = tf.where(is_bad, float("nan") * weights, weights)
            return batch

        steps = tf.data.Dataset.counter(first_step)
        return tf.data.Dataset.zip((steps, batches(first_step, replica_batch_size))).map(spoil)

    return dataset_fn


def test_some_are_passed_over_and_one_more_ends_the_run(tmp_path, capfd):
    """Of the second loop all four are bad: it has no figures."""
    bad = with_bad_batches(2, 4, 5, 6, 7, 9)
    with pytest.raises(ValueError, match=r"step 9 \(examples 54 to 59 of the run; learning"):
        run(tmp_path, 12, dataset_fn=bad, loop={"max_bad_batches": 5})
    first, empty = logged(tmp_path)
    assert {"loss", "masked_lm_loss", "masked_lm_accuracy", "gradient_norm"} <= first.keys()
    assert np.isfinite(list(first.values())).all()
    assert (first["step"], empty["step"]) == (4, 8)
    assert empty.keys() == {"step", "learning_rate"}
    assert "loss 0.000" not in "".join(capfd.readouterr())
    kept = tf.train.latest_checkpoint(str(tmp_path / "checkpoints"))
    reader = tf.train.load_checkpoint(kept)
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("model/")]
    assert kept.endswith("ckpt-8") and len(names) > 20
    assert all(np.isfinite(reader.get_tensor(name)).all() for name in names)


def test_of_fine_tuning_without_a_dev_set(table, pretrained, tmp_path, monkeypatch):
    training_dataset = seed_run.training_dataset

    def spoiled_dataset(*arguments):
        def spoil(step, batch):
            return {**batch, "weight": tf.where(step == 1, np.nan, batch["weight"])}

        return training_dataset(*arguments).enumerate().map(spoil)

    monkeypatch.setattr(seed_run, "training_dataset", spoiled_dataset)
    loop = LoopSettings(steps_per_loop=1, save_checkpoint_steps=3, max_bad_batches=1)
    changes = {"loop": loop, "num_train_steps": 3, "num_warmup_steps": 0}
    results = finetune(table, pretrained, tmp_path, splits=("train", "test"), **changes)
    has_loss = {entry["step"]: "loss" in entry for entry in log(tmp_path / "seed_1")}
    assert has_loss == {1: True, 2: False, 3: True}
    # The last weights predict.
    assert "dev" not in results
    assert (tmp_path / "seed_1/predictions/test_predictions.tsv").exists()
    assert not (tmp_path / "seed_1/best").exists()
