"""Every kind of model: answers from raw strings are those of fine-tuning's own evaluation."""

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from export import kinds, serving, verify
from export.signatures import COMMON, of_task
from export.verify import _LONG_TEXTS, _TEXTS
from pipelines import predict
from pipelines.tasks.classification import Example
from pipelines.tasks.embedding import EmbeddingExample
from pipelines.tasks.multiple_choice import MultipleChoiceExample
from pipelines.tasks.reading.squad_files import Question
from pipelines.tasks.reading.token_files import TokenExample, of_text
from pipelines.tasks.running.batches import make_batch
from tests.builders import read_tsv
from tests.conftest import WORDS
from tests.export import task_models
from tests.export.conftest import CHINESE
from tests.export.task_models import LABELS, TASKS, ask, ask_eagerly, call, serve

# The graphs of these have no part of their own: they answer eagerly. Others are traced once.
EAGER = (
    "classifier of texts",
    "multilabel",
    "regressor",
    "embedder, cls",
    "question_answering, 2.0",
)
ALIKE = ("cloze", "question_answering")  # by default, multiple_choice and beams stand for them
TRACED = [
    "pretraining",
    *(name for name in TASKS if name not in (*EAGER, *ALIKE)),
    pytest.param("question_answering", marks=pytest.mark.slow),
]
ODD = ["", " \u3000", "Óld ﬁsh ½ _ [MASK] 1,000, 北京 한국", "\u0301", "¨ a_b _", "x" * 200, "a\0b"]


def make_texts(number, seed, longest=60):
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(number)]
    return texts + ODD


def chinese_texts(number):
    return [
        f"{text[:30]} {CHINESE[i % 9 :] * (i % 4)}é\u0301 {text[30:]}"
        for i, text in enumerate(make_texts(number, 8))
    ]


def encode(task, module, examples):
    return task.encode(examples, module.served.tokenizer, module.max_seq_length, training=False)


def evaluate(task, module, examples, directory):
    sequences, features = encode(task, module, examples)
    batch = make_batch(sequences, np.arange(len(sequences)), sequences.lengths().max())
    batch = module.model({name: ids for name, ids in batch.items() if name.startswith("input_")})
    batch = {name: value.numpy() for name, value in batch.items()}
    outputs = [dict(zip(batch, values)) for values in zip(*batch.values())]
    return task.write(str(directory), "dev", examples, task.answers(examples, features, outputs))


def answers_of(module, name, signature="serving_default", **texts):
    return (ask_eagerly if name in EAGER else serve)(module, signature, **texts)


def check_shares(task, module, examples, answers):
    sequences, features = encode(task, module, examples)
    expected = sequences.unknown_shares(task.owners(features), module.served.tokenizer)
    np.testing.assert_allclose(answers["unknown_share"], expected, atol=1e-7)
    return expected


@pytest.mark.parametrize(
    "name",
    [
        "classifier",
        "classifier of texts",
        "multilabel",
        "regressor",
        pytest.param("classifier of texts, WordPiece", marks=pytest.mark.slow),
    ],
)
def test_texts_and_pairs(module_of, tmp_path, name):
    task, module = TASKS[name.removesuffix(", WordPiece")], module_of(name)
    first, second = make_texts(30, 1), make_texts(30, 2)[::-1]
    first[3:6] = "我无法登录", "", " 我 the cat"
    if name.endswith("WordPiece"):
        first = chinese_texts(20)
    has_pairs = not name.startswith("classifier of texts")
    pairs = [(a, b if has_pairs else None) for a, b in zip(first, second)]
    examples = [Example(str(i), *pair, None) for i, pair in enumerate(pairs)]
    [path] = evaluate(task, module, examples, tmp_path)
    rows = read_tsv(path)
    texts = {"text": first, **({"text_pair": second} if has_pairs else {})}
    answers = share = answers_of(module, name, **texts)
    if not name.startswith("classifier"):
        share = answers_of(module, name, "unknown_share", **texts)
    expected = check_shares(task, module, examples, share)
    if name == "classifier of texts":
        assert list(expected[3:5]) == [1, 1] and 0 < expected[5] < 1 and expected.min() == 0
    if name == "regressor":
        expected = [float(row["prediction"]) for row in rows]
        np.testing.assert_allclose(answers["value"], expected, atol=1e-5)
        assert np.ptp(expected) > 1e-2
        return
    if name == "multilabel":
        found = [",".join(np.array(LABELS)[p >= 0.5]) for p in answers["probabilities"]]
    else:
        found = [label.decode() for label in answers["label"]]
    assert found == [row["prediction"] for row in rows]
    assert len({row["prediction"] for row in rows}) > 1 or name.endswith("WordPiece")
    expected = [[float(row[f"probability_{label}"]) for label in LABELS] for row in rows]
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)
    labels = answers_of(module, name, "labels")["labels"]
    assert [label.decode() for label in labels] == list(LABELS)


