"""An attack on the exports: requests that are empty, huge, malformed, mismatched, out of range."""

from __future__ import annotations

import gc
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.words import join_rows, split_words_in_graph
from export.records import serialize
from tests.conftest import WORDS
from tests.export.task_models import TASKS, assert_alike, call, function_of, serve
from tests.export.test_limits import CLOZE
from tests.jobs import run_code


@pytest.fixture(scope="module")
def modules(make_module, module):
    names = ("multiple_choice", "classifier", "question_answering", "token_classifier")
    made = {name: make_module(TASKS[name]) for name in names}
    return {**made, "cloze": make_module(CLOZE), "pretraining": module}


def megabytes(name):
    """VmRSS or, since it was set back, VmHWM of this process."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))


def peak_megabytes(function):
    """How much more memory this process has while a function runs."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pytest.skip("no /proc/self/clear_refs to measure the peak of memory with")
    before = megabytes("VmRSS")
    function()
    return megabytes("VmHWM") - before


_SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("pretraining", "question_answering", "token_classifier", "cloze")
]


@pytest.mark.parametrize("name", ["classifier", *_SLOW])
def test_huge_texts_take_little_memory_and_time(modules, name):
    module = modules[name]
    fields = module.signatures["serving_default"].inputs
    shapes = {name: [1, 3][: len(field.shape)] for name, field in fields.items()}
    huge = {
        "words": "the quick brown fox " * 500_000,
        "unknown to the vocabulary": "漢字" * 150_000,
        "white space": " \u3000" * 2_000_000,
        "marks": "\u0301" * 2_000_000,
        "no UTF-8": b"\xff" * 5_000_000,
        "one word": "x" * 5_000_000,
    }
    if name == "question_answering":  # which reads more of it, here in windows of 9 pieces
        huge = {key: text for key, text in huge.items() if key not in ("words", "one word")}
    serve(module, "serving_default", **{key: np.full(shapes[key], b"a") for key in fields})
    for text in huge.values():
        data = text.encode() if isinstance(text, str) else text
        request = {key: np.full(shapes[key], data, object) for key in fields}
        began = time.monotonic()
        grown = peak_megabytes(lambda request=request: serve(module, "serving_default", **request))
        # The request itself is there twice: as bytes and as a tensor.
        copies = len(data) * sum(np.prod(shape) for shape in shapes.values()) / 1e6
        most = 120 if name == "token_classifier" else 60
        assert grown < most + 2 * copies and time.monotonic() - began < 8


def test_many_words_beside_a_long_one_take_little_memory():
    """A dense tensor of their characters would be of 20,000 x 20,000."""
    text = tf.constant(["a " * 20_000 + "x" * 20_000])
    split_words_in_graph(tf.constant(["a b"]))  # the first one makes kernels
    assert peak_megabytes(lambda: split_words_in_graph(text)) < 100


@pytest.mark.parametrize(
    "lengths", [[1] * 20_000 + [20_000], [20_000] + [1] * 20_000], ids=["last", "first"]
)
def test_rows_beside_a_long_one_are_joined_in_little_memory(lengths):
    """Of a ragged tensor that has row splits alone, as tf.ragged.range makes."""
    values = tf.RaggedTensor.from_row_lengths(tf.fill([sum(lengths)], "x"), lengths)
    join_rows(tf.ragged.constant([["a"], []]))  # the first one makes kernels
    joined = []
    assert peak_megabytes(lambda: joined.append(join_rows(values))) < 100
    assert [len(text) for text in joined[0].numpy()] == lengths


def test_a_request_of_twenty_kilobytes_takes_little_memory(modules):
    """10,000 blanks, each with an option of 10,000 characters, would be 100 MB an option."""
    request = {
        "context": ["The fox runs."],
        "question": ["_" * 10_000],
        "options": [["x" * 10_000, "dog " * 2_500, "fox"]],
    }
    serve(modules["cloze"], "serving_default", **request)  # the first one makes kernels
    assert peak_megabytes(lambda: serve(modules["cloze"], "serving_default", **request)) < 60


def tokens(**changes):
    """Three rows of five positions, all good but for the changes."""
    ones = np.ones([3, 5], int)
    rows = {"input_ids": 4 * ones, "input_mask": ones, "segment_ids": 0 * ones}
    for name, (row, value) in changes.items():
        rows.setdefault(name, np.zeros([3, 2], int))
        rows[name] = rows[name].copy()
        rows[name][row, -1] = value
    return rows


