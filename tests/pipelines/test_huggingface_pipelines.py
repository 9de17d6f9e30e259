"""transformers answers as pipelines.predict does, from raw text: `make test-extras`.

Models of answers and options are asked by hand, too, as the pages of transformers do.
"""

import random
import unicodedata

import numpy as np
import pytest
from scipy import special

from albert_tf.checkpoints.opening import open_model
from albert_tf.kinds import KINDS
from pipelines.tasks.running import fine_tuned as runs
from tests import marks
from tests.albert_tf.checkpoints.test_fine_tuned import TASKS, to_hugging_face, write_model
from tests.builders import write_json_lines
from tests.pipelines.test_predict import predict, rows_of

pytestmark = [pytest.mark.slow, pytest.mark.extras("torch", "transformers")]

NUMBER = 24
MAX_ANSWER_LENGTH = 7


def texts(seed, longest=5):
    return marks.texts(seed, NUMBER, longest)


@pytest.fixture(params=marks.KINDS)
def vocabulary(request, tmp_path):
    return marks.write_vocabulary(tmp_path, request.param)


@pytest.fixture
def ask(vocabulary, tmp_path):
    """(kind, rows) -> the rows that predict writes, and the directory for transformers."""

    def answers(kind, rows, **changes):
        task = {"task": "own", "kind": kind, **TASKS[kind], "max_seq_length": 60, **changes}
        write_model(tmp_path / "a", task, vocabulary)
        to_hugging_face(tmp_path)
        columns = {"text_pair": "text_pair"} if "text_pair" in rows[0] else {}
        path = write_json_lines(tmp_path / "in.jsonl", rows)
        predict(tmp_path / "a", path, tmp_path / "out.jsonl", columns=columns)
        found = rows_of(tmp_path / "out.jsonl")
        assert len(found) == len(rows)
        return found, str(tmp_path / "hf")

    return answers


def pipeline_of(name, directory, **arguments):
    import transformers

    return transformers.pipeline(name, model=directory, device="cpu", **arguments)


