"""A model with another vocabulary: shared pieces keep their rows, new ones begin with a mean."""

import numpy as np

import albert_tf
from albert_tf.checkpoints import model_directory, name_map
from albert_tf.checkpoints.conversion import _old_pieces
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.tokenization import AlbertTokenizer
from tests.albert_tf.checkpoints.test_name_map import convert
from tests.builders import tiny_config, with_random_weights

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OLD = [*SPECIAL, "river", "runs", "north", "##ern", "x"]
NEW = ["[PAD]", "runs", *SPECIAL[1:], "northern", "river", "漢"]


def test_rows_of_the_new_vocabulary(tmp_path, capsys):
    config = tiny_config(vocab_size=len(OLD), num_hidden_layers=1)
    before = with_random_weights(AlbertForPreTraining(config))
    for name, pieces in (("old", OLD), ("new", NEW)):
        (tmp_path / f"{name}.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    model_directory.save(before, str(tmp_path / "old"))
    AlbertTokenizer(str(tmp_path / "old.txt")).save(str(tmp_path / "old"))
    (tmp_path / "new.json").write_text('{"settings": {"do_lower_case": false}}')
    convert(tmp_path / "old", tmp_path / "new", target_vocab=str(tmp_path / "new.txt"))
    assert "7 of 9 pieces keep their embeddings" in capsys.readouterr().out
    model, tokenizer = albert_tf.from_pretrained(tmp_path / "new")
    assert tokenizer.encode("northern river") == [6, 7] and not tokenizer.settings.do_lower_case
    before, after = name_map.arrays(before), name_map.arrays(model)
    for name in ("encoder/embeddings/word_embeddings", "masked_lm/output_bias"):
        old, new = before.pop(name), after.pop(name)
        for place, piece in enumerate(NEW):
            if piece in OLD:
                np.testing.assert_array_equal(new[place], old[OLD.index(piece)])
        np.testing.assert_allclose(new[6], (old[7] + old[8]) / 2, rtol=1e-6)
        np.testing.assert_allclose(new[8], old.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_equal(after, before)


def test_a_vocabulary_of_another_format_and_case(tmp_path, tiny_vocabulary):
    """Pieces are the same if both begin a word, or both continue one."""
    old = AlbertTokenizer(str(tiny_vocabulary))
    alone = [p[1:] for p in old.pieces if p[0] == "▁" and p[1:] in old.pieces and p[1:].isalpha()]
    inner = [f"##{piece}" for piece in alone]
    new = [*SPECIAL, *alone, *inner, "."]
    (tmp_path / "new.txt").write_text("\n".join(new) + "\n", encoding="utf-8")
    sources, number = _old_pieces(old, AlbertTokenizer(str(tmp_path / "new.txt"), True))
    found = [[old.pieces[i] for i in ids] for ids in sources[len(SPECIAL) :]]
    assert alone and found[: 2 * len(alone)] == [*([f"▁{p}"] for p in alone), *([p] for p in alone)]
    assert found[-1][0].lstrip("▁") == "." and number == len(new)
    back = _old_pieces(AlbertTokenizer(str(tmp_path / "new.txt"), True), old)[0]
    for piece in alone:
        assert back[old.pieces.index(f"▁{piece}")] == [new.index(piece)]
        assert back[old.pieces.index(piece)] == [new.index(f"##{piece}")]
