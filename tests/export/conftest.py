"""One tiny model with random weights and one export of it, for all tests of the package."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from albert_tf.checkpoints import model_directory
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining, AlbertForSequenceClassification
from albert_tf.text.tokenization import AlbertTokenizer
from export import export_saved_model
from export.loading import open_checkpoint
from export.modules.pretraining_module import PreTrainingModule
from tests.builders import tiny_config, with_random_weights
from tests.export.task_models import function_of, make_module  # noqa: F401  make_module: a fixture

MAX_SEQ_LENGTH = 37
CONFIG = tiny_config(vocab_size=1, num_hidden_layers=3)


def write_classifier(directory, model_dir, kind, labels, scale=0.3, **changes):
    """Writes a fine-tuned model with random weights beside the vocabulary of `model_dir`.

    Args:
      labels: None of a regressor.
      changes: of the config, and the description's `has_pairs` and `max_seq_length`.
    """
    shutil.copytree(model_dir, directory, ignore=shutil.ignore_patterns("checkpoints"))
    task = {"task": "toy", "kind": kind, "labels": labels, "has_pairs": True, "max_seq_length": 37}
    task.update({name: changes.pop(name) for name in task.keys() & changes.keys()})
    values = json.loads((model_dir / "albert_config.json").read_text())
    config = AlbertConfig(**{**values, **changes})
    config.write(str(directory / "albert_config.json"))
    (directory / model_directory.TASK_FILE).write_text(json.dumps(task))
    model = AlbertForSequenceClassification(config, len(labels) if labels else 1)
    with_random_weights(model, scale=scale)
    tf.train.Checkpoint(model=model).save(str(directory / "checkpoints" / "ckpt"))
    return model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory, tiny_vocabulary) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    model = AlbertForPreTraining(dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size))
    with_random_weights(model, seed=1)
    tokenizer.save(str(directory))
    model_directory.save_for_pretraining(model, str(directory))
    return directory


@pytest.fixture(scope="session")
def model(model_dir):
    return model_directory.load_for_pretraining(str(model_dir))[0]


@pytest.fixture(scope="session")
def tokenizer(model_dir):
    return AlbertTokenizer.load(str(model_dir))


@pytest.fixture(scope="session")
def module(model, model_dir) -> PreTrainingModule:
    return PreTrainingModule(model, open_checkpoint(str(model_dir), None, MAX_SEQ_LENGTH))


@pytest.fixture(scope="session")
def functions(module) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "function", lambda signature: function_of(module, signature))
        return module.functions()


@pytest.fixture(scope="session")
def exported(tmp_path_factory, model_dir, module, functions) -> Path:
    """A published version of `module`, traced once; it was verified in a fresh process."""
    output = str(tmp_path_factory.mktemp("exports") / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_saved_model, "load_module", lambda served: module)
        patch.setattr(module, "functions", lambda: functions)
        made = export_saved_model.export(
            checkpoint=str(model_dir), output=output, max_seq_length=MAX_SEQ_LENGTH
        )
    return Path(made)


@pytest.fixture(scope="session")
def loaded(exported):
    return tf.saved_model.load(str(exported))