def by_hand(kind, directory, *columns):
    """Returns the batch that their tokenizer makes, and what their class makes of it."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = getattr(transformers, KINDS[kind].architecture).from_pretrained(directory).eval()
    batch = tokenizer(*columns, padding=True, return_tensors="pt")
    choices = TASKS[kind].get("num_choices")
    inputs = {name: x.unflatten(0, (-1, choices)) if choices else x for name, x in batch.items()}
    with torch.no_grad():
        return batch, model(**inputs)


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("classifier", {"has_pairs": False}),
        ("classifier", {"has_pairs": True}),
        ("multilabel", {"label_separator": ","}),
        ("regressor", {}),
    ],
)
def test_labels_and_numbers(ask, kind, task):
    rows = [{"text": text} for text in texts(1)]
    if task.get("has_pairs"):
        rows = [{**row, "text_pair": text} for row, text in zip(rows, texts(2))]
    ours, directory = ask(kind, rows, **task)
    pipeline = pipeline_of("text-classification", directory)
    for row, our in zip(rows, ours):
        if kind == "regressor":
            assert pipeline(row)["score"] == pytest.approx(our["prediction"], abs=1e-5)
            continue
        found = {answer["label"]: answer["score"] for answer in pipeline(row, top_k=None)}
        assert found == pytest.approx({k: our[f"probability_{k}"] for k in found}, abs=1e-5)
        if kind == "classifier":
            assert our["prediction"] == max(found, key=found.get)
        else:
            chosen = [label for label in TASKS[kind]["labels"] if found[label] >= 0.5]
            assert our["prediction"] == ",".join(chosen)
    assert kind != "classifier" or len({our["probability_maybe"] for our in ours}) == NUMBER


def test_tags(ask):
    rows = [{"text": text.split()} for text in texts(5)]
    ours, directory = ask("token_classifier", rows)
    pipeline = pipeline_of("token-classification", directory, ignore_labels=[])
    for row, our in zip(rows, ours):
        starts = np.cumsum([0, *(len(word) + 1 for word in row["text"])])[:-1].tolist()
        found = pipeline(" ".join(row["text"]))
        # SentencePiece gives a word's first piece the space before it.
        first = {a["start"] + (a["start"] + 1 in starts): a for a in found[::-1]}
        of_words = [first[start] for start in starts]
        assert [answer["entity"] for answer in of_words] == our["prediction"]
        scores = [answer["score"] for answer in of_words]
        np.testing.assert_allclose(scores, our["probabilities"], atol=1e-5)


def without_marks(text):
    """Their pieces lack the places of marks that are removed, so an answer may lack its last."""
    return "".join(character for character in text if not unicodedata.combining(character))


def test_answers(ask, tmp_path):
    """Text and place of the answer, and their score: the product of two softmaxes."""
    from transformers.pipelines import get_supported_tasks

    kind = "question_answering"
    rows = [{"question": a + "?", "context": b} for a, b in zip(texts(6, 2), texts(7, 6))]
    ours, directory = ask(kind, rows)
    columns = ([row[name] for row in rows] for name in ("question", "context"))
    batch, theirs = by_hand(kind, directory, *columns)
    opened = open_model(tmp_path / "a")
    task = runs.task_of(opened.task, {})
    model = runs.FineTunedRun(opened, task)
    sequences, windows = model.prepare(list(task.read_file(str(tmp_path / "in.jsonl"))))
    outputs = model.outputs(sequences)
    assert len(outputs) == NUMBER, "a window for each"
    # transformers 5 has no such pipeline.
    name = "question-answering"
    pipeline = pipeline_of(name, directory) if name in get_supported_tasks() else None
    for place, (row, our, window, output) in enumerate(zip(rows, ours, windows, outputs)):
        places = [0, *range(window.offset, window.offset + window.last - window.first)]
        ends = np.array([output[f"{end}_logits"][places] for end in ("start", "end")])
        found = np.array([theirs[f"{end}_logits"][place, places] for end in ("start", "end")])
        # float32: 2e-5 was seen between logits of 3 (a Xeon with AMX)
        np.testing.assert_allclose(found, ends, rtol=3e-5, atol=1e-5)
        sums = found[0, 1:, None] + found[1, 1:]  # without [CLS]
        lengths = np.arange(1, len(places)) - np.arange(len(places) - 1)[:, None]
        sums[(lengths < 1) | (lengths > MAX_ANSWER_LENGTH)] = -np.inf
        first, last = np.unravel_index(sums.argmax(), sums.shape)
        offsets = batch[place].offsets[window.offset :]
        context = row["context"]
        expected = without_marks(our["prediction"])
        found = context[offsets[first][0] : offsets[last][1]]
        assert without_marks(found).strip() == expected
        if pipeline:
            found = pipeline(**row, align_to_words=False, max_answer_len=MAX_ANSWER_LENGTH)
            assert without_marks(found["answer"]).strip() == expected
            assert without_marks(context[found["start"] : found["end"]]).strip() == expected
            score = np.exp(our["score"] - special.logsumexp(ends, axis=1).sum())
            assert found["score"] == pytest.approx(score, rel=1e-4)


def test_options(ask):
    """They have no pipeline for it."""
    rng = random.Random(8)
    rows = [{"text": text, "options": rng.sample(texts(9, 2), 3)} for text in texts(8)]
    ours, directory = ask("multiple_choice", rows)
    pairs = [(row["text"], option) for row in rows for option in row["options"]]
    logits = by_hand("multiple_choice", directory, *map(list, zip(*pairs)))[1].logits
    expected = [[our[f"probability_{letter}"] for letter in "ABC"] for our in ours]
    np.testing.assert_allclose(special.softmax(logits.numpy(), -1), expected, atol=1e-5)
