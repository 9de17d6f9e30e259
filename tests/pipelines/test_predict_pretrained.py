import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import albert_tf
from albert_tf.checkpoints.opening import open_model
from albert_tf.scoring import SentenceScorer
from albert_tf.storage.errors import UserError
from export.loading import open_checkpoint
from pipelines import predict as predict_lib
from pipelines.tasks.running import pretrained as pretrained_lib
from pipelines.tasks.squad import SquadTask
from tests.builders import write_json_lines
from tests.pipelines.test_predict import predict, rows_of

pytestmark = pytest.mark.usefixtures("eager")
TEXTS = ["the river is old", "", 'a, "quoted" one', "he sleeps", "the river is old"]


@pytest.fixture
def texts_file(tmp_path):
    with open(tmp_path / "texts.csv", "w", newline="") as file:
        csv.writer(file).writerows([("name", "body"), *(("r" + t[:3], t) for t in TEXTS)])
    return tmp_path / "texts.csv"


def answers(model, table, text="body", label=None, **arguments):
    """Writes the answers of a model to out.jsonl; returns them."""
    output = table.parent / "out.jsonl"
    columns = {"text": text, "id": "name", **({"label": label} if label else {})}
    predict(model, table, output, columns=columns, **arguments)
    return rows_of(output)


@pytest.fixture(scope="module")
def loaded(pretrained):
    return albert_tf.from_pretrained(pretrained)


def test_scores_are_those_of_python(pretrained, loaded, texts_file, monkeypatch):
    monkeypatch.setattr(pretrained_lib.PretrainedModel, "rows_per_part", 2)
    rows = answers(pretrained, texts_file)
    summary = json.loads((texts_file.parent / "out.jsonl.run.json").read_text())
    assert summary["identity"]["rows_per_part"] == 2
    assert [row["id"] for row in rows] == ["r" + text[:3] for text in TEXTS]
    for row, score in zip(rows, SentenceScorer(*loaded)(TEXTS)):
        if not score.num_pieces:  # nothing is not the likeliest of texts
            score = (None, 0, None)
        assert row["log_likelihood"] == pytest.approx(score[0], abs=1e-3)
        assert (row["num_pieces"], row["num_words"]) == score[1:]
    assert rows[1]["unknown_share"] == 1
    texts_file.write_text("body,name\nshort,a\n" + "word " * 999 + ",b\nthe end,c\n")
    (texts_file.parent / "out.jsonl").unlink()
    rows = answers(pretrained, texts_file)
    assert [row["log_likelihood"] is None for row in rows] == [False, True, False]
    assert rows[1]["num_pieces"] > 999 and rows[1]["num_words"] is None, "too long"


def test_unfinished_fine_tuning_is_no_pretrained_model(pretrained, tmp_path):
    seed = tmp_path / "run" / "seed_1"
    shutil.copytree(pretrained, seed)
    (seed / "run.json").unlink(missing_ok=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    for read in (albert_tf.from_pretrained, predict_lib.load, open_checkpoint):
        with pytest.raises(UserError, match="seed_1' is not finished: run its command again"):
            read(str(seed))
    with pytest.raises(UserError, match=r"run' has no results\.json: .*; run its command"):
        predict_lib.load(str(tmp_path / "run"))
    (seed / "task.json").write_text("{}")
    with pytest.raises(UserError, match="is a fine-tuned model: expected a pre-trained one"):
        open_model(seed / "checkpoints" / "ckpt-1", pretrained=True)


def test_what_does_not_fit_a_model_is_refused(pretrained, tuned, texts_file):
    for model, arguments, message in (
        (pretrained, {"label": "name"}, "--label_column does not apply to a pre-trained model"),
        (pretrained, {"text": ""}, "--text_column=: a pre-trained model reads texts"),
    ):
        with pytest.raises(UserError, match=message):
            answers(model, texts_file, **arguments)


def test_a_model_without_masked_lm(loaded, texts_file, tmp_path):
    albert_tf.save_pretrained(*loaded, tmp_path / "hf")
    weights = load_file(tmp_path / "hf/model.safetensors")
    encoder = {name: values for name, values in weights.items() if name.startswith("albert.")}
    save_file(encoder, tmp_path / "hf/model.safetensors")
    with pytest.raises(UserError, match="has no masked LM, which gives the scores"):
        answers(tmp_path / "hf", texts_file)


def test_other_weights_of_the_same_shape_are_another_model(loaded, texts_file, tmp_path):
    albert_tf.save_pretrained(*loaded, tmp_path / "hf")
    for _ in range(2):
        assert len(answers(tmp_path / "hf", texts_file)) == len(TEXTS)
    weights = load_file(tmp_path / "hf/model.safetensors")
    kernel = next(name for name in weights if name.endswith("query.weight"))
    save_file({**weights, kernel: weights[kernel] + 1}, tmp_path / "hf/model.safetensors")
    with pytest.raises(UserError, match="exists, and not from this model"):
        answers(tmp_path / "hf", texts_file)


@pytest.mark.usefixtures("eager")
def test_rows_in_memory_of_a_fine_tuned_model(tuned, tmp_path):
    rows = [{"first": f"the river {i}", "second": "it runs"} for i in range(3)]
    named = [{**row, "name": str(i)} for i, row in enumerate(rows)]
    path, output = write_json_lines(tmp_path / "in.jsonl", named), tmp_path / "out.jsonl"
    predict(tuned, path, output, columns={"id": "name"})
    expected, model = rows_of(output), predict_lib.load(str(tuned))
    assert model.predict(rows) == expected and model.predict([]) == []
    # Answers and other columns are not read, nor is the column of names.
    more = [{**row, "label": None, "price": np.int64(3), "name": i} for i, row in enumerate(rows)]
    assert model.predict(np.array(more)) == expected
    for wrong, message in (
        ([rows[0], {"first": "a"}], r"^rows\[1\]: no field 'second'"),
        ([{**rows[0], "second": np.int64(1)}], r"^rows\[0\]: 'second' is .int64., expected text$"),
        ([{"txt": "a"}], r"^rows\[0\]: none of the fields first, second; the row has txt$"),
        ("the river", "expected a list of rows, got one string"),
        (rows[0], r"expected a list of rows, got dict: .*, or .* table.to_dict\('records'\)$"),
        ({"a"}, "expected a list of rows, got set"),
    ):
        with pytest.raises(UserError, match=message):
            model.predict(wrong)
    other = predict_lib.load(str(tuned), {"text": "body", "id": "name"})
    [row] = other.predict([{"body": rows[1]["first"], "second": "it runs", "name": "x"}])
    assert row == {**expected[1], "id": "x"}


@pytest.mark.usefixtures("eager")
def test_texts_in_memory_of_a_pretrained_model(pretrained, tmp_path):
    texts, load = ["the river is old", "it \u2028 runs\n"], predict_lib.load
    path = write_json_lines(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    predict(pretrained, path, tmp_path / "out.jsonl")
    assert load(Path(pretrained)).predict(iter(texts)) == rows_of(tmp_path / "out.jsonl")
    with pytest.raises(UserError, match=r"^rows\[1\]: 'text' is 1, expected text$"):
        load(str(pretrained)).predict(["a", 1])
    questions = predict_lib.Predictor(predict_lib._Found("", {}, SquadTask({})), None)
    with pytest.raises(UserError, match=r"no dict; expected the fields question, context$"):
        questions.predict(["Who sings?"])