@pytest.mark.parametrize("name", ["embedder", "embedder, cls"])
def test_embeddings(module_of, name):
    texts = make_texts(20, 4)
    module = module_of(name)
    found = answers_of(module, name, text=texts)["embedding"]
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    module.model.trained_length = module.max_seq_length
    embed = albert_tf.TextEmbedder(
        module.model, module.served.tokenizer, name.partition(", ")[2] or "mean"
    )
    np.testing.assert_allclose(found, embed(texts), atol=1e-5)
    if name not in EAGER:
        rows = predict.load(module.served.model_dir).predict(texts)
        np.testing.assert_allclose([row["embedding"] for row in rows], found, atol=1e-5)
        examples = [EmbeddingExample(str(i), text) for i, text in enumerate(texts)]
        check_shares(TASKS[name], module, examples, serve(module, "unknown_share", text=texts))


def test_choices(module_of, tmp_path):
    contexts, questions = make_texts(20, 1), make_texts(20, 2, longest=9)[::-1]
    questions[3] += " _ , _"
    contexts[4] = "我无法登录 我"
    options = list(zip(*(make_texts(20, seed, longest=seed) for seed in (3, 4, 25))))
    texts = enumerate(zip(contexts, questions, options))
    examples = [MultipleChoiceExample(str(i), *row, label=None) for i, row in texts]
    task, module = TASKS["multiple_choice"], module_of("multiple_choice")
    [path] = evaluate(task, module, examples, tmp_path)
    rows = read_tsv(path)
    answers = ask(module, context=contexts, question=questions, options=options)
    expected = np.array([[float(row[f"probability_{letter}"]) for letter in "ABC"] for row in rows])
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)
    # Of equal ones either may be chosen.
    chosen = expected[np.arange(len(rows)), answers["choice"]]
    np.testing.assert_allclose(chosen, expected.max(axis=1), atol=2e-5)
    assert set(answers["choice"]) == {0, 1, 2}
    shares = check_shares(task, module, examples, answers)
    assert shares[4] > 0.05 and shares.min() == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("question_answering, beams", marks=pytest.mark.slow),
        "question_answering, 2.0",
        pytest.param("question_answering, 2.0, WordPiece", marks=pytest.mark.slow),
    ],
)
def test_answers_to_questions(module_of, tmp_path, name):
    is_wordpiece = name.endswith("WordPiece")
    task, module = TASKS[name.removesuffix(", WordPiece")], module_of(name)
    # Unknown characters have their space as a piece of its own, which is no answer.
    contexts = make_texts(10, 5, longest=90) + [" ".join("漢" * n) for n in range(1, 13, 2)]
    if is_wordpiece:
        contexts = chinese_texts(12)
    asked = enumerate(zip(make_texts(len(contexts), 6, longest=12)[::-1], contexts))
    questions = [Question(f"q{i}", *texts, (), False) for i, texts in asked]
    files = map(Path, evaluate(task, module, questions, tmp_path))
    found = {file.stem: json.loads(file.read_text()) for file in files}
    expected, nbest = found["dev_predictions"], found["dev_nbest_predictions"]
    inputs = {"question": [q.text for q in questions], "context": [q.context for q in questions]}
    answers = answers_of(module, name, **inputs)
    texts = [answer.decode() for answer in answers["answer"]]
    for row, question in enumerate(questions):
        candidates = nbest[question.id]
        score = candidates[0]["score"] if candidates else -2e6  # as in the reference
        assert answers["score"][row] == pytest.approx(score, abs=1e-4)
        assert texts[row] == expected[question.id], question
    check_shares(task, module, questions, answers)
    odds = [found["dev_null_odds"][question.id] for question in questions]
    np.testing.assert_allclose(answers["no_answer_score"], odds, rtol=1e-5, atol=1e-4)
    assert len(set(texts)) > 5 and (is_wordpiece or "" in texts)
    assert all(answer in context for answer, context in zip(texts, contexts))


