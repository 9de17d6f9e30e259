"""One tiny model with random weights and one export of it, for all tests of the package."""

import dataclasses
import string
from pathlib import Path

import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import model_directory
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.tokenization import AlbertTokenizer
from export import export_saved_model
from export.loading import open_checkpoint
from export.modules.pretraining_module import PreTrainingModule
from tests.builders import tiny_config, with_random_weights
from tests.conftest import WORDS
from tests.export.task_models import make_module, module_of, traced_once  # noqa: F401  fixtures

CHINESE = "北京是中国的首都。上海？天地玄黄宇宙洪荒"
MAX_SEQ_LENGTH = 37
DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.2)
CONFIG = tiny_config(vocab_size=1, num_hidden_layers=1, **DROPOUT)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory, tiny_vocabulary) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    model = AlbertForPreTraining(dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size))
    with_random_weights(model, seed=1)
    tokenizer.save(str(directory))
    model_directory.save(model, str(directory))
    return directory


@pytest.fixture(scope="session")
def wordpiece(tmp_path_factory):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHINESE, *"abcdefghijklmnop,.!_"]
    pieces += [f"##{letter}" for letter in string.ascii_lowercase]
    pieces += [word[:4] for word in WORDS]
    path = tmp_path_factory.mktemp("wordpiece") / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def model(model_dir):
    return albert_tf.from_pretrained(model_dir)[0]


@pytest.fixture(scope="session")
def tokenizer(model_dir):
    return AlbertTokenizer.load(str(model_dir))


@pytest.fixture(scope="session")
def module(model, model_dir) -> PreTrainingModule:
    return PreTrainingModule(model, open_checkpoint(str(model_dir), None, MAX_SEQ_LENGTH))


@pytest.fixture(scope="session")
def exported(tmp_path_factory, model_dir, module) -> Path:
    """A published version of `module`, traced once. Others are verified in a fresh process."""
    output = str(tmp_path_factory.mktemp("exports") / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_saved_model, "load_module", lambda served: module)
        patch.setattr(export_saved_model, "verify", lambda *_: 0.0)
        arguments = {"checkpoint": str(model_dir), "max_seq_length": MAX_SEQ_LENGTH}
        return Path(export_saved_model.export(output=output, **arguments))


@pytest.fixture(scope="session")
def loaded(exported):
    return tf.saved_model.load(str(exported))


class SavedModule:
    """A module whose functions are those of its SavedModel: the first call of each takes long."""

    def __init__(self, module, loaded):
        self._module, self.function = module, loaded.signatures.__getitem__

    def __getattr__(self, name):
        return getattr(self._module, name)


@pytest.fixture(scope="session")
def saved_module(module, loaded):
    return SavedModule(module, loaded)
