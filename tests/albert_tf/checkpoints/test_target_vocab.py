"""A model with another vocabulary: shared pieces keep their rows, new ones begin with a mean."""

import numpy as np

from albert_tf.checkpoints import model_directory, name_map
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.convert_checkpoint import convert
from tests.builders import tiny_config, with_random_weights

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OLD = [*SPECIAL, "river", "runs", "north", "##ern", "x"]
NEW = ["[PAD]", "runs", *SPECIAL[1:], "northern", "river", "漢"]


def test_rows_of_the_new_vocabulary(tmp_path, capsys):
    config = tiny_config(vocab_size=len(OLD), num_hidden_layers=1)
    before = with_random_weights(AlbertForPreTraining(config))
    for name, pieces in (("old", OLD), ("new", NEW)):
        (tmp_path / f"{name}.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    model_directory.save_for_pretraining(before, str(tmp_path / "old"))
    AlbertTokenizer(str(tmp_path / "old.txt")).save(str(tmp_path / "old"))
    convert(
        input_path=str(tmp_path / "old"),
        output_dir=str(tmp_path / "new"),
        target_vocab=str(tmp_path / "new.txt"),
    )
    assert "7 of 9 pieces keep their embeddings" in capsys.readouterr().out
    model, model_dir = model_directory.load_for_pretraining(str(tmp_path / "new"))
    assert AlbertTokenizer.load(model_dir).encode("northern river") == [6, 7]
    before, after = name_map.arrays(before), name_map.arrays(model)
    for name in ("encoder/embeddings/word_embeddings", "masked_lm/output_bias"):
        old, new = before.pop(name), after.pop(name)
        for place, piece in enumerate(NEW):
            if piece in OLD:
                np.testing.assert_array_equal(new[place], old[OLD.index(piece)])
        np.testing.assert_allclose(new[6], (old[7] + old[8]) / 2, rtol=1e-6)
        np.testing.assert_allclose(new[8], old.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_equal(after, before)
