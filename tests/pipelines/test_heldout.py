import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipelines import pretrain
from pipelines.data import pretraining_dataset
from pipelines.data.pretraining_dataset import sample_counts
from pipelines.training import heldout
from pipelines.training.run import InitialModel
from pipelines.training.train_step import pretraining_objective
from tests.builders import raises_one_line


def shards(*counts):
    return [SimpleNamespace(examples=count) for count in counts]


def test_a_sample_takes_from_every_shard_in_proportion(monkeypatch):
    assert sample_counts(shards(100, 300, 0, 600), 50).tolist() == [5, 15, 0, 30]
    for size in (None, 7):
        assert sample_counts(shards(3, 4), size).tolist() == [3, 4]
    for size in (1, 7, 99, 4_000, 9_000):
        available = np.random.default_rng(size).integers(0, 90, 100)
        counts = sample_counts(shards(*available.tolist()), size)
        assert counts.sum() == min(size, available.sum())
        assert (counts >= 0).all() and (counts <= available).all()
        if size < available.sum():
            assert np.abs(counts - available * size / available.sum()).max() <= 1
    # Of very many shards it opens some, the same at each call.
    monkeypatch.setattr(pretraining_dataset, "_MAX_SAMPLED_SHARDS", 8)
    counts = sample_counts(shards(*[50] * 100), 80)
    assert (counts > 0).sum() == 8 and counts.sum() == 80
    assert counts.tolist() == sample_counts(shards(*[50] * 100), 80).tolist()
    assert np.flatnonzero(counts).max() > 50, "not the first ones"


def test_counts_beyond_float32_are_exact(capsys):
    many = 2.0**24  # in float32, many + 1 is many

    def forward(batch, _):
        return {
            "masked_lm_logits": tf.constant([[[5.0, 0.0]]]),
            "sentence_order_logits": tf.zeros([1, 2]),
        }

    # One prediction that is right and counts as many, then four that are wrong.
    rows = {
        "masked_lm_ids": [[0], [1], [1], [1], [1]],
        "masked_lm_weights": [[many], [1.0], [1.0], [1.0], [1.0]],
        "sentence_order_labels": [0] * 5,
        "sentence_order_weights": [1.0] * 5,
        "input_mask": [[1]] * 5,
        "masked_lm_positions": [[1]] * 5,
        # [MASK] is 7; the others are a kept and a random piece.
        "input_word_ids": [[7, 7], [7, 7], [7, 7], [7, 1], [7, 0]],
    }
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(1, drop_remainder=True)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    score = heldout.make_scoring(strategy, forward, lambda _: dataset, vocab_size=2, mask_id=7)
    assert score()["targets"].tolist() == [many, 4.0]
    known = {"inside_words_accuracy": 0.51}
    figures = heldout.make_evaluation(score, known, 200, "ab".__getitem__)()
    assert "held out: 100.0 % of pieces at [MASK] (100.0 % always 'a'), " in capsys.readouterr().out
    assert figures["heldout_masked_lm_accuracy"] == many / (many + 4)
    assert figures["heldout_masked_lm_at_mask_accuracy"] == many / (many + 2)
    assert {*pretraining_objective().best_by} <= figures.keys()
    right, wrong = np.log(1 + np.exp(-5.0)), np.log(1 + np.exp(5.0))
    at_mask = (many * right + 2 * wrong) / (many + 2)
    assert figures["heldout_masked_lm_at_mask_loss"] == pytest.approx(at_mask, rel=1e-4)
    assert figures["heldout_inside_words_accuracy"] == 0.51


def test_text_that_was_trained_on_is_not_evaluated(tmp_path):
    initial = InitialModel(None, None, SimpleNamespace(directory=str(tmp_path)))
    trained = {"random_seed": 7, "heldout_fraction": 0.1}
    for run, records, is_refused in (
        ({"heldout_split": trained}, {**trained, "heldout_fraction": 0.05}, False),
        ({"heldout_split": trained}, {**trained, "random_seed": 8}, True),
        ({"heldout_split": trained}, {**trained, "heldout_fraction": 0.2}, True),
        # Of other weights nothing is known.
        ({}, trained, False),
        ({"heldout_split": trained}, None, False),
    ):
        (tmp_path / "run.json").write_text(json.dumps(run))
        if not is_refused:
            heldout.check_heldout_split(str(tmp_path), records)
            continue
        with raises_one_line("may have been trained on them"):
            heldout.check_heldout_split(str(tmp_path), records)
        # Neither may weights to begin with have seen it.
        source = SimpleNamespace(manifest=SimpleNamespace(heldout_split=records))
        new = {"initial": initial, "sources": [source]}
        with pytest.raises(ValueError, match="may have been trained on them"):
            pretrain._restore_initial_weights(None, SimpleNamespace(**new))
