"""pipelines.predict with models that tag words: a run and its export, words and raw texts."""

import json

import numpy as np
import pytest

from export.export_saved_model import export
from pipelines.predict import predict
from pipelines.tasks.reading.token_files import TokenColumns
from pipelines.tasks.token_classification import TokenClassificationTask
from tests.builders import tiny_config, write_json_lines, write_task_model
from tests.conftest import WORDS

LABELS = ("O", "B-a", "I-a", "B-b", "I-b")
TEXTS = [" ".join((WORDS * 4)[i : i + 3 + i % 25]) for i in range(0, 60, 2)]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, tokenizer):
    """A seed of random weights."""
    directory = tmp_path_factory.mktemp("tags") / "seed_1"
    task = TokenClassificationTask("token_classification", {}, TokenColumns(), LABELS, 9)
    model = task.create_model(tiny_config(vocab_size=tokenizer.vocab_size), False)
    model.create_variables()
    rng = np.random.RandomState(4)
    # Every value is drawn here, not by Keras' initializers, so the tags are those of every run. The
    # head has no bias that could give all words one tag.
    for variable in model.variables:
        center = 1.0 if "gamma" in variable.name else 0.0
        variable.assign(center + rng.normal(0, 0.4, variable.shape))
    model.classifier.output_dense.bias.assign(np.zeros(len(LABELS)))
    write_task_model(directory, task, model, tokenizer, 30)
    return directory


def answers(model, path, output):
    summary = predict(model=str(model), input_files=[str(path)], output_file=str(output))
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    return rows, summary["metrics"]


def write_files(directory):
    """The same texts in CoNLL's columns with tags, and raw without."""
    columns, raw = directory / "words.conll", directory / "raw.jsonl"
    with columns.open("w") as file:
        for text in TEXTS:
            file.writelines(f"{word} {'B-a' if len(word) > 4 else 'O'}\n" for word in text.split())
            file.write("\n")
    write_json_lines(raw, [{"text": text} for text in TEXTS])
    return columns, raw


def test_words_and_raw_texts(tuned, tmp_path):
    columns, raw = write_files(tmp_path)
    words, metrics = answers(tuned, columns, tmp_path / "words.jsonl")
    assert [" ".join(row["words"]) for row in words] == TEXTS
    assert all(len(row["prediction"]) == len(row["words"]) for row in words)
    assert len({tag for row in words for tag in row["prediction"]}) > 2
    hits = [a == b for row in words for a, b in zip(row["label"], row["prediction"])]
    assert metrics["accuracy"] == pytest.approx(np.mean(hits)) and "f1_a" in metrics
    spans, metrics = answers(tuned, raw, tmp_path / "spans.jsonl")
    assert metrics == {} and [row["text"] for row in spans] == TEXTS
    for of_words, of_text in zip(words, spans):
        assert sum(tag[0] == "B" for tag in of_words["prediction"]) <= len(of_text["prediction"])
        for span in of_text["prediction"]:
            assert span["text"] == of_text["text"][span["start"] : span["end"]]


def test_tables_hold_lists_as_json_and_a_text_may_have_no_words(tuned, tmp_path):
    path, output = tmp_path / "in.jsonl", tmp_path / "out.csv"
    path.write_text('{"text": " "}\n')
    rows, _ = answers(tuned, path, tmp_path / "out.jsonl")
    assert rows == [{"id": "0", "text": " ", "prediction": [], "unknown_share": 1.0}]
    columns, _ = write_files(tmp_path)
    predict(model=str(tuned), input_files=[str(columns)], output_file=str(output))
    header, row, *_ = output.read_text().splitlines()
    assert header == "id,words,label,prediction,probabilities,unknown_share" and '"[""' in row
    with pytest.raises(ValueError, match="--label_column=: models that tag words read known tags"):
        predict(
            model=str(tuned),
            input_files=[str(columns)],
            output_file=str(tmp_path / "other.csv"),
            columns={"label": ""},
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": ["b"]}\n', "raw texts and lists of words in one file"),
        ('{"text": ["a"], "label": ["B-c"]}\n', "unknown tag 'B-c'; the labels are 'O', 'B-a'"),
    ],
)
def test_faults_are_said_before_the_work(tuned, tmp_path, content, message):
    path = tmp_path / "in.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        answers(tuned, path, tmp_path / "out.jsonl")
    assert {p.name for p in tmp_path.iterdir()} == {"in.jsonl"}


@pytest.mark.slow
def test_an_export_tags_as_its_run(tuned, tmp_path):
    exported = export(checkpoint=str(tuned), output=str(tmp_path / "export"))
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": " "}\n')
    for path in (*write_files(tmp_path), empty):
        ours, metrics = answers(tuned, path, tmp_path / f"run.{path.name}.jsonl")
        theirs, same_metrics = answers(exported, path, tmp_path / f"export.{path.name}.jsonl")
        assert metrics == same_metrics
        for one, other in zip(ours, theirs):
            for name in ("probabilities", "prediction"):
                values = one.pop(name, None), other.pop(name, None)
                if name == "probabilities" and values[0]:
                    np.testing.assert_allclose(*values, atol=1e-5)
                elif values[0] and isinstance(values[0][0], dict):
                    for a, b in zip(*values):
                        assert a.pop("probability") == pytest.approx(b.pop("probability"), abs=1e-5)
                        assert a == b
                else:
                    assert values[0] == values[1]
            assert one == other
