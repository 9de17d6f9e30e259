import csv
import gzip
import json

import numpy as np
import pytest

import albert_tf
from albert_tf.scoring import SentenceScorer
from pipelines import minimal_pairs
from pipelines.minimal_pairs import Columns, Pair, read_pairs
from tests.builders import write_json_lines
from tests.jobs import run

ROWS = [
    {"sentence_good": "the cats sleep", "sentence_bad": "the cats sleeps", "UID": "agreement"},
    {"sentence_good": "he is here", "sentence_bad": "he are here", "UID": "agreement"},
    {"sentence_good": "the river is old", "sentence_bad": "the river is old", "UID": "tie"},
]


def test_files_of_both_forms(tmp_path):
    table = write_json_lines(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "b").mkdir()
    paths = [tmp_path / name for name in ("island.txt", "case.txt.gz", "b/case.txt")]
    paths[0].write_text("wrong one\nright one\nwrong two\nright two\n")
    paths[1].write_bytes(gzip.compress(b"him sleeps\nhe sleeps\n"))
    paths[2].write_text("him sleeps\nhe sleeps\n")
    assert read_pairs([table, *map(str, paths[:2])], Columns(), 1) == [
        Pair("the cats sleep", "the cats sleeps", "agreement"),
        Pair("the river is old", "the river is old", "tie"),
        Pair("right one", "wrong one", "island"),
        Pair("he sleeps", "him sleeps", "case"),
    ]
    # Fields: a column of a table, and the name of a text file up to its last hyphen.
    fields = write_json_lines(tmp_path / "f.jsonl", [{**row, "of": "syntax"} for row in ROWS])
    (tmp_path / "filler-gap-wh.txt").write_text("wrong\nright\n")
    rows = [{**ROWS[0], "UID": "filler-gap-wh"}]
    without = write_json_lines(tmp_path / "without.jsonl", rows)
    assert len(read_pairs([str(tmp_path / "filler-gap-wh.txt"), without], Columns(), None)) == 2
    paths.append(tmp_path / "filler-gap-wh.txt")
    found = read_pairs([fields, str(paths[-1])], Columns(field_column="of"), 1)
    assert [pair.field for pair in found] == ["syntax", "syntax", "filler-gap"]
    with pytest.raises(ValueError, match=r"b/case\.txt and .*case\.txt\.gz would be one group"):
        read_pairs([str(path) for path in paths], Columns(), None)


