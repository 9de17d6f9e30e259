"""A pre-trained model scores and embeds the texts of a file."""

import csv
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

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


def predict(model, table, output, label=None, text="body", **arguments):
    predict_lib.predict(
        model=str(model),
        input_files=[str(table)],
        output_file=str(output),
        columns={"text": text, "id": "name", **({"label": label} if label else {})},
        **arguments,
    )
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.fixture(scope="module")
def loaded(pretrained):
    return albert_tf.from_pretrained(pretrained)


def test_scores_are_those_of_python(pretrained, loaded, texts_file, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction_file, "ROWS_PER_PART", 2)
    rows = predict(pretrained, texts_file, tmp_path / "out.jsonl")
    assert [row["id"] for row in rows] == ["r" + text[:3] for text in TEXTS]
    for row, score in zip(rows, SentenceScorer(*loaded)(TEXTS)):
        assert row["log_likelihood"] == pytest.approx(score.log_likelihood, abs=1e-3)
        assert (row["num_pieces"], row["num_words"]) == score[1:]
    assert rows[1]["unknown_share"] == 1


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_embeddings_are_those_of_python(pretrained, loaded, texts_file, tmp_path, pooling):
    rows = predict(pretrained, texts_file, tmp_path / "out.jsonl", answers=f"{pooling}_embedding")
    expected = TextEmbedder(*loaded, pooling)(TEXTS)
    np.testing.assert_allclose([row["embedding"] for row in rows], expected, atol=1e-5)


def test_what_does_not_fit_a_model_is_refused(pretrained, tuned, texts_file, tmp_path):
    for model, arguments, message in (
        (tuned, {"answers": "score"}, "--answers=score applies to pre-trained models only"),
        (pretrained, {"label": "name"}, "--label_column does not apply to a pre-trained model"),
        (pretrained, {"text": ""}, "--text_column=: a pre-trained model reads texts"),
    ):
        with pytest.raises(UserError, match=message):
            predict(model, texts_file, tmp_path / "out.jsonl", **arguments)


def test_a_text_that_is_too_long_has_no_score(pretrained, texts_file, tmp_path):
    texts_file.write_text("body,name\nshort,a\n" + "word " * 999 + ",b\nthe end,c\n")
    rows = predict(pretrained, texts_file, tmp_path / "out.jsonl")
    assert [row["log_likelihood"] is None for row in rows] == [False, True, False]
    assert rows[1]["num_pieces"] > 999 and rows[1]["num_words"] is None


def test_a_model_without_masked_lm(loaded, texts_file, tmp_path):
    """Its heads are drawn afresh each time, which must not make it another model."""
    albert_tf.save_pretrained(*loaded, tmp_path / "hf")
    weights = load_file(tmp_path / "hf/model.safetensors")
    encoder = {name: values for name, values in weights.items() if name.startswith("albert.")}
    save_file(encoder, tmp_path / "hf/model.safetensors")
    with pytest.raises(UserError, match="has no masked LM, which gives the scores"):
        predict(tmp_path / "hf", texts_file, tmp_path / "out.jsonl")
    for _ in range(2):
        rows = predict(tmp_path / "hf", texts_file, tmp_path / "e.jsonl", answers="mean_embedding")
    assert len(rows) == len(TEXTS)
    # Other weights of the same shape are another model.
    kernel = next(name for name in encoder if name.endswith("query.weight"))
    save_file({**encoder, kernel: encoder[kernel] + 1}, tmp_path / "hf/model.safetensors")
    with pytest.raises(UserError, match="exists, and not from this model"):
        predict(tmp_path / "hf", texts_file, tmp_path / "e.jsonl", answers="mean_embedding")
