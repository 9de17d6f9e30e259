"""What a model directory tells of the training of its checkpoints."""

from __future__ import annotations

import json

import pytest

from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig


@pytest.mark.parametrize(
    ("contents", "length"),
    [
        ({}, 61),  # a converted checkpoint: the position table's rows
        ({"run.json": {"max_seq_length": 24}}, 24),
        ({"task.json": {"kind": "classifier", "max_seq_length": 43}}, 43),
        ({"task.json": {"max_seq_length": 43}, "run.json": {"max_seq_length": 24}}, 43),
        ({"run.json": {"depth_schedule": ["2"]}}, 61),
    ],
)
def test_the_trained_length(tmp_path, contents, length):
    for name, values in contents.items():
        (tmp_path / name).write_text(json.dumps(values))
    config = AlbertConfig(vocab_size=7, max_position_embeddings=61)
    assert model_directory.trained_length(str(tmp_path), config) == length
