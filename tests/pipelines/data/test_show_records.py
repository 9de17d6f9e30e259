import json

import numpy as np
import pytest

from pipelines.data.records import Manifest
from pipelines.show_records import example_text
from tests.jobs import run
from tests.pipelines.data.small_records import create_records, stand_in_tokenizer

PIECES = "<pad> <unk> [CLS] [SEP] [MASK] ▁a ▁b b ▁c ▁d".split()
TOKENIZER = stand_in_tokenizer(np.array([piece.startswith("▁") for piece in PIECES]))
TOKENIZER.id_to_piece = PIECES.__getitem__


def test_example_text():
    """[CLS] a bb c [SEP] d a [SEP], and [CLS] a b [SEP], of which a became d and b is kept."""
    batch = {
        "input_word_ids": [[2, 5, 4, 4, 8, 3, 4, 5, 3], [2, 9, 6, 3, *[0] * 5]],
        "input_mask": [[1] * 9, [1] * 4 + [0] * 5],
        "input_type_ids": [[0] * 6 + [1] * 3, [0] * 9],
        "masked_lm_positions": [[2, 3, 6], [1, 2, 0]],
        "masked_lm_ids": [[6, 7, 9], [5, 6, 0]],
        "masked_lm_weights": [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]],
        "sentence_order_labels": [1, 0],
        "sentence_order_weights": [1.0, 0.0],
    }
    batch = {name: np.array(values) for name, values in batch.items()}
    names = ("in order", "swapped")
    assert example_text(batch, 0, TOKENIZER, names).split("\n") == [
        "label: swapped; 9 pieces, 0 padding; 3 predictions",
        "  A  a [MASK|b][MASK|b] c",
        "  B  [MASK|d] a",
    ]
    assert example_text(batch, 1, TOKENIZER, names).split("\n") == [
        "label: none; 4 pieces, 5 padding; 2 predictions",
        "  A  [d|a] [kept|b]",
    ]


@pytest.mark.slow
def test_all_records_once(tiny_corpus, tiny_vocabulary, tmp_path, in_this_process):
    records, output = str(tmp_path / "records"), tmp_path / "new"
    create_records(tiny_corpus, records, tiny_vocabulary, max_seq_length=48)
    flags = [f"--record_dir={records}", f"--spm_model_file={tiny_vocabulary}"]
    out, _ = run("pipelines.show_records", *flags, f"--output={output}")
    result = json.loads((output / "statistics.json").read_text())
    split = Manifest.read(records).splits["train"]
    assert result["examples"] == split.examples > 0
    # Each record once, with [CLS] and [SEP], and another [SEP] where there are two parts.
    pairs = round(split.examples * (1 - result["labels"]["unlabelled"]))
    assert result["pieces"] == split.pieces + 2 * split.examples + pairs
    assert "example 3: label:" in out and "example 4" not in out
    assert "swapped" in out
    assert (output / "statistics.png").read_bytes().startswith(b"\x89PNG\r\n")
