"""Held-out figures: sampled from all documents, counted exactly, of text not trained on."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipelines import pretrain
from pipelines.data import pretraining_dataset
from pipelines.data.pretraining_dataset import sample_counts
from pipelines.training.heldout import (
    check_heldout_split,
    knows_frequencies_only,
    make_evaluation,
    make_scoring,
)
from pipelines.training.run import InitialModel


def shards(*counts):
    return [SimpleNamespace(examples=count) for count in counts]


class TestSample:
    def test_takes_from_every_shard_in_proportion(self):
        counts = sample_counts(shards(100, 300, 0, 600), 50)
        assert counts.tolist() == [5, 15, 0, 30]

    @pytest.mark.parametrize("size", [1, 7, 99, 4_000])
    def test_has_the_size_that_was_asked_and_never_more_than_there_is(self, size):
        of_shards = shards(*np.random.default_rng(size).integers(0, 90, 100).tolist())
        counts = sample_counts(of_shards, size)
        available = np.array([shard.examples for shard in of_shards])
        assert counts.sum() == min(size, available.sum())
        assert (counts >= 0).all() and (counts <= available).all()
        if size < available.sum():
            assert np.abs(counts - available * size / available.sum()).max() <= 1

    def test_is_all_where_there_is_no_more(self):
        assert sample_counts(shards(3, 4), None).tolist() == [3, 4]
        assert sample_counts(shards(3, 4), 7).tolist() == [3, 4]

    def test_opens_some_of_very_many_shards_the_same_at_each_call(self, monkeypatch):
        monkeypatch.setattr(pretraining_dataset, "_MAX_SAMPLED_SHARDS", 8)
        counts = sample_counts(shards(*[50] * 100), 80)
        assert (counts > 0).sum() == 8 and counts.sum() == 80
        assert counts.tolist() == sample_counts(shards(*[50] * 100), 80).tolist()
        # Not the first ones.
        assert np.flatnonzero(counts).max() > 50


def test_counts_beyond_float32_are_exact():
    many = 2.0**24  # in float32, many + 1 is many

    def forward(batch, _):
        rows = tf.shape(batch["masked_lm_ids"])[0]
        hidden = tf.ones([rows, 1, 2])
        return {
            "masked_lm_logits": tf.tile([[[5.0, 0.0]]], [rows, 1, 1]),
            "sentence_order_logits": tf.zeros([rows, 2]),
            "hidden_states": [hidden, 2 * hidden],
        }

    # One prediction that is right and counts as many, then four that are wrong.
    dataset = tf.data.Dataset.from_tensor_slices(
        {
            "masked_lm_ids": [[0], [1], [1], [1], [1]],
            "masked_lm_weights": [[many], [1.0], [1.0], [1.0], [1.0]],
            "sentence_order_labels": [0] * 5,
            "sentence_order_weights": [1.0] * 5,
            "input_mask": [[1]] * 5,
        }
    ).batch(1, drop_remainder=True)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    score = make_scoring(strategy, forward, lambda _: dataset, vocab_size=2)
    assert score()["targets"].tolist() == [many, 4.0]
    figures = make_evaluation(score, {"inside_lengths_accuracy": 0.51})()
    assert figures["heldout_masked_lm_accuracy"] == many / (many + 4)
    assert figures["heldout_inside_lengths_accuracy"] == 0.51
    assert figures["layers/l2_distance_01"] == pytest.approx(2**0.5)


class TestTextThatWasTrainedOn:
    TRAINED = {"random_seed": 7, "heldout_fraction": 0.1}  # noqa: RUF012

    def check(self, tmp_path, run, records):
        (tmp_path / "run.json").write_text(json.dumps(run))
        check_heldout_split(str(tmp_path), records)

    def test_what_the_run_held_out_too_is_evaluated(self, tmp_path):
        for fraction in (0.1, 0.05):
            records = {"random_seed": 7, "heldout_fraction": fraction}
            self.check(tmp_path, {"heldout_split": self.TRAINED}, records)

    def test_another_split_is_refused(self, tmp_path):
        for changed in ({"random_seed": 8}, {"heldout_fraction": 0.2}):
            with pytest.raises(ValueError, match="may have been trained on them; write") as error:
                self.check(tmp_path, {"heldout_split": self.TRAINED}, {**self.TRAINED, **changed})
            assert "\n" not in str(error.value)

    def test_of_other_weights_nothing_is_known(self, tmp_path):
        for run in ({}, {"heldout_split": None}):
            self.check(tmp_path, run, self.TRAINED)
        self.check(tmp_path, {"heldout_split": self.TRAINED}, None)

    def test_neither_may_weights_to_begin_with_have_seen_it(self, tmp_path, monkeypatch):
        first, run = tmp_path / "first", tmp_path / "run"
        first.mkdir()
        (first / "run.json").write_text(json.dumps({"heldout_split": self.TRAINED}))
        monkeypatch.setattr(
            pretrain.model_directory, "find_checkpoint", lambda path: (path, f"{path}/ckpt-1")
        )
        with pytest.raises(ValueError, match="may have been trained on them; write"):
            pretrain._restore_initial_weights(
                None,
                InitialModel(None, None, str(first)),
                str(run),
                {**self.TRAINED, "random_seed": 8},
            )


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.06, 0.061], False),  # too few
        ([0.06, 0.06, 0.061], True),
        ([0.12, 0.121, 0.125], True),  # the kept tenth is copied
        ([0.12, 0.125, 0.131], False),  # it goes up
        ([0.03, 0.06, 0.06, 0.06], True),
        ([0.159, 0.16, 0.159], False),  # beyond both
        ([0.0001, 0.002, 0.004], False),  # not even frequencies yet
        ([0.14, 0.1, 0.05], False),  # it falls
    ],
)
def test_a_plateau_of_frequencies(accuracies, expected):
    assert knows_frequencies_only(accuracies, 0.059) is expected


def test_a_plateau_is_reported(capsys):
    counted = {"loss": 900.0, "correct": 7.0, "weight": 100.0}
    none = {"loss": 0.0, "correct": 0.0, "weight": 0.0}
    sums = dict.fromkeys(("sentence_order", "separator", "openings"), none)
    layers = {"l2_distance": np.ones(1), "degrees": np.ones(1), "weight": np.ones(())}
    targets = np.array([6.0, 5.0, *[1.0] * 89])
    evaluate = make_evaluation(
        lambda _: {"losses": {**sums, "masked_lm": counted}, "layers": layers, "targets": targets},
        {},
    )
    told = []
    for _ in range(6):
        evaluate()
        told.append("7.0%; always the most frequent piece has 6.0%" in capsys.readouterr().out)
    assert told == [False, False, True, False, False, False]  # once
