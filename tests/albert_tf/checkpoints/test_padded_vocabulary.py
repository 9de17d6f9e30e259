"""Models whose embeddings are padded to a multiple of 8: rows beyond the vocabulary are dropped."""

import numpy as np
import pytest

import albert_tf
from albert_tf.checkpoints import huggingface, model_directory, name_map
from albert_tf.checkpoints.pretrained import create_model
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from export.loading import load_module, open_checkpoint
from pipelines.training.run import read_initial_model
from tests.albert_tf.checkpoints.test_fine_tuned import TASKS
from tests.albert_tf.checkpoints.test_name_map import convert
from tests.builders import tiny_config, with_random_weights

ROWS = ("encoder/embeddings/word_embeddings", "masked_lm/output_bias")


@pytest.mark.parametrize("kind", [None, "question_answering"])
def test_foreign_rows_are_dropped(kind, tiny_vocabulary, tmp_path, capsys):
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    pieces, theirs = tokenizer.vocab_size, tmp_path / "theirs"
    task = kind and {"task": "own", "kind": kind, **TASKS[kind], "max_seq_length": 60}
    config = tiny_config(vocab_size=pieces + 8)
    model = with_random_weights(create_model(config, task or {}))
    theirs.mkdir()
    huggingface.write(str(theirs), model, task)
    tokenizer.save(str(theirs))
    dropped = f"8 embedded rows beyond the vocabulary's {pieces} pieces are dropped"
    with pytest.warns(UserWarning, match=dropped):
        found = [albert_tf.from_pretrained(theirs)[0]]
    ours = convert(theirs, tmp_path / "ours")
    assert dropped in capsys.readouterr().out
    found.append(load_module(open_checkpoint(str(ours))).model)
    again = convert(ours if kind else theirs, tmp_path / "again", "huggingface")
    found.append(albert_tf.from_pretrained(again)[0])
    for other in found:
        assert other.config.vocab_size == pieces
        expected, arrays = name_map.arrays(model), name_map.arrays(other)
        for name, array in arrays.items():
            if kind != "question_answering" or "pooler" not in name:
                kept = expected[name][: pieces if name in ROWS else None]
                np.testing.assert_array_equal(array, kept, err_msg=name)


def test_our_directories_are_refused_before_training(tiny_vocabulary, tmp_path):
    tokenizer = AlbertTokenizer(str(tiny_vocabulary))
    model = AlbertForPreTraining(tiny_config(vocab_size=tokenizer.vocab_size + 8))
    model.create_variables()
    model_directory.save(model, str(tmp_path))
    tokenizer.save(str(tmp_path))
    for read in (read_initial_model, open_checkpoint):
        with pytest.raises(UserError, match=r"the vocabulary has .* they belong to different mod"):
            read(str(tmp_path))
