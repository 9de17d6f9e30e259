import dataclasses
import hashlib
from collections import Counter

import numpy as np
import pytest

from pipelines.tasks.classification import ClassificationTask, Example
from pipelines.tasks.multiple_choice import MultipleChoiceExample, MultipleChoiceTask
from pipelines.tasks.reading import dev_split
from pipelines.tasks.reading.dev_split import comparable, fold_numbers, shared_texts
from pipelines.tasks.reading.split_report import (
    describe_division,
    describe_split,
    warn_of_overlap,
    warn_of_rare_labels,
)
from pipelines.tasks.reading.squad_files import Question
from pipelines.tasks.squad import SquadTask
from tests.builders import raises_one_line
from tests.conftest import WORDS

KOREAN = "긍정적인 문장입니다"


def report(directory, tokenizer, rows, max_seq_length=16, **arguments):
    path = directory / "t.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    task = ClassificationTask("own", {"train": str(path)}, **arguments)
    examples = task.read("train")
    sequences, _ = task.encode(examples, tokenizer, max_seq_length, True)
    notes = task.summarise(examples)
    return describe_split("train", examples, sequences, tokenizer, max_seq_length, notes, 64)


@pytest.mark.parametrize(
    ("task", "example_of"),
    [
        (SquadTask({}, doc_stride=5), lambda text: Question("q", text, text, (), False)),
        (
            MultipleChoiceTask("own", {}, max_qa_length=9, num_choices=2),
            lambda text: MultipleChoiceExample("m", text, "", (text, text), None),
        ),
    ],
    ids=["windows", "options"],
)
def test_the_share_of_a_row_is_of_all_its_sequences(tokenizer, task, example_of):
    mixed = f"{WORDS[0]} 문"
    examples = [example_of(text) for text in ("문 " * 40, WORDS[0], "", mixed, "나 " * 9)]
    sequences, features = task.encode(examples, tokenizer, 24, False)
    shares = sequences.unknown_shares(task.owners(features), tokenizer)
    known = len(tokenizer.encode(WORDS[0]))
    assert shares == pytest.approx([1, 0, 1, 1 / (known + 1), 1])


def test_rows_labels_and_pieces(tokenizer, tmp_path):
    rows = [(WORDS[0], "pos")] * 30 + [(" ".join(WORDS[:5]), "neg")] * 10
    first, second = report(tmp_path, tokenizer, rows, 64)
    lengths = [len(tokenizer.encode(text)) + 2 for text, _ in rows]
    assert f" 40 rows; {np.mean(lengths):.1f} pieces on average" in first
    assert f" 95 % up to {np.percentile(lengths, 95):.0f}, longest {max(lengths)}; " in first
    assert first.endswith("; 0.0 % truncated to 64; 0.0 % of the pieces <unk>")
    assert second.strip() == "2 labels: 'neg' 10, 'pos' 30"


def test_truncated_and_unknown_pieces_are_warned_of_beyond_a_share(tokenizer, tmp_path):
    long, known = " ".join(WORDS * 3), " ".join(WORDS[:4])
    for long_rows, warns in ((10, False), (11, True)):
        rows = [("", "pos")] * (100 - long_rows) + [(long, "neg")] * long_rows
        lines = report(tmp_path, tokenizer, rows)
        assert f"{long_rows:.1f} % truncated to 16" in lines[0]
        assert f"longest {len(tokenizer.encode(long)) + 2};" in lines[0], "as it was, not as it is"
        assert any("11 % of train is truncated" in line for line in lines) == warns
    for text, warns in ((f"{known} {known}", False), (KOREAN, True)):
        lines = report(tmp_path, tokenizer, [(known, "pos")] * 50 + [(text, "neg")] * 50, 64)
        assert any("the vocabulary cannot spell this text" in line for line in lines) == warns


def divided(rows, is_dev):
    sides = [[row for row, place in zip(rows, is_dev) if place == dev] for dev in (False, True)]
    return sides[0], sides[1]


def split_off_dev(rows, fraction):
    return divided(rows, dev_split.split_off_dev(rows, shared_texts(rows), fraction))


def known_texts(rows):
    return {text for of_row in shared_texts(rows).texts for text in of_row} - {""}


def tickets(number):
    """Made-up tickets: few subjects of a label are frequent, and some subjects have two labels."""
    rng = np.random.default_rng(5)
    subjects = 1 / np.arange(1, 301) ** 1.1
    labels = ["login", "bill", "ship", "other", "legal"]
    labels = rng.choice(labels, number, p=[0.22, 0.4, 0.2, 0.15, 0.03])
    places = rng.choice(300, number, p=subjects / subjects.sum())
    texts = [f"{name if k % 9 else 'shared'} {k}" for name, k in zip(labels, places)]
    return [Example(str(i), *of) for i, of in enumerate(zip(texts, [None] * number, labels))]


