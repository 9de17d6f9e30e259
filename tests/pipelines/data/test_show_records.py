import json
import string

import numpy as np
import pytest

from pipelines.data.masking import unmask
from pipelines.data.records import Manifest
from pipelines.show_records import example_text
from tests import builders
from tests.jobs import run
from tests.pipelines.data.small_records import create_records, stand_in_tokenizer

# Pieces are letters: `A` begins a word (as `▁a`), `a` continues one.
ALPHABET = ".?#/*" + string.ascii_uppercase + string.ascii_lowercase
PIECES = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
PIECES += [*(f"▁{letter}" for letter in string.ascii_lowercase), *string.ascii_lowercase]
TOKENIZER = stand_in_tokenizer(np.arange(len(PIECES)) < 5 + 26)
TOKENIZER.id_to_piece = PIECES.__getitem__


def ids_of(text):
    return [*map(ALPHABET.index, text)]


def batch_of(*examples):
    """Each example: text before masking, text as it stands, label or None."""
    size, most, count = max(len(before) for before, _, _ in examples), 7, len(examples)
    names = [f"input_{name}" for name in ("word_ids", "mask", "type_ids")]
    names += [f"masked_lm_{name}" for name in ("positions", "ids", "weights")]
    batch = {n: np.zeros([count, size if "input" in n else most], np.int32) for n in names}
    for row, (before, now, _) in enumerate(examples):
        # A capital after an apostrophe is a kept prediction: none is visible otherwise.
        kept = [i - n for n, i in enumerate(i for i, c in enumerate(now) if c == "'")]
        now = now.replace("'", "")
        predicted = sorted({i for i, c in enumerate(now) if c != before[i]} | set(kept))
        batch["input_word_ids"][row, : len(now)] = ids_of(now)
        batch["input_mask"][row, : len(now)] = 1
        batch["input_type_ids"][row, before.index("/") + 1 : len(now)] = 1
        real = row, slice(len(predicted))
        batch["masked_lm_positions"][real] = predicted
        batch["masked_lm_ids"][real] = [ids_of(before)[i] for i in predicted]
        batch["masked_lm_weights"][real] = 1
    labels = [label for _, _, label in examples]
    batch["masked_lm_weights"] = batch["masked_lm_weights"].astype(np.float32)
    batch["sentence_order_labels"] = np.array([label or 0 for label in labels], np.int32)
    batch["sentence_order_weights"] = np.array([label is not None for label in labels], np.float32)
    return batch


# 14 pieces of text: 12 words, one of them of three pieces.
FIRST = ("#ABbbCDE/FGHIJKL/", "#A***C'DE/*GHIJK*/", 1)
SECOND = ("#PQ?RS/", "#P*?XS/", None)


def test_example_text():
    batch = batch_of(FIRST, SECOND)
    assert example_text(batch, 0, TOKENIZER, ("in order", "swapped")).split("\n") == [
        "label: swapped; 17 pieces, 0 padding; 6 predictions",
        "  A  a [MASK|b][MASK|b][MASK|b] c [kept|d] e",
        "  B  [MASK|f] g h i j k [MASK|l]",
    ]
    assert example_text(batch, 1, TOKENIZER, ("in order", "swapped")).split("\n") == [
        "label: none; 7 pieces, 10 padding; 2 predictions",
        "  A  p [MASK|q]<unk> [x|r] s",
    ]
    assert ids_of(FIRST[0]) == unmask(batch)[0].tolist()


@pytest.fixture(scope="module")
def record_dir(tmp_path_factory, tiny_corpus, tiny_vocabulary):
    output = str(tmp_path_factory.mktemp("records"))
    with builders.units_in_this_process():
        create_records(tiny_corpus, output, tiny_vocabulary, max_seq_length=48)
    return output


@pytest.mark.parametrize(("split", "objective"), [("train", "sop"), ("heldout", "nsp")])
def test_all_records_once(record_dir, tiny_vocabulary, tmp_path, split, objective):
    flags = [f"--record_dir={record_dir}", f"--spm_model_file={tiny_vocabulary}"]
    flags += [f"--split={split}", f"--sentence_objective={objective}"]
    out, _ = run("pipelines.show_records", *flags, f"--output={tmp_path}/new")
    result = json.loads((tmp_path / "new" / "statistics.json").read_text())
    manifest = Manifest.read(record_dir)
    examples = manifest.splits[split].examples
    assert result["examples"] == examples > 0
    if split == "train":
        # Each record once, with [CLS] and [SEP], and another [SEP] where there are two parts.
        pairs = round(examples * (1 - result["labels"]["unlabelled"]))
        assert result["pieces"] == manifest.splits[split].pieces + 2 * examples + pairs
    assert "example 3: label:" in out and "example 4" not in out
    assert ("another document's" if objective == "nsp" else "swapped") in out
    assert (tmp_path / "new" / "statistics.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert len(list((tmp_path / "new").iterdir())) == 2
