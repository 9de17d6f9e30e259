"""Every kind of task is learnt, predicted, and goes on as the same run or is refused."""

import json
import random

import pytest

from pipelines.tasks.classification import ClassificationTask, Columns
from pipelines.tasks.multiple_choice import MultipleChoiceColumns, TableMultipleChoiceTask
from pipelines.tasks.reading.token_files import TokenColumns
from pipelines.tasks.squad import SquadTask
from pipelines.tasks.token_classification import TokenClassificationTask
from pipelines.training.settings import LoopSettings
from tests.builders import read_tsv, run_task
from tests.conftest import WORDS
from tests.jobs import log


def squad_files(directory):
    """Questions whose answer is the word after "some"."""
    rng = random.Random(1)
    files = {}
    for split, number in (("train", 26), ("dev", 11)):
        paragraphs = []
        for i in range(number):
            words = rng.choices(WORDS, k=30)
            context = " ".join(words)
            answer = [{"text": words[7], "answer_start": len(" ".join(words[:7])) + 1}]
            impossible = i % 3 == 0
            entry = {"id": f"{split}{i}", "question": "who sleeps", "is_impossible": impossible}
            entry["answers"] = [] if impossible else answer
            paragraphs.append({"context": context, "qas": [entry]})
        files[split] = directory / f"{split}.json"
        files[split].write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return {split: str(path) for split, path in files.items()}


def choice_files(directory):
    rng = random.Random(2)
    files = {}
    for split, number in (("train", 25), ("dev", 10)):
        rows = [
            {"text": " ".join(rng.choices(WORDS, k=12)), "options": rng.choices(WORDS, k=3)}
            for _ in range(number)
        ]
        files[split] = directory / f"{split}.jsonl"
        lines = [json.dumps({**row, "label": rng.randrange(3)}) for row in rows]
        files[split].write_text("\n".join(lines) + "\n")
    return {split: str(path) for split, path in files.items()}


def regression_files(directory):
    rng = random.Random(3)
    files = {}
    for split, number in (("train", 27), ("dev", 13)):
        rows = [
            (str(k), " ".join(rng.choices(WORDS, k=k))) for k in rng.choices(range(1, 30), k=number)
        ]
        files[split] = directory / f"{split}.tsv"
        files[split].write_text(
            "label\ttext\n" + "".join(f"{int(n) / 10}\t{text}\n" for n, text in rows)
        )
    return {split: str(path) for split, path in files.items()}


def token_files(directory):
    """Words with tags; rivers are entities."""
    rng = random.Random(4)
    files = {}
    for split, number in (("train", 27), ("dev", 13)):
        texts = [
            rng.choices([*WORDS, "river", "river"], k=rng.randint(1, 60)) for _ in range(number)
        ]
        files[split] = directory / f"{split}.conll"
        lines = [[f"{word}\t{'B-water' if word == 'river' else 'O'}" for word in t] for t in texts]
        files[split].write_text("\n\n".join("\n".join(rows) for rows in lines) + "\n")
    return {split: str(path) for split, path in files.items()}


KINDS = {
    "spans": lambda d: SquadTask(squad_files(d), may_be_impossible=True, doc_stride=16),
    "beams": lambda d: SquadTask(
        squad_files(d), may_be_impossible=True, has_answerability_head=True, doc_stride=16
    ),
    "choices": lambda d: TableMultipleChoiceTask(
        "multiple_choice", choice_files(d), MultipleChoiceColumns("text", "options", "label")
    ),
    "numbers": lambda d: ClassificationTask(
        "regression", regression_files(d), Columns("text", "label"), is_regression=True
    ),
    "tokens": lambda d: TokenClassificationTask(
        "token_classification", token_files(d), TokenColumns(), doc_stride=20
    ),
}


SLOW = ("beams", "choices", "numbers", "tokens")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in KINDS]
)
def test_every_kind_of_task_runs_and_predicts(kind, pretrained, tmp_path):
    task = KINDS[kind](tmp_path)
    loop = LoopSettings(steps_per_loop=10, save_checkpoint_steps=20, eval_steps=20)
    changes = {"num_train_steps": 20, "learning_rate": 1e-3, "loop": loop}
    changes["gradient_accumulation_steps"] = 2
    results = run_task(task, pretrained, tmp_path / "out", **changes)
    assert task.best_metric in results["dev"]["median"]
    first, last = [e["loss"] for e in log(tmp_path / "out/seed_1") if "loss" in e]
    assert last < first, "it learns what it was shown"
    description = json.loads((tmp_path / "out/seed_1/task.json").read_text())
    assert description["max_seq_length"] == 48 and description["kind"] == task.description()["kind"]
    predictions = tmp_path / "out/seed_1/predictions"
    if kind == "tokens":
        rows = (predictions / "dev_predictions.conll").read_text().splitlines()
        known = (tmp_path / "dev.conll").read_text().splitlines()
        assert [row.rsplit("\t", 2)[0] for row in rows[:-1]] == known
        return
    if kind not in ("spans", "beams"):
        numbers = {"choices": 10, "numbers": 13}
        assert len(read_tsv(predictions / "dev_predictions.tsv")) == numbers[kind]
        return
    answers = json.loads((predictions / "dev_predictions.json").read_text())
    assert answers.keys() == {f"dev{i}" for i in range(11)}
    # What decides the answers alone may change: no is said always, then never.
    for threshold, is_empty in ((-1e9, True), (1e9, False)):
        task.null_threshold = threshold
        run_task(task, pretrained, tmp_path / "out", **changes)
        answers = json.loads((predictions / "dev_predictions.json").read_text())
        assert all((answer == "") == is_empty for answer in answers.values())
    task.has_answerability_head = not task.has_answerability_head
    with pytest.raises(ValueError, match=r"holds another run.*has_answerability_head"):
        run_task(task, pretrained, tmp_path / "out", **changes)
