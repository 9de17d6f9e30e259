"""Models with a WordPiece vocabulary: exports answer as fine-tuning's own evaluation."""

from __future__ import annotations

import json

import pytest

from albert_tf.text.tokenization import AlbertTokenizer
from export import sidecar
from pipelines.tasks.classification import Example
from pipelines.tasks.reading.squad_files import Question
from tests.conftest import WORDS
from tests.export.task_models import TASKS, ask, function_of
from tests.export.test_kinds import check_answers, evaluate, make_texts, read_tsv
from tests.export.test_verify import check_in_python

CHINESE = "北京是中国的首都。上海？天地玄黄宇宙洪荒"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHINESE, *"abcdefghijklmnop,.!_"]
    pieces += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    pieces += [word[:4] for word in WORDS]
    path = tmp_path_factory.mktemp("wordpiece") / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
    return path


def chinese_texts(number):
    return [
        f"{text[:30]} {CHINESE[i % 9 :] * (i % 4)}é\u0301 {text[30:]}"
        for i, text in enumerate(make_texts(number, 8))
    ]


def test_answers_to_questions(make_module, vocabulary, tmp_path):
    task = TASKS["question_answering"]
    module, tokenizer = make_module(task, vocabulary), AlbertTokenizer(str(vocabulary))
    contexts, asked = chinese_texts(12), make_texts(12, 6, longest=12)
    questions = [
        Question(f"q{i}", text, context, (), False)
        for i, (text, context) in enumerate(zip(asked, contexts))
    ]
    texts = check_answers(task, module, tokenizer, questions, tmp_path)
    assert len(set(texts)) > 5 and all(text in c for text, c in zip(texts, contexts))


def test_labels(make_module, vocabulary, tmp_path):
    task = TASKS["classifier of texts"]
    module, tokenizer = make_module(task, vocabulary), AlbertTokenizer(str(vocabulary))
    texts = chinese_texts(20)
    examples = [Example(str(i), text, None, None) for i, text in enumerate(texts)]
    [path] = evaluate(task, module, tokenizer, examples, tmp_path)
    answers = ask(module, text=texts)["label"]
    assert [label.decode() for label in answers] == [row["prediction"] for row in read_tsv(path)]
    check_in_python(module, {"serving_default": function_of(module, "serving_default")})


def test_the_vocabulary_lies_beside_a_tflite_or_onnx_model(make_module, vocabulary, tmp_path):
    served = make_module(TASKS["classifier of texts"], vocabulary).served
    sidecar.write(served, str(tmp_path / "toy.tflite"))
    described = json.loads((tmp_path / "toy.json").read_text())
    assert described["vocab_file"] == "toy.vocab.txt"
    tokenizer = AlbertTokenizer(str(tmp_path / "toy.vocab.txt"), described["do_lower_case"])
    assert tokenizer.sha256 == described["vocab_sha256"]
    assert list(described["special_pieces"].items())[:2] == [("[PAD]", 0), ("[UNK]", 1)]
