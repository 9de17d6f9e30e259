"""A pre-trained model scores and embeds the texts of a file."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import albert_tf
from albert_tf.scoring import SentenceScorer, TextEmbedder
from albert_tf.storage.errors import UserError
from pipelines import predict as predict_lib
from pipelines.tasks.running import prediction_file

TEXTS = ["the river is old", "", 'a, "quoted" one', "he sleeps", "the river is old"]


@pytest.fixture
def texts_file(tmp_path):
    with open(tmp_path / "texts.csv", "w", newline="") as file:
        csv.writer(file).writerows([("name", "body"), *(("r" + t[:3], t) for t in TEXTS)])
    return tmp_path / "texts.csv"


def predict(model, table, output, label=None, **arguments):
    predict_lib.predict(
        model=str(model),
        input_files=[str(table)],
        output_file=str(output),
        columns={"text": "body", "id": "name", **({"label": label} if label else {})},
        **arguments,
    )
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_scores_are_those_of_python(pretrained, texts_file, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction_file, "ROWS_PER_PART", 2)
    rows = predict(pretrained, texts_file, tmp_path / "out.jsonl")
    model, tokenizer = albert_tf.from_pretrained(pretrained)
    scores = SentenceScorer(model, tokenizer)(TEXTS)
    assert [row["id"] for row in rows] == ["r" + text[:3] for text in TEXTS]
    for row, score in zip(rows, scores):
        assert row["log_likelihood"] == pytest.approx(score.log_likelihood, abs=1e-3)
        assert (row["num_pieces"], row["num_words"]) == score[1:]
    assert [row["unknown_share"] for row in rows][1] == 1


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_embeddings_are_those_of_python(pretrained, texts_file, tmp_path, pooling):
    rows = predict(pretrained, texts_file, tmp_path / "out.jsonl", answers=f"{pooling}_embedding")
    model, tokenizer = albert_tf.from_pretrained(pretrained)
    expected = TextEmbedder(model, tokenizer, pooling)(TEXTS)
    np.testing.assert_allclose([row["embedding"] for row in rows], expected, atol=1e-5)


def test_what_does_not_fit_a_model_is_refused(pretrained, tuned, texts_file, tmp_path):
    with pytest.raises(UserError, match=r"--answers=score applies to pre-trained models only"):
        predict(tuned, texts_file, tmp_path / "out.jsonl", answers="score")
    texts_file.write_text("body,name\nshort,a\n" + "word " * 999 + ",b\n")
    with pytest.raises(UserError, match=r"row b: a text of [\d,]+ pieces, but the model reads"):
        predict(pretrained, texts_file, tmp_path / "out.jsonl")
    with pytest.raises(UserError, match="--label_column does not apply to a pre-trained model"):
        predict(pretrained, texts_file, tmp_path / "out.jsonl", label="name")
