"""A checkpoint opened for export: its kind, task and length, or one clear error."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from albert_tf.checkpoints import model_directory
from export.loading import load_module, open_checkpoint
from tests.export.task_models import MAX_SEQ_LENGTH, TASKS


def test_a_pretrained_model(model_dir, tmp_path):
    served = open_checkpoint(str(model_dir))
    assert (served.kind, served.task, served.max_seq_length) == ("pretraining", {}, 67)
    with pytest.raises(ValueError, match=r"model for pretraining .pipelines\.finetune makes"):
        open_checkpoint(str(model_dir), "classifier")
    odd = shutil.copytree(model_dir, tmp_path / "odd")
    (odd / model_directory.TASK_FILE).write_text('{"kind": "poet"}')
    with pytest.raises(ValueError, match=r"task\.json: kind is 'poet', expected one of"):
        open_checkpoint(str(odd))


def test_a_fine_tuned_model(make_module):
    module = make_module(TASKS["classifier"])
    directory = module.served.model_dir
    served = open_checkpoint(directory)
    assert served.kind == "classifier" and served.checkpoint.endswith("/best/ckpt-1")
    served = open_checkpoint(directory, "encoder")
    assert (served.kind, served.task, served.max_seq_length) == ("encoder", {}, MAX_SEQ_LENGTH)
    for ours, theirs in zip(load_module(served).model.weights, module.model.encoder.weights):
        np.testing.assert_array_equal(ours, theirs, err_msg=theirs.name)
    for kind in ("pretraining", "regressor"):
        with pytest.raises(ValueError, match="holds a model for classifier"):
            open_checkpoint(directory, kind)