def test_a_dev_set_has_the_share_asked_and_the_labels_of_train():
    examples = tickets(3000)
    train, dev = split_off_dev(examples, 0.1)
    assert len(train) + len(dev) == 3000 and 290 <= len(dev) <= 305
    assert not {e.text for e in train} & {e.text for e in dev}, "copies stay together"
    shares = [Counter(e.label for e in side) for side in (train, dev)]
    for name in shares[0]:
        assert abs(shares[0][name] / len(train) - shares[1][name] / len(dev)) < 0.012, name
    of_others = {e.id for e in split_off_dev(examples[::-1], 0.1)[1]}
    assert of_others == {e.id for e in dev}, "the order of rows does not count"
    more = [*examples, *(Example(f"new {i}", f"new {i}", None, "bill") for i in range(5))]
    moved = {e.id for e in split_off_dev(more, 0.1)[1]} ^ of_others
    assert len(moved) < 60, "rows that are added move few others"


def test_folds_divide_all_rows_and_keep_texts_and_shares_together():
    # Without the most frequent subject, which has more rows than a fold.
    examples, folds = [example for example in tickets(3000) if example.text != "shared 0"], 5
    numbers = fold_numbers(examples, folds)
    sizes = Counter(numbers)
    assert sizes.keys() == {*range(1, folds + 1)}
    assert max(sizes.values()) - min(sizes.values()) <= 5
    shares = Counter(example.label for example in examples)
    for fold in sizes:
        train, dev = divided(examples, np.equal(numbers, fold))
        assert len(train) + len(dev) == len(examples) and len(dev) == sizes[fold]
        assert not texts_of(train) & texts_of(dev)
        for label, number in Counter(e.label for e in dev).items():
            assert abs(number - shares[label] / folds) <= 10, (fold, label)
    assert fold_numbers(examples[::-1], folds) == numbers[::-1], "the order of rows has no effect"


def test_a_division_changes_with_its_number_only():
    rows = [Example(str(i), f"text {i * i % 401}", None, "abc"[i % 3]) for i in range(500)]
    dev = split_off_dev(rows, 0.1)[1]
    digest = hashlib.sha256(" ".join(e.id for e in dev).encode()).hexdigest()[:16]
    assert (dev_split.DIVISION, digest) == (4, "f07166fa1f799ad6"), "a new division: raise DIVISION"
    folds = fold_numbers(rows, 5)
    assert hashlib.sha256(bytes(folds)).hexdigest()[:16] == "fd2b800264f69250", "as well"
    with pytest.raises(ValueError, match=r"--folds=5: the rows have \d different texts: use"):
        fold_numbers(rows[:3], 5)
    alone = [Example(str(i), f"text {i}", None, str(i)) for i in range(7)]
    match = (
        r"^--dev_fraction=0\.2 of 7 rows leaves no row for dev: .*\(7 different texts\).*\(7 diff"
    )
    with raises_one_line(match):
        split_off_dev(alone, 0.2)


def test_labels_that_are_rare_in_dev():
    def warnings(**counts):
        rows = [Example("", "", None, label) for label in Counter(counts).elements()]
        return warn_of_rare_labels([Example("", "", None, "absent")], rows)

    assert warnings(absent=10, a=55) == []
    [few] = warnings(a=100, legal=9)
    assert "dev has fewer than ten rows of 'absent' 0, 'legal' 9: use a larger dev set" in few
    [few] = warnings(a=100, **{f"c{i}": 1 for i in range(99)})
    assert "and 88 others" in few and len(few) < 500


def test_texts_that_a_model_reads_as_one_stay_together():
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(list("abcdefé "), 20)) for _ in range(100)]
    examples = []
    for t in texts:
        forms = (t, t.upper(), t.replace("é", "e\u0301"), f" {t}\t".replace(" ", "  "))
        examples += [Example("0", form, None, "a") for form in forms]
    train, dev = split_off_dev(examples, 0.3)
    assert len(dev) % 4 == 0 and 15 < len(dev) / 4 < 45
    assert not texts_of(train) & texts_of(dev)


def texts_of(examples):
    return {comparable(text) for example in examples for text in example.separated}


def test_pairs_that_share_a_text_stay_together():
    pairs = [(f"a {i // 4}", f"b {i}") for i in range(400)]
    pairs += [pair[::-1] for pair in pairs[::8]]
    rows = [Example(str(i), *pair, "xy"[i % 2]) for i, pair in enumerate(pairs)]
    train, dev = split_off_dev(rows, 0.2)
    assert abs(len(dev) - 90) <= 2 and not texts_of(train) & texts_of(dev)
    train, dev = divided(rows, np.equal(fold_numbers(rows, 5), 2))
    assert abs(len(dev) - 90) <= 5 and not texts_of(train) & texts_of(dev)
    [warning] = warn_of_overlap("dev", rows[1:400:4], known_texts(rows[:400:4]))
    assert warning.startswith("warning: 100 % of dev shares a text with the training set: its")
    # A second text that repeats so much that all rows are connected does not count.
    rows = [Example(str(i), f"a {i // 4}", f"b {i % 3}", "x") for i in range(400)]
    swapped = [dataclasses.replace(row, text=row.text_pair, text_pair=row.text) for row in rows]
    for pairs, column in ((rows, "first"), (swapped, "second")):
        train, dev = split_off_dev(pairs, 0.2)
        assert len(dev) == 80 and {int(row.id) // 4 for row in dev}.isdisjoint(
            int(row.id) // 4 for row in train
        )
        [line] = describe_division(shared_texts(pairs))
        assert line.startswith(f"dev: only equal {column} texts stay on one side")
        assert warn_of_overlap("dev", dev, known_texts(train)) == []
