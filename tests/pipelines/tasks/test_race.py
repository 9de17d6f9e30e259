import collections

import pytest

from albert_tf.storage.errors import UserError
from pipelines.tasks.race import RaceTask
from tests.builders import write_json_lines
from tests.pipelines.tasks.test_classification import pieces_of


def passage(name, questions=2):
    return {
        "id": f"{name}.txt",
        "article": f"Article {name}.",
        "questions": [f"Question {i} _ ?" for i in range(questions)],
        "options": [["w", "x", "y", "z"] for _ in range(questions)],
        "answers": ["D", "B", "A"][:questions],
    }


def write(path, *passages):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_lines(path, passages)


@pytest.fixture
def tree(tmp_path):
    for number, questions in ((10, 1), (9, 2), (100, 3)):
        write(tmp_path / f"RACE/dev/middle/{number}.txt", passage(f"middle{number}", questions))
    write(tmp_path / "RACE/dev/high/all.txt", passage("high7", 2), passage("high5", 1))
    write(tmp_path / "RACE/dev/high/7.txt", passage("high7", 2))  # what all.txt was made of
    return tmp_path


def test_reading(tree):
    for data_dir in (tree, tree / "RACE"):
        task = RaceTask(str(data_dir))
        examples = task.read("dev")
        numbers = {"middle9": 2, "middle10": 1, "middle100": 3, "high7": 2, "high5": 1}
        ids = [f"{name}.txt-{n}" for name, number in numbers.items() for n in range(number)]
        assert [example.id for example in examples] == ids
        assert [example.part for example in examples] == ["middle"] * 6 + ["high"] * 3
        assert [example.label for example in examples] == [3, 1, 3, 3, 1, 0, 3, 1, 3]
        second = examples[1]
        assert (second.question, second.context) == ("Question 1 _ ?", "Article middle9.")
        assert second.options == ("w", "x", "y", "z")
        assert task.read("test") is None and task.other_splits() == []


def test_a_test_split_may_lack_answers(tree):
    whole = passage("middle3")
    unknown = {name: whole[name] for name in whole if name != "answers"}
    write(tree / "RACE/test/middle/3.txt", unknown)
    task = RaceTask(str(tree))
    assert task.other_splits() == ["test"]
    assert [example.label for example in task.read("test")] == [None, None]
    write(tree / "RACE/test/middle/3.txt", whole)
    assert [example.label for example in task.read("test")] == [3, 1]
    write(tree / "RACE/dev/middle/9.txt", unknown)
    with pytest.raises(ValueError, match=r"dev/middle/9\.txt:1: no field 'answers'; .* 'id', 'art"):
        task.read("dev")


def test_faults(tmp_path):
    for change, problem in (
        ({"answers": ["D", "E"]}, r":2, question 1: 'answers' is 'E', expected 0 to 3 or A to D"),
        ({"answers": ["D"]}, r":2: questions, options, answers are not lists of one length"),
        ({"options": [["w"] * 4, ["w"] * 3]}, r":2, question 1: 3 'options', expected 4"),
        ({"questions": ["a", 3]}, r":2, question 1: 'questions' is 3, expected text"),
        ({"id": 5}, r":2: 'id' is 5, expected text"),
    ):
        write(tmp_path / "train/high/all.txt", passage("high1"), {**passage("high2"), **change})
        with pytest.raises(UserError, match=r"train/high/all\.txt" + problem):
            RaceTask(str(tmp_path)).read("train")


@pytest.mark.shared
def test_features_equal_the_references(shared, golden, spiece_30k):
    task = RaceTask(str(shared / "data" / "race" / "all_txt"))

    def first_answer(example):
        question, option = example.question, example.options[0]
        filled = question.replace("_", option) if "_" in question else f"{question} {option}"
        return spiece_30k.preprocess(filled)

    passages = collections.defaultdict(list)
    for example in task.read("dev"):
        passages[example.id.rsplit("-", 1)[0]].append(example)
    assert (len(passages), sum(map(len, passages.values()))) == (368 + 1021, 1436 + 3451)
    features = golden("race_dev_512_128")
    assert len(features) == 40
    examples = []
    for feature in features:
        first = spiece_30k.preprocess(feature["example"]["endings"][0])
        examples += [e for e in passages[feature["example_id"]] if first_answer(e) == first]
    sequences, _ = task.encode(examples, spiece_30k, 512, True)
    assert sequences.labels["labels"].tolist() == [feature["label_id"] for feature in features]
    masks, types, ids = (
        [row for feature in features for row in feature[name]]
        for name in ("input_mask", "segment_ids", "input_ids")
    )
    assert pieces_of(sequences) == [row[: sum(mask)] for row, mask in zip(ids, masks)]
    first_lengths = [sum(mask) - sum(of_second) for mask, of_second in zip(masks, types)]
    assert sequences.first_lengths.tolist() == first_lengths
