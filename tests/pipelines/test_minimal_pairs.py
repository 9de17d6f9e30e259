import csv
import gzip
import json

import numpy as np
import pytest

import albert_tf
from albert_tf.scoring import SentenceScorer
from pipelines import minimal_pairs
from pipelines.minimal_pairs import Pair, read_pairs
from tests.builders import write_json_lines
from tests.jobs import QUICKLY, run

ROWS = [
    {"sentence_good": "the cats sleep", "sentence_bad": "the cats sleeps", "UID": "agreement"},
    {"sentence_good": "he is here", "sentence_bad": "he are here", "UID": "agreement"},
    {"sentence_good": "the river is old", "sentence_bad": "the river is old", "UID": "tie"},
]


def test_files_of_both_forms(tmp_path):
    table = write_json_lines(tmp_path / "a.jsonl", ROWS)
    paths = [tmp_path / name for name in ("island.txt", "case.txt.gz")]
    paths[0].write_text("wrong one\nright one\nwrong two\nright two\n")
    paths[1].write_bytes(gzip.compress(b"him sleeps\nhe sleeps\n"))
    assert read_pairs([table, *map(str, paths)], 1) == [
        Pair("the cats sleep", "the cats sleeps", "agreement"),
        Pair("the river is old", "the river is old", "tie"),
        Pair("right one", "wrong one", "island"),
        Pair("he sleeps", "him sleeps", "case"),
    ]


def test_bad_input(tmp_path):
    for name, content, message in (
        ("odd.txt", "one\ntwo\nthree\n", r"odd\.txt: 3 lines; expected a wrong and a right"),
        ("empty.txt", "", r"empty\.txt: 0 lines"),
        ("a.jsonl", '{"sentence_good": "a"}\n', r"a\.jsonl:1: no field 'sentence_bad'"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            read_pairs([str(tmp_path / name)], None)
    (tmp_path / "p.csv").write_text("")
    flags = ["--checkpoint=c", f"--output={tmp_path}/./p", f"--input_file={tmp_path}/p.csv"]
    _, error = run("pipelines.minimal_pairs", *flags, exit_code=2)
    assert "p.csv' is an input file: choose another path" in error


def test_a_tie_is_one_half_and_groups_count_alike():
    pairs = [Pair("", "", group) for group in "aaab"]
    right = minimal_pairs._right(np.array([2, 1, 3, 0.0]), np.array([1, 1, 4, -1.0]))
    assert right.tolist() == [1, 0.5, 0, 1]
    found = minimal_pairs.figures(pairs, right, {})
    assert found["groups"]["a"]["model"] == 0.5 and found["groups"]["b"]["pairs"] == 1
    assert found["mean"]["model"] == 0.75 and found["mean"]["pairs"] == 4
    low, high = found["mean"]["interval"]
    assert low < 0.75 < high <= 1
    # Groups that are all right are not certain.
    assert minimal_pairs.figures(pairs, np.ones(4), {})["mean"]["interval"] == [
        pytest.approx(1 - np.hypot(0.5615, 0.7935) / 2, abs=1e-3),  # Wilson's 3 of 3 and 1 of 1
        1,
    ]
    # Pairs of known words are scored apart.
    pairs, model = [Pair("", "", group) for group in "aabb"], np.array([1, 0, 1, 0.5])
    baseline = {"words": np.ones(4), "known": np.array([True, False, False, False])}
    found = minimal_pairs.figures(pairs, model, baseline)
    assert found["groups"]["a"]["model_on_known"] == found["mean"]["model_on_known"] == 1
    assert found["groups"]["b"]["known_pairs"] == 0 and "model_on_known" not in found["groups"]["b"]


@pytest.mark.usefixtures("eager")  # the scores of this process
def test_the_program(pretrained, tmp_path):
    model, tokenizer = albert_tf.from_pretrained(pretrained)
    # "sleeps" occurs once.
    corpus = "The river is old; cats sleep.\n"
    (tmp_path / "corpus.txt").write_text(f"{corpus}{corpus}A dog sleeps.\n")
    table = write_json_lines(tmp_path / "a.jsonl", [ROWS[0], *ROWS])
    flags = [f"--checkpoint={pretrained}", f"--input_file={table}", f"--output={tmp_path}/out"]
    flags += [f"--corpus={tmp_path}/corpus.txt", "--pairs_per_group=2"]
    out, _ = run("pipelines.minimal_pairs", *flags, before=QUICKLY)
    assert "3 pairs of 2 groups" in out and "mean of the groups" in out
    assert out.count("words alone") == 3 and out.count("0 pairs of known words") == 1
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["pairs_per_group"] == 2
    assert result["input_file"] == table
    assert result["checkpoint"].startswith(f"{pretrained}/checkpoints/ckpt-")
    tie = result["groups"]["tie"]
    assert sum(tie.pop("interval")) == pytest.approx(1)
    halves = dict.fromkeys(("model", "words", "model_on_known"), 0.5)
    assert tie == {"pairs": 1, "known_pairs": 1, **halves}
    with open(tmp_path / "out.csv", encoding="utf-8") as file:
        scored = [*csv.DictReader(file)]
    scorer = SentenceScorer(model, tokenizer)
    for side in ("good", "bad"):
        texts = [row[f"sentence_{side}"] for row in (ROWS[0], ROWS[0], ROWS[2])]
        assert [row[f"sentence_{side}"] for row in scored] == texts
        expected = [found.log_likelihood for found in scorer(texts)]
        scores = [float(row[f"score_{side}"]) for row in scored]
        np.testing.assert_allclose(scores, expected, rtol=1e-5)
    is_right = float(scored[0]["score_good"]) > float(scored[0]["score_bad"])
    agreement = result["groups"]["agreement"]
    assert agreement["model"] == is_right and agreement["words"] == 1  # "sleep" is in the corpus
    with pytest.raises(ValueError, match=r"the sentence .* has no pieces"):
        minimal_pairs.score(scorer, [Pair("\u200b", "he", "")])


def test_words_alone(tmp_path):
    (tmp_path / "a.txt").write_text("The cats sleep. The cats are here\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"He is here, he\n"))
    counts = minimal_pairs.count_words([str(tmp_path / name) for name in ("a.txt", "b.txt.gz")])
    assert counts == {"the": 2, "cats": 2, "sleep": 1, "are": 1, "here": 2, "he": 2, "is": 1}
    # Each word counts once more: "the cats" is worth 3 * 3, "he sleeps." 3 * 1, "is sleep" 2 * 2.
    sides = [("The CATS", "he here"), ("he sleeps.", "is sleep"), ("?", "?"), ("A", "the cats")]
    found = minimal_pairs.compare_words(counts, [Pair(*side, "") for side in sides])
    assert found["words"].tolist() == [0.5, 0, 0.5, 1]
    assert found["known"].tolist() == [True, False, False, False]
