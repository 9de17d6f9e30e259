"""Models whose embeddings are padded to a multiple of 8: rows beyond the vocabulary are dropped."""

import numpy as np
import pytest

import albert_tf
from albert_tf.checkpoints import huggingface, model_directory, name_map
from albert_tf.kinds import KINDS
from albert_tf.models import AlbertForPreTraining
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from export.loading import load_module, open_checkpoint
from pipelines.convert_checkpoint import convert, convert_fine_tuned
from pipelines.predict import load
from pipelines.training.run import read_initial_model
from tests.albert_tf.checkpoints.test_fine_tuned import TASKS
from tests.builders import tiny_config, with_random_weights

ROWS = ("encoder/embeddings/word_embeddings", "masked_lm/output_bias")


@pytest.fixture
def tokenizer(tiny_vocabulary):
    return AlbertTokenizer(str(tiny_vocabulary))


def padded(tokenizer, create_model=AlbertForPreTraining):
    return with_random_weights(create_model(tiny_config(vocab_size=tokenizer.vocab_size + 8)))


@pytest.mark.parametrize("kind", [None, "classifier", "question_answering"])
def test_foreign_rows_are_dropped(kind, tokenizer, tmp_path, capsys):
    theirs, ours, again = (tmp_path / name for name in ("theirs", "ours", "again"))
    task = kind and {"task": "own", "kind": kind, **TASKS[kind], "max_seq_length": 60}
    created = [lambda config: KINDS[kind].create_model(config, task)] if kind else []
    model, pieces = padded(tokenizer, *created), tokenizer.vocab_size
    theirs.mkdir()
    huggingface.write(str(theirs), model.config, name_map.arrays(model), task)
    tokenizer.save(str(theirs))
    dropped = f"8 embedded rows beyond the vocabulary's {pieces} pieces are dropped"
    with pytest.warns(UserWarning, match=dropped):
        found = [albert_tf.from_pretrained(theirs)[0]]
    (convert_fine_tuned if kind else convert)(input_path=str(theirs), output_dir=str(ours))
    assert dropped in capsys.readouterr().out
    found.append(load_module(open_checkpoint(str(ours))).model)
    arguments = {"input_path": str(ours if kind else theirs), "output_dir": str(again)}
    (convert_fine_tuned if kind else convert)(**arguments, output_format="huggingface")
    found.append(albert_tf.from_pretrained(again)[0])
    for other in found:
        assert other.config.vocab_size == pieces
        expected, arrays = name_map.arrays(model), name_map.arrays(other)
        for name, array in arrays.items():
            if kind != "question_answering" or "pooler" not in name:
                kept = expected[name][: pieces if name in ROWS else None]
                np.testing.assert_array_equal(array, kept, err_msg=name)


def test_our_directories_are_refused_before_training(tokenizer, tmp_path, capsys):
    """convert_checkpoint wrote such directories before it dropped the rows."""
    old, new = (str(tmp_path / name) for name in ("old", "new"))
    model_directory.save_for_pretraining(padded(tokenizer), old)
    tokenizer.save(old)
    for read in (read_initial_model, open_checkpoint):
        with pytest.raises(
            UserError, match=r"old': the vocabulary has .*convert the original model again"
        ):
            read(old)
    convert(input_path=old, output_dir=new)
    capsys.readouterr()
    asked = [load(path).predict(["the river"])[0]["log_likelihood"] for path in (old, new)]
    assert asked[0] == asked[1] and capsys.readouterr().out.count("dropped") == 1
    assert read_initial_model(new).config.vocab_size == tokenizer.vocab_size