def test_bad_input(tmp_path):
    for name, content, message in (
        ("odd.txt", "one\ntwo\nthree\n", r"odd\.txt: 3 lines; expected pairs, the wrong"),
        ("empty.txt", "", r"empty\.txt: 0 lines"),
        ("blank.txt", "\nwrong\nright\nwrong\n", r"blank\.txt:1: an empty sentence"),
        ("b.csv", "sentence_good,sentence_bad,UID\na,b,x\n,b,x\n", r"b\.csv:3: an empty"),
        (
            "a.jsonl",
            '{"sentence_good": "a"}\n',
            r"a\.jsonl:1: no field 'sentence_bad'.*; see the column flags",
        ),
        (
            "a.csv",
            "good,bad\nx,y\n",
            r"a\.csv:1: no column 'sentence_good'.*the column flags in --help",
        ),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            read_pairs([str(tmp_path / name)], Columns(), None)
    (tmp_path / "f.csv").write_text("good,bad,UID,of\na,b,x,syntax\na,b,x,case\n")
    with pytest.raises(
        ValueError, match=r"f\.csv:3: group 'x' has the field 'case' here, but 'syn"
    ):
        read_pairs([str(tmp_path / "f.csv")], Columns("good", "bad", field_column="of"), None)
    for content, message in (
        ("UID,lstm\nx,0.5\n", "p.csv: no row of group 'y'; expected a row for each group"),
        ("UID,lstm\nx,0.5\nx,1\n", "p.csv:3: a second row of group 'x'"),
        ("UID,lstm\nx,50\n", "p.csv:2: 'lstm' is 50.0; expected an accuracy between 0 and 1"),
        ("UID,lstm\nx,half\n", "p.csv:2: 'lstm' is \"half\", expected a number"),
        ("UID,gpt\nx,1\n", "p.csv:1: no column 'lstm'"),
    ):
        (tmp_path / "p.csv").write_text(content)
        with pytest.raises(ValueError, match=message):
            minimal_pairs.read_published(str(tmp_path / "p.csv"), ["lstm"], "UID", {"x", "y"})
    for flags, message in (
        (["--output=o", "--published=p"], "--published and --published_columns need each other"),
        ([f"--output={tmp_path}/"], "no file name at its end; expected a path prefix, such as"),
    ):
        flags += ["--checkpoint=c", "--input_file=i"]
        _, error = run("pipelines.minimal_pairs", *flags, exit_code=2)
        assert message in error
    with pytest.raises(ValueError, match="--good_column=score_good: OUTPUT"):
        Columns(good_column="score_good")
    tables = [f"--input_file={tmp_path}/b.csv", f"--published={tmp_path}/p.csv"]
    for flags in (
        [f"--input_file={tmp_path}/p.csv"],
        [*tables, "--published_columns=lstm"],
        [tables[0], f"--corpus={tmp_path}/p.csv"],
    ):
        flags += ["--checkpoint=c", f"--output={tmp_path}/./p"]
        _, error = run("pipelines.minimal_pairs", *flags, exit_code=2)
        assert "p.csv' is an input file: choose another path" in error


def test_a_tie_is_one_half_and_groups_count_alike():
    pairs = [Pair("", "", group) for group in "aaab"]
    right = {"model": minimal_pairs._right(np.array([2, 1, 3, 0.0]), np.array([1, 1, 4, -1.0]))}
    assert right["model"].tolist() == [1, 0.5, 0, 1]
    found = minimal_pairs.figures(pairs, right)
    assert found["groups"]["a"]["model"] == 0.5 and found["groups"]["b"]["pairs"] == 1
    assert found["mean"]["model"] == 0.75
    low, high = found["mean"]["interval"]
    assert low < 0.75 < high <= 1
    # Groups that are all right are not certain.
    assert minimal_pairs.figures(pairs, {"model": np.ones(4)})["mean"]["interval"] == [
        pytest.approx(1 - np.hypot(0.5615, 0.7935) / 2, abs=1e-3),  # Wilson's 3 of 3 and 1 of 1
        1,
    ]
    # Pairs of known words are scored apart.
    pairs = [Pair("", "", group) for group in "aabb"]
    right = {"model": np.array([1, 0, 1, 0.5]), "words": np.ones(4)}
    known = np.array([True, False, False, False])
    found = minimal_pairs.figures(pairs, right, {"known": known})
    assert found["groups"]["a"]["model_on_known"] == found["mean"]["model_on_known"] == 1
    assert found["groups"]["b"]["known_pairs"] == 0 and "model_on_known" not in found["groups"]["b"]
    alone = minimal_pairs.figures(pairs[:2], {"model": np.ones(2)})
    assert minimal_pairs.report(alone).count("100.0 %") == 1
    found = minimal_pairs.figures(pairs, right, {"known": known & False})
    assert "model_on_known" not in found["mean"]
    # A field has the mean of its groups, whatever the number of their pairs.
    pairs = [Pair("", "", *names) for names in ("ax", "ax", "ax", "bx", "cy", "d")]
    accuracies = {"a": 0.5, "b": 0.75, "c": 0.125, "d": 0.0}
    published = {group: {"lstm": value} for group, value in accuracies.items()}
    right = {"model": np.array([1, 1, 1, 0, 1, 0.0])}
    pairs[0] = Pair("", "", "a")  # from a file that names no field
    found = minimal_pairs.figures(pairs, right, published=published)
    assert {name: values["model"] for name, values in found["fields"].items()} == {"x": 0.5, "y": 1}
    assert found["fields"]["x"]["pairs"] == 4 and found["mean"]["pairs"] == 6
    assert found["fields"]["x"]["published"] == {"lstm": 0.625}
    assert found["mean"]["model"] == 0.5 and found["mean"]["published"] == {"lstm": 1.375 / 4}
    of_field = minimal_pairs.figures(pairs[:4], {"model": right["model"][:4]})["mean"]["interval"]
    assert found["fields"]["x"]["interval"] == of_field


@pytest.mark.usefixtures("eager")  # the scores of this process
def test_the_program(pretrained, tmp_path):
    model, tokenizer = albert_tf.from_pretrained(pretrained)
    # "sleeps" occurs once.
    corpus = "The river is old; cats sleep.\n"
    (tmp_path / "corpus.txt").write_text(f"{corpus}{corpus}A dog sleeps.\n")
    table = write_json_lines(tmp_path / "a.jsonl", [{**row, "of": "syntax"} for row in ROWS])
    flags = [
        "--field_column=of",
        f"--checkpoint={pretrained}",
        f"--input_file={table}",
        f"--output={tmp_path}/out",
    ]
    flags.append(f"--corpus={tmp_path}/corpus.txt")
    published = [{"UID": name, "lstm": 0.25} for name in ("agreement", "tie", "other", "other")]
    published = [{**row, "$a_{$": 0.5} for row in published]  # no formula
    flags.append(f"--published={write_json_lines(tmp_path / 'published.jsonl', published)}")
    flags.append("--published_columns=lstm,$a_{$")
    out, _ = run("pipelines.minimal_pairs", *flags)
    assert "3 pairs of 2 groups" in out and "mean of the groups" in out
    assert out.count("words alone") == 4
    assert out.count("lstm 25.0 %, $a_{$ 50.0 %") == 4 and "field syntax" in out
    assert out.count("1 pairs of known words") == 3
    result = json.loads((tmp_path / "out.json").read_text())
    tie = result["groups"]["tie"]
    assert sum(tie.pop("interval")) == pytest.approx(1)
    halves = dict.fromkeys(("model", "words", "model_on_known", "model_on_equal_length"), 0.5)
    assert tie == {
        "pairs": 1,
        "known_pairs": 1,
        "equal_length_pairs": 1,
        "published": {"lstm": 0.25, "$a_{$": 0.5},
        **halves,
    }
    assert result["fields"] == {"syntax": result["mean"]}
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "out.csv", encoding="utf-8") as file:
        scored = [*csv.DictReader(file)]
    for side in ("good", "bad"):
        texts = [row[f"sentence_{side}"] for row in ROWS]
        assert [row[f"sentence_{side}"] for row in scored] == texts
        found = SentenceScorer(model, tokenizer)(texts)
        assert [int(row[f"pieces_{side}"]) for row in scored] == [one.num_pieces for one in found]
        scores = [float(row[f"score_{side}"]) for row in scored]
        np.testing.assert_allclose(scores, [one.log_likelihood for one in found], rtol=1e-5)
    columns = Columns(field_column="of")
    assert read_pairs([f"{tmp_path}/out.csv"], columns, None) == read_pairs([table], columns, None)

    def is_right(row, masks_rest_of_word):
        scorer = SentenceScorer(model, tokenizer, masks_rest_of_word=masks_rest_of_word)
        good, bad = scorer([row["sentence_good"], row["sentence_bad"]])
        return good.log_likelihood > bad.log_likelihood

    expected = np.mean([is_right(row, True) for row in ROWS[:2]])
    assert result["groups"]["agreement"]["model"] == expected
    assert result["groups"]["agreement"]["words"] == 1  # "sleep" and "is" are in the corpus
    sides = [[row[f"sentence_{side}"] for row in ROWS] for side in ("good", "bad")]
    lengths = [map(len, tokenizer.encode_batch(side)) for side in sides]
    equal = sum(good == bad for good, bad in zip(*lengths))
    assert result["mean"]["equal_length_pairs"] == equal < len(ROWS)
    assert out.count("pairs with equal numbers of pieces") == 4
    assert result["checkpoint"].startswith(f"{pretrained}/checkpoints/ckpt-")
    assert result["input_file"] == table and result["pairs_per_group"] is None
    swapped = ["--good_column=sentence_bad", "--bad_column=sentence_good", "--masking=piece"]
    out, _ = run("pipelines.minimal_pairs", *flags, *swapped, "--pairs_per_group=1")
    assert "2 pairs of 2 groups" in out
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["masking"] == "piece"
    assert result["groups"]["agreement"]["model"] == 1 - is_right(ROWS[0], False)
    assert result["pairs_per_group"] == 1
    empty = {**ROWS[0], "sentence_bad": "\u200b", "of": "syntax"}
    write_json_lines(tmp_path / "a.jsonl", [empty])
    _, error = run("pipelines.minimal_pairs", *flags, exit_code=2)
    assert "group 'agreement': the sentence '\\u200b' has no pieces" in error


def test_words_alone(tmp_path):
    (tmp_path / "a.txt").write_text("The cats sleep. The cats are here\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"He is here, he\n"))
    counts = minimal_pairs.count_words([str(tmp_path / name) for name in ("a.txt", "b.txt.gz")])
    assert counts == {"the": 2, "cats": 2, "sleep": 1, "are": 1, "here": 2, "he": 2, "is": 1}
    found = minimal_pairs.sum_log_frequencies(counts, ["The CATS", "he sleeps.", ""])
    # 11 words, 7 different; each counts once more, and there is one for all that do not occur.
    np.testing.assert_allclose(np.exp(found), [9 / 19**2, 3 / 19**2, 1])
    hindi = "\u0939\u093f\u0928\u094d\u0926\u0940"
    assert minimal_pairs.words_of(f"{hindi}, cafe\u0301!") == [hindi, "cafe\u0301"]
    for name, content in (("a.jsonl", b'{"text": "a"}'), ("empty.txt", b"?!"), ("b.txt", b"a\xff")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            minimal_pairs.count_words([str(tmp_path / name)])
