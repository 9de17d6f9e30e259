"""A model with another vocabulary: shared pieces keep their rows, new ones begin with a mean."""

from __future__ import annotations

import numpy as np
import pytest

from albert_tf.checkpoints import model_directory, name_map
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.convert_checkpoint import convert

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OLD = [*SPECIAL, "river", "runs", "north", "##ern", "x"]
NEW = ["[PAD]", "runs", *SPECIAL[1:], "northern", "river", "漢"]


def write_vocabulary(path, pieces):
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def converted(tmp_path, capsys):
    """The weights before, and the model directory after."""
    config = AlbertConfig(
        vocab_size=len(OLD),
        embedding_size=6,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=10,
        max_position_embeddings=9,
    )
    model = AlbertForPreTraining(config)
    model.create_variables()
    rng = np.random.RandomState(0)
    for variable in model.variables:
        variable.assign(rng.normal(size=variable.shape))
    (tmp_path / "old").mkdir()
    model_directory.save_for_pretraining(model, str(tmp_path / "old"))
    AlbertTokenizer(write_vocabulary(tmp_path / "old.txt", OLD)).save(str(tmp_path / "old"))
    convert(
        input_path=str(tmp_path / "old"),
        output_dir=str(tmp_path / "new"),
        target_vocab=write_vocabulary(tmp_path / "new.txt", NEW),
    )
    assert "7 of 9 pieces keep their embeddings" in capsys.readouterr().out
    return name_map.arrays(model), tmp_path / "new"


def test_rows_of_the_new_vocabulary(converted):
    before, directory = converted
    model, model_dir = model_directory.load_for_pretraining(str(directory))
    assert AlbertTokenizer.load(model_dir).encode("northern river") == [6, 7]
    after = name_map.arrays(model)
    for name in ("encoder/embeddings/word_embeddings", "masked_lm/output_bias"):
        old, new = before.pop(name), after.pop(name)
        for place, piece in enumerate(NEW):
            if piece in OLD:
                np.testing.assert_array_equal(new[place], old[OLD.index(piece)])
        np.testing.assert_allclose(new[6], (old[7] + old[8]) / 2, rtol=1e-6)
        np.testing.assert_allclose(new[8], old.mean(axis=0), rtol=1e-5, atol=1e-6)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


def test_the_same_vocabulary_changes_nothing(converted, tmp_path):
    _, directory = converted
    convert(
        input_path=str(directory),
        output_dir=str(tmp_path / "again"),
        target_vocab=str(directory / "vocab.txt"),
    )
    first, second = (
        name_map.arrays(model_directory.load_for_pretraining(str(path))[0])
        for path in (directory, tmp_path / "again")
    )
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array, err_msg=name)