def row_of(answers, row):
    return {name: values[row : row + 1] for name, values in answers.items()}


def is_no_answer(values):
    values = np.asarray(values)
    if values.dtype.kind in "OS":
        return all(value == b"" for value in values.flat)
    return np.all(np.isnan(values) if values.dtype.kind == "f" else values == -1)


BAD_VALUES = {"input_ids": [-1, 10**6, 2**31 - 1], "input_mask": [-1, 2], "segment_ids": [-1, 2, 7]}


@pytest.mark.parametrize("signature", ["tokens", "pooled", "mlm", "sop"])
def test_a_value_out_of_range_is_said_of_its_row(modules, signature):
    module = modules["pretraining"]
    extra = {"mlm_positions": (1, 4)} if signature == "mlm" else {}
    good = serve(module, signature, **tokens(**extra))
    assert good["error"].tolist() == [b""] * 3
    cases = [(name, value) for name, values in BAD_VALUES.items() for value in values]
    if signature == "mlm":
        cases += [("mlm_positions", -1), ("mlm_positions", 5)]
    for name, value in cases:
        answers = serve(module, signature, **tokens(**{**extra, name: (1, value)}))
        assert answers["error"][1].startswith(f"{name} must be 0 to ".encode())
        for row in (0, 2):
            assert_alike(row_of(answers, row), row_of(good, row))
        assert all(is_no_answer(v[1]) for key, v in answers.items() if key != "error")


def records(number, per_record=1, **changes):
    """Tf.Examples of 5 positions a sequence, all good: they begin with [CLS], 2."""
    rows = tokens()
    rows["input_ids"][:, 0] = 2
    rows = {name: values[0].tolist() * per_record for name, values in rows.items()}
    return [serialize({n: np.array(v) for n, v in {**rows, **changes}.items()})] * number


@pytest.mark.parametrize("name", ["pretraining", "classifier", "multiple_choice"])
def test_a_broken_record_is_said_of_its_row(modules, name):
    module = modules[name]
    choices = module.sizes.get("choices", 1)
    length = 5 * choices
    good = serve(module, "examples", examples=records(3, choices))
    assert good["error"].tolist() == [b""] * 3
    floats = tf.train.Example()
    floats.features.feature["input_ids"].float_list.value[:] = [1.0] * length
    longest = module.encoder.config.max_position_embeddings
    many = np.ones(choices * (longest + 1), int)
    unreadable, lengths = b"no tf.Example with", b"must be equally many"
    bad = {
        b"no record": unreadable,
        b"\xff" * 50: unreadable,
        floats.SerializeToString(): unreadable,
        b"": lengths,
        records(1, choices, input_mask=[1] * (length - 1))[0]: lengths,
        records(1, choices, segment_ids=[0])[0]: lengths,
        records(1, choices, input_ids=many, input_mask=many, segment_ids=0 * many)[0]: lengths,
        records(1, choices, input_ids=[2**32 + 10] * length)[0]: b"input_ids must be 0 to",
        records(1, choices, input_ids=[-1] * length)[0]: b"input_ids must be 0 to",
        records(1, choices, segment_ids=[7] * length)[0]: b"segment_ids must be 0 to 1",
        records(1, choices, input_mask=[2] * length)[0]: b"input_mask must be 0 to 1",
    }
    if choices > 1:  # one sequence, which is not three
        bad[records(1, 1)[0]] = lengths
        one = records(1, choices, input_ids=[2] + [4] * (length - 1))[0]
        bad[one] = b"each of the 3 sequences must begin with [CLS]"
    for record, message in bad.items():
        examples = records(3, choices)
        examples[1] = record
        answers = serve(module, "examples", examples=examples)
        assert message in answers["error"][1]
        for row in (0, 2):
            assert_alike(row_of(answers, row), row_of(good, row))
        assert all(is_no_answer(v[1]) for key, v in answers.items() if key != "error")
    answers = serve(module, "examples", examples=list(bad))
    assert all(answers["error"])
    assert serve(module, "examples", examples=[])["error"].shape == (0,)


