import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import model_directory, name_map
from pipelines.average_checkpoints import average_checkpoints
from pipelines.training.heldout import check_heldout_split
from tests import jobs
from tests.builders import raises_one_line, with_random_weights

SPLIT = {"random_seed": 7, "heldout_fraction": 0.05}


@pytest.fixture
def run(pretrained, tmp_path):
    """A run whose last three checkpoints have other weights than its first one, and more layers."""
    directory = shutil.copytree(pretrained, tmp_path / "run")
    model, _ = model_directory.load_for_pretraining(str(directory))
    shutil.rmtree(directory / "checkpoints")
    for step in (80, 90, 100, 110):
        with_random_weights(model, seed=step)
        tf.train.Checkpoint(model=model).write(str(directory / f"checkpoints/ckpt-{step}"))
    settings = {"max_seq_length": 40, "heldout_split": SPLIT, "num_train_steps": 200}
    settings["depth_schedule"] = ["1", f"{model.config.num_hidden_layers}:85"]
    (directory / "run.json").write_text(json.dumps(settings))
    return directory


def weights_of(path):
    return name_map.arrays(model_directory.load_for_pretraining(str(path))[0])


def test_the_newest_weights_are_averaged(run, tmp_path):
    output = tmp_path / "average"
    jobs.run("pipelines.average_checkpoints", f"--checkpoint={run}", f"--output_dir={output}")
    found = weights_of(output)
    each = [weights_of(run / f"checkpoints/ckpt-{step}") for step in (90, 100, 110)]
    assert found.keys() == each[0].keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, np.mean([w[name] for w in each], 0), atol=1e-6)


def test_the_result_is_a_model_of_the_run(run, tmp_path):
    """With the depth of the newest checkpoint, its lengths and what it was not trained on."""
    output = tmp_path / "average"
    average_checkpoints(str(run), 2, str(output))
    model, _ = model_directory.load_for_pretraining(str(output))
    assert model.config == model_directory.load_for_pretraining(str(run))[0].config
    assert model_directory.trained_length(str(output), model.config) == 40
    with raises_one_line("may have been trained on them"):
        check_heldout_split(str(output), {**SPLIT, "random_seed": 8})
    for name in ("spiece.model", "tokenizer_config.json"):
        assert (output / name).read_bytes() == (run / name).read_bytes()


def test_what_cannot_be_averaged(run, tuned, tmp_path):
    output = str(tmp_path / "average")
    with raises_one_line("has 4 checkpoints; expected at least 5"):
        average_checkpoints(str(run), 5, output)
    with raises_one_line("ckpt-80.*ckpt-110.*number of layers, 1 and .*--num_checkpoints"):
        average_checkpoints(str(run), 4, output)
    with raises_one_line("fine-tuned"):
        average_checkpoints(str(tuned / "seed_1"), 2, output)
    with raises_one_line("no model directory"):
        average_checkpoints(str(tmp_path / "none"), 2, output)
    with raises_one_line("name the directory of the run"):
        average_checkpoints(str(run / "checkpoints/ckpt-100"), 2, output)
    assert not (tmp_path / "average").exists()
    average_checkpoints(str(run), 2, output)
    with raises_one_line("exists already"):
        average_checkpoints(str(run), 2, output)