def own_signatures(module):
    """Those of all kinds are tested on the exported model alone."""
    is_exported = module.served.kind == "pretraining"
    return {n: of for n, of in module.signatures.items() if is_exported or n not in COMMON}


@pytest.mark.parametrize("name", TRACED)
def test_inputs_and_outputs_are_those_of_the_table(module_of, loaded, name):
    module = module_of(name)
    if name == "pretraining":
        assert set(loaded.signatures) == set(module.signatures)
    for signature, table in own_signatures(module).items():
        function = module.function(signature)
        specs = tf.nest.flatten(function.structured_input_signature)
        dtypes = {spec.name: spec.dtype for spec in specs}
        assert dtypes == {key: field.dtype for key, field in table.inputs.items()}, signature
        found = function.structured_outputs
        assert found.keys() == table.outputs.keys()
        for key, field in table.outputs.items():
            shape = [module.sizes.get(d) if isinstance(d, str) else d for d in field.shape]
            assert found[key].dtype == field.dtype, (signature, key)
            assert found[key].shape.as_list() == shape, (signature, key)


def test_the_table_of_signatures_in_the_readme_is_up_to_date():
    text = (Path(serving.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    section = text.partition("\n## Signatures\n")[2].partition("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("|")]
    kinds_of_row = {}
    for kind in kinds.MODULES:
        for name, signature in of_task(kind, {"has_pairs": True}, 2).items():
            cells = (
                "<br>".join(f"`{field}` {form}" for field, form in fields.items()) or "none"
                for fields in (signature.inputs, signature.outputs)
            )
            kinds_of_row.setdefault(" | ".join([f"`{name}`", *cells]), []).append(kind)
    rows = [
        f"| {'all' if len(named) == len(kinds.MODULES) else ', '.join(named)} | {row} |"
        for row, named in kinds_of_row.items()
    ]
    head = ["| kind | signature | inputs | outputs |", "| --- | --- | --- | --- |"]
    assert found == [*head, *rows], "the table is:\n" + "\n".join([*head, *rows])


@pytest.mark.parametrize("name", TRACED)
def test_rows_in_any_batches_are_answered_as_alone(module_of, name):
    """TF Serving joins requests and cuts them, without a check of outputs: batching_session.cc."""
    module = module_of(name)
    functions = {signature: module.function(signature) for signature in own_signatures(module)}
    rng = np.random.RandomState(len(name))
    questions = verify._questions(module, functions)
    assert {signature for signature, _ in questions} == functions.keys()
    for signature, inputs in questions:
        number = len(next(iter(inputs.values()), ()))
        if number < 2:
            continue

        def answer(rows, signature=signature, inputs=inputs):
            return serve(module, signature, **{n: v[rows] for n, v in inputs.items()})

        rows = rng.choice(rng.choice(number, min(number, 5), replace=False), 12)
        alone = {row: answer([row]) for row in set(rows)}
        parts = [answer(part) for part in np.split(rows, [1, 8])]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        expected = {n: np.concatenate([alone[row][n] for row in rows]) for n in joined}
        verify._difference((signature, rows), expected, joined)


HOSTILE = [
    *(text for text, _ in _TEXTS + _LONG_TEXTS),
    *(b"x" * 10_000, b"[MASK]" * 50, b"[CLS] [SEP] <pad>"),
    *(b"NaN", b"", b"\0", b"a\0b", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"),
    *("\ufeff", "\U0010ffff", "\u202ea", "\u0301", "\ufdfa", "_", "\r", "e\u0301" * 50, "|||"),
    *(b"-1", b"1e999", b"%s%n", b"caf\xe9 [MASK]\xe9", b"[MASK", b"lazy dog " * 1_000),
]


def inputs_of(module, signature, batch):
    """Hostile strings in every string input, each row with another; ids of two positions."""
    inputs = {}
    for number, (name, field) in enumerate(module.signatures[signature].inputs.items(), 1):
        shape = [batch, *(module.sizes.get(d, 2) for d in field.shape[1:])]
        inputs[name] = np.full(shape, 0 if name == "mlm_positions" else 1)
        if field.dtype == tf.string:
            places = np.arange(np.prod(shape)).reshape(shape) * number % len(HOSTILE)
            inputs[name] = np.array([*map(tf.compat.as_bytes, HOSTILE)], object)[places]
    return inputs


def check_answered(answers, number):
    for name, values in answers.items():
        assert len(values) == number, name
        assert values.dtype == object or np.isfinite(values).all(), name


@pytest.mark.parametrize("name", TRACED)
def test_hostile_and_empty_requests_are_answered_and_unlike_shapes_refused(module_of, name):
    module = module_of(name)
    for signature, table in own_signatures(module).items():
        if not table.inputs:
            continue
        function = module.function(signature)
        check_answered(call(function, inputs_of(module, signature, 0)), 0)
        answers = call(function, inputs_of(module, signature, len(HOSTILE)))
        check_answered(answers, len(HOSTILE))
        good = inputs_of(module, signature, 2)
        for key, field in table.inputs.items():
            values = good[key]
            for wrong in (values[np.newaxis], values[0], values[:, np.newaxis]):
                with pytest.raises(tf.errors.InvalidArgumentError, match=f"{key} must be "):
                    call(function, {**good, key: wrong})
            for axis, dimension in enumerate(field.shape):
                users = [other for other in table.inputs.values() if dimension in other.shape]
                if dimension in module.sizes or len(users) > 1:
                    wrong = values.take([0], axis)
                    message = f" must be .*{dimension} .*as in (the model|{'|'.join(good)})"
                    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                        call(function, {**good, key: wrong})


# No tags of entities: each word is a span.
PARTS_OF_SPEECH = ("VB", "NN", "O", "DT", "IN", "JJ")


@pytest.mark.parametrize(
    ("labels", "number", "found_labels"),
    [(None, 50, {"á", "b"}), (PARTS_OF_SPEECH, 500, {*PARTS_OF_SPEECH})],
    ids=["spans", "parts of speech"],
)
def test_spans_of_raw_text(module_of, tmp_path, labels, number, found_labels):
    task, module = TASKS["token_classifier"], module_of("token_classifier")
    if labels:
        task = task_models.token_classification(labels)
        served = dataclasses.replace(module.served, task={**module.served.task, "labels": labels})
        module = type(module)(module.model, served)
    texts = make_texts(20, 1) + [text for text, _ in _TEXTS]
    as_read = [text.decode("utf-8", "replace") for text in map(tf.compat.as_bytes, texts)]
    examples = [of_text(str(i), text) for i, text in enumerate(as_read)]
    [path] = evaluate(task, module, examples, tmp_path)
    with open(path, encoding="utf-8") as file:
        expected = [json.loads(line)["spans"] for line in file]
    answers = (ask_eagerly if labels else ask)(module, text=texts)
    check_shares(task, module, examples, answers)
    assert answers["num_spans"].tolist() == list(map(len, expected))
    for row, spans in enumerate(expected):
        found = json.loads(answers["spans"][row])
        near = [{**s, "probability": pytest.approx(s["probability"], abs=2e-6)} for s in found]
        assert spans == near, texts[row]
    assert max(len(text.split()) for text in texts) > module.max_seq_length  # windows
    found = [span["label"] for spans in expected for span in spans]
    assert len(found) > number and set(found) == found_labels


def test_words_that_are_given(module_of, tmp_path):
    tagger = module_of("token_classifier")
    rows = [text.split() for text in make_texts(12, 3)] + [["New York", "\u0301", "北京", "x" * 99]]
    rows = [row for row in rows if row]
    examples = [TokenExample(str(i), tuple(row), None) for i, row in enumerate(rows)]
    [path] = evaluate(TASKS["token_classifier"], tagger, examples, tmp_path)
    with open(path, encoding="utf-8") as file:
        lines = [line.split("\t") for line in file.read().splitlines() if line]
    table = tf.ragged.constant(rows).to_tensor().numpy()
    answers = serve(tagger, "words", words=table)
    shares = check_shares(TASKS["token_classifier"], tagger, examples, answers)
    assert shares.min() == 0 and shares[-1] > 0.01
    is_word = table != b""
    assert [label.decode() for label in answers["labels"][is_word]] == [row[1] for row in lines]
    expected = [float(row[2]) for row in lines]
    np.testing.assert_allclose(answers["probabilities"][is_word], expected, atol=2e-6)
    assert not answers["labels"][~is_word].any() and not answers["probabilities"][~is_word].any()
