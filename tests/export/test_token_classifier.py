"""Tags of words from an export: those of fine-tuning's own predictions, whatever the text."""

import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.entities import find_entities
from export.modules.token_classification_module import _json_numbers, _json_strings
from export.verify import _TEXTS, _padded
from pipelines.tasks.reading.token_files import TokenExample, of_text
from tests.conftest import WORDS
from tests.export.task_models import TASKS, ask, serve, token_classification
from tests.export.test_kinds import check_shares, evaluate, make_texts

NAME = "token_classifier"


@pytest.fixture(scope="module")
def module(make_module):
    return make_module(TASKS[NAME])


def check_spans(task, module, directory):
    """Returns the spans that both sides found."""
    texts = make_texts(20, 1) + [text for text, _ in _TEXTS]
    as_read = [text.decode("utf-8", "replace") for text in map(tf.compat.as_bytes, texts)]
    examples = [of_text(str(i), text) for i, text in enumerate(as_read)]
    [path] = evaluate(task, module, examples, directory)
    with open(path, encoding="utf-8") as file:
        expected = [json.loads(line)["spans"] for line in file]
    answers = ask(module, text=texts)
    check_shares(task, module, examples, answers)
    assert answers["num_spans"].tolist() == list(map(len, expected))
    for row, spans in enumerate(expected):
        found = json.loads(answers["spans"][row])
        near = [{**s, "probability": pytest.approx(s["probability"], abs=2e-6)} for s in found]
        assert spans == near, texts[row]
    assert max(len(text.split()) for text in texts) > module.max_seq_length  # windows
    return [span for spans in expected for span in spans]


def test_spans_of_raw_text(module, tmp_path):
    spans = check_spans(TASKS[NAME], module, tmp_path)
    assert len(spans) > 50 and {span["label"] for span in spans} == {"á", "b"}


def test_parts_of_speech(make_module, tmp_path):
    task = token_classification(("VB", "NN", "O"))
    assert len(check_spans(task, make_module(task), tmp_path)) > 500


def test_words_that_are_given(module, tmp_path):
    rows = [text.split() for text in make_texts(12, 3)] + [["New York", "\u0301", "北京", "x" * 99]]
    rows = [row for row in rows if row]
    examples = [TokenExample(str(i), tuple(row), None) for i, row in enumerate(rows)]
    [path] = evaluate(TASKS[NAME], module, examples, tmp_path)
    with open(path, encoding="utf-8") as file:
        lines = [line.split("\t") for line in file.read().splitlines() if line]
    table = _padded(rows)
    answers = serve(module, "words", words=table)
    shares = check_shares(TASKS[NAME], module, examples, answers)
    assert shares.min() == 0 and shares[-1] > 0.01
    is_word = table != ""
    assert [label.decode() for label in answers["labels"][is_word]] == [row[1] for row in lines]
    expected = [float(row[2]) for row in lines]
    np.testing.assert_allclose(answers["probabilities"][is_word], expected, atol=2e-6)
    assert not answers["labels"][~is_word].any() and not answers["probabilities"][~is_word].any()


def test_entities_in_the_graph_are_those_of_python(module):
    """Any sequence of tags, those that no scheme allows among them."""
    rng = np.random.RandomState(0)
    labels = module.served.task["labels"]
    lengths = [0, 1, 9, 0, 0, 30, 1, 200, 0]
    places = rng.randint(0, len(labels), sum(lengths)).astype(np.int32)
    words = tf.RaggedTensor.from_row_lengths(tf.fill([sum(lengths)], "w"), lengths)
    found = [part.to_list() for part in module._spans(words, tf.constant(places))]
    begins = np.cumsum([0, *lengths])
    for row, (begin, length) in enumerate(zip(begins, lengths)):
        tags = [labels[place] for place in places[begin : begin + length]]
        spans = [
            (int(first - begin), int(last - begin) + 1, label.decode())
            for first, last, label in zip(*(part[row] for part in found))
        ]
        assert spans == find_entities(tags)


def test_numbers_and_texts_become_json():
    """Of what is no number null: a model of NaN weights answers with JSON all the same."""
    values = [0.1, 1.0, 1e-12, float("nan"), float("inf")]
    read = [json.loads(value) for value in _json_numbers(tf.constant(values, tf.float32)).numpy()]
    assert read[3:] == [None, None] and np.array_equal(np.float32(read[:3]), np.float32(values[:3]))
    texts = [*map(chr, range(0x80)), 'a\\"b\\\\n', "\u2028é北\U0001f469", "\r\n", ""]
    assert [json.loads(text) for text in _json_strings(tf.constant(texts)).numpy()] == texts


def test_words_of_no_number_change_the_spans_of_their_row_alone(module, monkeypatch):
    tag = module._tag

    def with_a_bad_row(words):
        found = tag(words)
        is_bad = tf.equal(words.value_rowids(), 1)
        probability = tf.where(is_bad, float("nan"), found["probability"])
        return {**found, "probability": probability}

    monkeypatch.setattr(module, "_tag", with_a_bad_row)
    texts = [" ".join(WORDS[:n]) for n in (23, 31, 29)]
    rows = [json.loads(row) for row in module.serving_default(tf.constant(texts))["spans"].numpy()]
    assert all(rows)
    for place, row in enumerate(rows):
        assert {span["probability"] is None for span in row} == {place == 1}
