import json

import numpy as np
import pytest

from pipelines.tasks.reading.squad_files import Question
from pipelines.tasks.scoring.squad_metrics import normalize_answer
from pipelines.tasks.squad import SquadTask
from tests.pipelines.tasks.test_classification import pieces_of

CONTEXT = (
    "The quick brown fox jumps over a lazy dog, while (seven) small birds sing in óld green trees. "
    "And every river 🦊🦊 runs down to some distant sea\u0000 under bright 日本 summer skies."
)
ANSWERS = "The quick|seven|óld green|🦊🦊|日本|summer skies.|sea|(seven) small".split("|")


def ask(number, context, answer=None, text="where do the birds sing"):
    answers = () if answer is None else ((answer, context.index(answer)),)
    return Question(f"q{number}", text, context, answers, answer is None)


@pytest.fixture(scope="module")
def questions():
    return [ask(i, CONTEXT, answer) for i, answer in enumerate(ANSWERS)]


@pytest.mark.parametrize("max_seq_length", range(41, 50, 3))
def test_labels_point_at_the_answer(tokenizer, questions, max_seq_length):
    task = SquadTask({}, may_be_impossible=True, doc_stride=9)
    examples = [*questions, Question("no", "why", CONTEXT, (("fox", CONTEXT.index("fox")),), True)]
    sequences, windows = task.encode(examples, tokenizer, max_seq_length, training=True)
    names = ("start_positions", "end_positions", "is_impossible")
    labels = zip(*(sequences.labels[name].tolist() for name in names))
    found, lacks = set(), set()
    for i, (window, (start, end, none)) in enumerate(zip(windows, labels)):
        if none:
            assert start == end == 0
            lacks.add(window.example)
            continue
        found.add(window.example)
        [(answer, _)] = examples[window.example].answers
        read = tokenizer.decode(pieces_of(sequences)[i][start : end + 1])
        if answer.isascii():
            assert tokenizer.preprocess(answer) in read and len(read) <= len(answer) + 2
        place = slice(*(window.first - window.offset + np.array([start, end + 1])))
        first, last = window.paragraph.starts[place][0], window.paragraph.ends[place][-1]
        assert answer in CONTEXT[first : last + 1]
        assert last - first <= len(answer) + 2
    assert found == set(range(len(questions))) and lacks & {0, 1}
    assert sequences.lost_answers == 0


def perfect_outputs(sequences):
    """What a model would say that knows the labels."""
    outputs = []
    for i in range(len(sequences)):
        length = len(pieces_of(sequences)[i]) + 5  # padded
        places = {name: sequences.labels[f"{name}_positions"][i] for name in ("start", "end")}
        logits = {f"{name}_logits": np.arange(length) == place for name, place in places.items()}
        outputs.append({name: 9 * is_there.astype(np.float32) for name, is_there in logits.items()})
    return outputs


def test_unanswerable_questions_and_the_files(tokenizer, questions, tmp_path):
    task = SquadTask({}, may_be_impossible=True, doc_stride=128)
    examples = [*questions, ask(98, CONTEXT), ask(99, "")]
    sequences, windows = task.encode(examples, tokenizer, 128, training=True)
    outputs = perfect_outputs(sequences)
    answers = task.answers(examples, windows, outputs)
    figures = task.score(answers.rows())
    assert figures["f1"] == figures["best_f1"] == figures["no_answer_f1"] == 100
    assert figures["null_threshold"] == 0

    paths = task.write(str(tmp_path), "dev", examples, answers)
    names = ["dev_predictions.json", "dev_nbest_predictions.json", "dev_null_odds.json"]
    assert paths == [str(tmp_path / name) for name in names]
    predictions, nbest, odds = (json.loads((tmp_path / name).read_text("utf-8")) for name in names)
    assert list(predictions) == list(nbest) == list(odds) == [q.id for q in examples]
    for question in examples:
        answer = question.answers[0][0] if question.answers else ""
        assert normalize_answer(predictions[question.id]) == normalize_answer(answer)
        assert predictions[question.id] in question.context
        assert (odds[question.id] > 0) == question.is_impossible
    assert len(nbest["q0"]) == 20 and nbest["q99"] == []
    assert nbest["q0"][0]["text"] == "The quick"
    assert sum(entry["probability"] for entry in nbest["q0"]) == pytest.approx(1)

    # The threshold decides, in the file and in the figures.
    strict = SquadTask({}, may_be_impossible=True, null_threshold=-1e9)
    answers = strict.answers(examples, windows, outputs)
    strict.write(str(tmp_path / "strict"), "test", examples, answers)
    assert set(json.loads((tmp_path / "strict/test_predictions.json").read_text()).values()) == {""}
    figures = strict.score(answers.rows())
    assert figures["has_answer_f1"] == 0 and figures["best_f1"] == 100


def test_v1_answers_every_question(tokenizer, questions, tmp_path):
    task = SquadTask({}, doc_stride=9)
    sequences, windows = task.encode(questions, tokenizer, 41, training=True)
    outputs = perfect_outputs(sequences)
    for output in outputs:
        output["start_logits"][0] = output["end_logits"][0] = 99  # [CLS] is no answer here
    answers = task.answers(questions, windows, outputs)
    assert len(task.write(str(tmp_path), "dev", questions, answers)) == 2
    assert all(json.loads((tmp_path / "dev_predictions.json").read_text("utf-8")).values())
    assert task.score(answers.rows()) == {"exact_match": 100.0, "f1": 100.0}


def test_nothing_is_left_out(tokenizer):
    texts = [(" \n ", "who"), ("\u0301", "who"), ("", ""), (CONTEXT, ""), ("fox", "who")]
    examples = [Question("q", text, context, (), True) for context, text in (("", "who"), *texts)]
    task = SquadTask({}, may_be_impossible=True)
    sequences, windows = task.encode(examples, tokenizer, 128, training=True)
    assert len(sequences) == len(windows) == 6
    for example, found in zip(examples, pieces_of(sequences), strict=True):
        first, second = tokenizer.encode(example.text), tokenizer.encode(example.context)
        assert found == [tokenizer.cls_id, *first, tokenizer.sep_id, *second, tokenizer.sep_id]
