import json

import pytest

from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from albert_tf.storage.errors import UserError


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


@pytest.mark.parametrize(
    "values", [{"max_seq_length": "24"}, *({"depth_schedule": s} for s in (["x"], [3], 3, [""]))]
)
def test_a_damaged_run_file_is_one_line(tmp_path, values):
    (tmp_path / "run.json").write_text(json.dumps(values))
    config = AlbertConfig(vocab_size=7)
    config.write(str(tmp_path / "albert_config.json"))
    with pytest.raises(UserError, match=f"run.json: {next(iter(values))} is .*, expected"):
        model_directory.trained_length(str(tmp_path), config)
        model_directory.read_config(str(tmp_path), str(tmp_path / "checkpoints/ckpt-8"))