def mixed_requests(number):
    """Good and bad requests, of several signatures and sizes."""
    rng = np.random.RandomState(11)
    odd = [b"", b"\xff", b"_ _", "漢字".encode() * 200, b"[MASK]" * 40, b"fox " * 300]
    garbage = [b"garbage", *records(1, input_mask=[1]), *records(1, segment_ids=[9] * 5)]

    def texts(size):
        words = " ".join(rng.choice(WORDS, rng.randint(41))).encode()
        return [odd[rng.randint(6)] if rng.rand() < 0.2 else words for _ in range(size)]

    def request():
        size, kind = rng.randint(1, 5), rng.randint(8)
        if kind < 3:
            fewer = size - (rng.rand() < 0.1)  # refused
            signature = ("serving_default", "tokenize")[kind % 2]
            return signature, {"text": texts(size), "text_pair": texts(fewer)}
        if kind < 5:
            return "fill_mask", {"text": [text + b" [MASK]" for text in texts(size)]}
        if kind == 5:
            return "examples", {"examples": rng.permutation(garbage + records(size)).tolist()}
        changes = {"mlm_positions": (0, rng.randint(6)), "input_mask": (1, rng.randint(3))}
        ids = tokens(**changes, segment_ids=(2, rng.randint(4)))
        if rng.rand() < 0.1:  # refused
            ids["segment_ids"] = ids["segment_ids"][:, :2]
        return "mlm", ids

    return [request() for _ in range(number)]


def attack(functions, requests, threads=32):
    """Sends requests, each as often as it is in the list; returns those answered otherwise."""

    def answer(request):
        signature, inputs = request
        try:
            return call(functions[signature], inputs)
        except tf.errors.InvalidArgumentError as error:
            return {"refused": np.array([" must be " in str(error)])}

    expected = {id(request): answer(request) for request in requests}
    assert all(answers.get("refused", [True])[0] for answers in expected.values())
    assert 0 < sum("refused" in answers for answers in expected.values()) < len(expected) / 5

    def is_wrong(request):
        answers, others = answer(request), expected[id(request)]
        try:
            assert answers.keys() == others.keys()
            assert_alike(answers, others)
        except AssertionError:
            return True
        return False

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(is_wrong, requests))


def test_good_and_bad_requests_from_many_threads(modules):
    module = modules["pretraining"]
    requests = mixed_requests(60)
    functions = {signature: function_of(module, signature) for signature, _ in requests}
    assert attack(functions, requests * 5) == 0


@pytest.mark.slow
def test_ten_thousand_requests_do_not_grow_the_process(loaded):
    if not os.path.exists("/proc/self/status"):
        pytest.skip("no /proc/self/status to read the memory from")
    requests = mixed_requests(100)
    assert attack(loaded.signatures, requests * 10) == 0
    gc.collect()
    before = megabytes("VmRSS")
    assert attack(loaded.signatures, requests * 100) == 0
    gc.collect()
    after = megabytes("VmRSS")
    assert after < 1.05 * before, f"{before:.0f} MB, then {after:.0f} MB"


@pytest.mark.slow
def test_a_session_tells_bad_rows_and_ranks_too(exported):
    """As TensorFlow Serving runs an export; in a process of its own (see test_serving_module)."""
    output, _ = run_code(_IN_A_SESSION, str(exported), records(1)[0].hex())
    good, bad, wrong_rank = output.splitlines()
    assert good == "True" and "text must be [batch]" in wrong_rank
    assert bad == "no tf.Example with input_ids, input_mask, segment_ids of int64"


_IN_A_SESSION = """
import sys
import tensorflow as tf
import tensorflow_text

path, record = sys.argv[1:]
v1 = tf.compat.v1
with tf.Graph().as_default(), v1.Session() as session:
    signatures = v1.saved_model.loader.load(session, ["serve"], path).signature_def

    def ask(signature, output, value):
        inputs = signatures[signature].inputs.values()
        tensors = {session.graph.get_tensor_by_name(field.name): value for field in inputs}
        # Python knows the placeholder's rank, TensorFlow Serving feeds past it.
        for tensor in tensors:
            tensor._shape_val = tf.TensorShape(None)
            tensor.get_shape = lambda: tf.TensorShape(None)
        return session.run(signatures[signature].outputs[output].name, tensors)

    examples = [bytes.fromhex(record), b"garbage"]
    pooled = ask("examples", "pooled_output", examples)
    print((pooled[0] == pooled[0]).all())
    print(ask("examples", "error", examples)[1].decode())
    try:
        print(ask("fill_mask", "pieces", [["a [MASK]"]]))
    except tf.errors.InvalidArgumentError as error:
        print(repr(str(error)))
"""
