"""A model that answers texts in Python, as pipelines.predict answers files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from albert_tf.storage.errors import UserError
from pipelines import predict
from pipelines.tasks.squad import SquadTask


def rows_of_file(model, rows, directory):
    (directory / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"id": "name"} if "name" in rows[0] else {}
    predict.predict(
        model=str(model),
        input_files=[str(directory / "in.jsonl")],
        output_file=str(directory / "out.jsonl"),
        columns=columns,
    )
    return [json.loads(line) for line in (directory / "out.jsonl").open()]


@pytest.mark.usefixtures("eager")
def test_rows_of_a_fine_tuned_model(tuned, tmp_path):
    rows = [{"first": f"the river {i}", "second": "it runs"} for i in range(3)]
    expected = rows_of_file(tuned, [{**r, "name": str(i)} for i, r in enumerate(rows)], tmp_path)
    model = predict.load(str(tuned))
    assert model.predict(rows) == expected and model.predict([]) == []
    # Answers and other columns are not read, nor is the column of names.
    more = [{**row, "label": None, "price": np.int64(3), "name": i} for i, row in enumerate(rows)]
    assert model.predict(np.array(more)) == expected
    for wrong, message in (
        ([rows[0], {"first": "a"}], "^row 2: no field 'second'"),
        ([{**rows[0], "second": np.int64(1)}], "^row 1: .*int64 is not JSON.*expected text$"),
        ([{"txt": "a"}], "^row 1: none of the fields first, second; the row has txt$"),
        ("the river", "expected a list of rows, not str"),
        (rows[0], "expected a list of rows, not dict"),
        (None, "expected a list of rows, not NoneType"),
    ):
        with pytest.raises(UserError, match=message):
            model.predict(wrong)
    named = predict.load(str(tuned), {"text": "body", "id": "name"})
    [row] = named.predict([{"body": rows[1]["first"], "second": "it runs", "name": "x"}])
    assert row == {**expected[1], "id": "x"}


@pytest.mark.usefixtures("eager")
def test_texts_of_a_pretrained_model(pretrained, tmp_path):
    texts = ["the river is old", "it \u2028 runs\n"]
    expected = rows_of_file(pretrained, [{"text": text} for text in texts], tmp_path)
    assert predict.load(Path(pretrained)).predict(iter(texts)) == expected
    [row] = predict.load(str(pretrained), answers="mean_embedding").predict(texts[:1])
    assert len(row["embedding"]) > 1
    for wrong in ({"batch_size": 0}, {"answers": "mean"}):
        with pytest.raises(UserError, match=f"{next(iter(wrong))}=.*: expected"):
            predict.load(str(pretrained), **wrong)
    with pytest.raises(UserError, match="'text' is null, expected text"):
        predict.load(str(pretrained)).predict([None])


def test_a_model_that_reads_no_single_text_wants_dicts():
    questions = predict.Predictor(predict._Found("", {}, SquadTask({})), None)
    with pytest.raises(UserError, match=r"no dict; expected the fields question, context$"):
        questions.predict(["Who sings?"])
