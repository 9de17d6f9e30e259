"""transformers' pipeline() answers as pipelines.predict does, from raw text: make test-extras."""

import random
import sys

import numpy as np
import pytest
from scipy import special

from albert_tf.kinds import KINDS
from pipelines.tasks.running import fine_tuned as runs
from tests.albert_tf.checkpoints.test_fine_tuned import TASKS, to_hugging_face, write_model
from tests.builders import write_json_lines
from tests.conftest import WORDS
from tests.pipelines.test_predict import predict, rows_of

pytestmark = [pytest.mark.slow, pytest.mark.extras("torch", "transformers")]

NUMBER = 12
MAX_ANSWER_LENGTH = 7


@pytest.fixture(params=["wordpiece", "sentencepiece"])
def vocabulary(request, tiny_vocabulary, tmp_path):
    if request.param == "sentencepiece":
        return tiny_vocabulary
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(word[:4] for word in WORDS)]
    pieces += ["?", ".", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(pieces)) + "\n")
    return path


@pytest.fixture
def ask(vocabulary, tmp_path, monkeypatch):
    """(kind, rows) -> the rows that predict writes, and the directory for transformers."""
    from transformers.utils import sentencepiece_model_pb2_new as reader

    # sentencepiece's own code of this name needs a newer protobuf than TensorFlow 2.15 has.
    name = "sentencepiece.sentencepiece_model_pb2"
    monkeypatch.setitem(sys.modules, name, reader)

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


def pipeline_of(kind, directory, **arguments):
    import transformers

    name = KINDS[kind].pipeline
    return transformers.pipeline(name, model=directory, device="cpu", **arguments)


def texts(seed, longest=9):
    """Some with capitals, accents and double spaces, which both sides prepare."""
    rng = random.Random(seed)
    made = [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(NUMBER)]
    return [made[0].upper(), made[1].replace("e", "é"), made[2].replace(" ", "  "), *made[3:]]


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
    pipeline = pipeline_of(kind, directory)
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
    pipeline = pipeline_of("token_classifier", directory, ignore_labels=[])
    for row, our in zip(rows, ours):
        starts = np.cumsum([0, *(len(word) + 1 for word in row["text"])])[:-1].tolist()
        found = pipeline(" ".join(row["text"]))
        # SentencePiece gives a word's first piece the space before it.
        first = {a["start"] + (a["start"] + 1 in starts): a for a in found[::-1]}
        of_words = [first[start] for start in starts]
        assert [answer["entity"] for answer in of_words] == our["prediction"]
        scores = [answer["score"] for answer in of_words]
        np.testing.assert_allclose(scores, our["probabilities"], atol=1e-5)


def test_answers(ask, tmp_path):
    """Text and place of the answer, and their score: the product of two softmaxes."""
    rows = [{"question": a + "?", "context": b} for a, b in zip(texts(6, 4), texts(7, 12))]
    ours, directory = ask("question_answering", rows)
    pipeline = pipeline_of("question_answering", directory)
    task = runs.task_of(runs.read_description(str(tmp_path / "a")), {})
    model = runs.FineTunedRun(str(tmp_path / "a"), task, 32)
    sequences, windows = model.prepare(list(task.read_file(str(tmp_path / "in.jsonl"))))
    outputs = model.outputs(sequences)
    assert len(outputs) == NUMBER, "a window for each"
    for row, our, window, output in zip(rows, ours, windows, outputs):
        found = pipeline(**row, align_to_words=False, max_answer_len=MAX_ANSWER_LENGTH)
        assert found["answer"].strip() == our["prediction"]
        assert row["context"][found["start"] : found["end"]].strip() == our["prediction"]
        # [CLS] and the context.
        places = [0, *range(window.offset, window.offset + window.last - window.first)]
        ends = (output[f"{end}_logits"][places] for end in ("start", "end"))
        total = sum(map(special.logsumexp, ends))
        assert found["score"] == pytest.approx(np.exp(our["score"] - total), rel=1e-4)


def test_options(ask):
    """They have no pipeline for it: their class with their tokenizer."""
    import torch
    import transformers

    rng = random.Random(8)
    rows = [{"text": text, "options": rng.sample(WORDS, 3)} for text in texts(8)]
    ours, directory = ask("multiple_choice", rows)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(directory).eval()
    for row, our in zip(rows, ours):
        batch = tokenizer([row["text"]] * 3, row["options"], padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**{name: value[None] for name, value in batch.items()}).logits[0]
        expected = [our[f"probability_{letter}"] for letter in "ABC"]
        np.testing.assert_allclose(torch.softmax(logits, -1), expected, atol=1e-5)
