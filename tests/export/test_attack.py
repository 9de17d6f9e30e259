"""An attack on the exports: requests that are empty, huge, malformed, out of range, or costly.

What is cut off before tokenizing changes no answer: the model reads the pieces of the whole text.
"""

import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from albert_tf.text.choices import questions_with_options
from albert_tf.text.packing import FEATURES
from export.checks import MAX_CONTEXT_CHARS, MAX_ROWS, are_words_read, first_chars_of_contexts
from export.verify import _TEXTS
from tests.export.task_models import assert_alike, serve
from tests.jobs import run_code


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


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("pretraining", "question_answering", "token_classifier", "cloze")
]
# Words; unknown to the vocabulary; white space; marks; no UTF-8; one word.
HUGE = [text.encode() for text in ("漢字" * 150_000, " \u3000" * 500_000, "\u0301" * 1_000_000)]
HUGE += [b"\xff" * 2_000_000, b"the quick brown fox " * 100_000, b"x" * 2_000_000]


@pytest.mark.parametrize("name", ["embedder", *SLOW])
def test_huge_texts_take_little_memory_and_time(module_of, name):
    module = module_of(name)
    fields = module.signatures["serving_default"].inputs
    shapes = {name: [1, 3][: len(field.shape)] for name, field in fields.items()}
    serve(module, "serving_default", **{key: np.full(shapes[key], b"a") for key in fields})
    # Question answering reads more words, here in windows of 9 pieces.
    for data in HUGE[: 4 if name == "question_answering" else 6]:
        request = {key: np.full(shapes[key], data, object) for key in fields}
        began = time.monotonic()
        grown = peak_megabytes(lambda request=request: serve(module, "serving_default", **request))
        # The request itself is there twice: as bytes and as a tensor.
        copies = len(data) * sum(np.prod(shape) for shape in shapes.values()) / 1e6
        most = 120 if name == "token_classifier" else 60
        assert grown < most + 2 * copies and time.monotonic() - began < 8


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


BAD_VALUES = {"input_ids": [-1, 10**6, 2**31 - 1], "input_mask": [-1, 2], "segment_ids": [-1, 2, 7]}


@pytest.mark.parametrize("signature", ["pooled", "mlm"])
def test_a_value_out_of_range_is_said_of_its_row(module_of, signature):
    module = module_of("pretraining")
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
        assert all(np.isnan(v[1]).all() for key, v in answers.items() if key != "error")


def test_many_rows_of_ids_are_computed_in_parts(saved_module):
    """At once, the scores of attention of 2,000 rows would be 60 MB, several times."""
    module = saved_module
    seq_len, rng = module.encoder.config.max_position_embeddings, np.random.RandomState(5)
    mask = (np.arange(seq_len) < rng.randint(1, seq_len + 1, [2000, 1])).astype(int)
    ids = rng.randint(0, module.sizes["vocab_size"], mask.shape)
    ids[::7, 3] = -1
    inputs = dict(zip(FEATURES, (ids, mask, mask * (np.arange(seq_len) > 9))))
    inputs["mlm_positions"] = rng.randint(0, seq_len, [2000, 2])
    few = {name: values[:40] for name, values in inputs.items()}
    expected = serve(module, "mlm", **few)  # the first one makes kernels, too
    answers = {}
    grown = peak_megabytes(lambda: answers.update(serve(module, "mlm", **inputs)))
    assert grown < 20 + 3 * sum(values.nbytes for values in answers.values()) / 1e6
    assert_alike(answers, expected)


def test_requests_that_are_too_large_are_refused(module_of):
    module, tagger = module_of("pretraining"), module_of("token_classifier")
    most = rf"batch at most {MAX_ROWS:,}"
    texts, ids = np.full(MAX_ROWS + 1, ""), np.ones([MAX_ROWS + 1, 1], int)
    contexts = np.full(33, b"x" * MAX_CONTEXT_CHARS + b"y", object)
    # A request of 4 MB that asks for 30,000 logits at each of 1,000,000 positions: 120 GB.
    row, positions = row_of(tokens(), 0), np.zeros([1, 1_000_000], int)
    large = r"mlm_logits \[batch, predictions, vocab_size\], .* must have at most 8,388,608 values"
    for served, signature, inputs, message in (
        (module, "tokenize", {"text": texts, "text_pair": texts}, most),
        (module, "fill_mask", {"text": texts}, most),
        (module, "pooled", dict.fromkeys(FEATURES, ids), most),
        (module, "tokens", dict.fromkeys(FEATURES, ids[:1, :0]), "seq_len must be 1 to 67"),
        (module, "pooled", dict.fromkeys(FEATURES, ids[:68].T), "seq_len must be 1 to 67"),
        (tagger, "words", {"words": texts[:, np.newaxis]}, most),
        (tagger, "words", {"words": [["a"] * (MAX_CONTEXT_CHARS + 1)]}, "words at most 100,000"),
        (tagger, "serving_default", {"text": contexts}, "of text must be at most 3,200,000 in"),
        (module, "mlm", {**row, "mlm_positions": positions}, large),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            serve(served, signature, **inputs)
    answers = serve(module, "tokenize", text=texts[1:], text_pair=texts[1:])
    assert answers["input_mask"].sum() == 2 * MAX_ROWS
    read = first_chars_of_contexts(tf.constant(contexts[1:]), "text")
    assert set(read.numpy()) == {contexts[0][:-1]}
    answers = serve(module, "mlm", **row, mlm_positions=positions[:, :0])
    assert answers["mlm_logits"].shape[:2] == (1, 0) and answers["error"] == [b""]


def test_words_past_the_first_characters_are_not_read(module_of):
    tagger = module_of("token_classifier")
    words = [["x" * 60_000, "y" * 40_000, "z"], ["fox"] * 3, ["\ufdfa" * 16_666, "a", "bcdefg"]]
    expected = [[True, True, False], [True] * 3, [True, True, False]]
    assert are_words_read(tf.constant(words)).numpy().tolist() == expected
    # Each word is cut off before, too: 60 of them, each of 43 pieces and more.
    many = [["x" * 10_000] * 60 + [""]]
    answers = serve(tagger, "words", words=many)
    num_read = MAX_CONTEXT_CHARS // (64 * tagger.max_seq_length)
    assert (answers["labels"] != b"").sum() == num_read == 36
    assert (answers["probabilities"] > 0).sum() == num_read


def test_a_text_that_is_cut_has_the_pieces_of_the_whole(module):
    number = module.max_seq_length
    texts = [text if isinstance(text, bytes) else text.encode() for text, _ in _TEXTS]
    texts = [*(text * 300 for text in texts), b" ".join(texts * 50), "é漢🙂x".encode() * 2_000]
    texts += [b"x" * shift + "漢é🙂 fox ".encode() * 2_000 for shift in range(1, 5)]
    texts = tf.constant(texts)
    assert (tf.strings.length(module.read(texts), "UTF8_CHAR") <= 64 * number).numpy().all()
    cut, whole = module.pieces(texts)[:, :number], module.tokenizer(texts)[:, :number]
    assert cut.to_list() == whole.to_list()


def test_the_end_of_a_question_with_many_blanks_is_read(tokenizer):
    """The last pieces, which are what the model reads, are those of the question in full."""
    in_graph = tokenizer.in_graph()

    def texts_of(questions, options):
        texts = tf.constant(questions), tf.constant(options)
        return questions_with_options(in_graph.preprocess, *texts, 19, "_")

    questions = ["_ sings " * 9 + "and _ flies _ _", "a _ " * 400 + "_", "old " * 900 + "_ fox _"]
    options = [["the green tree " * 3, "a", ""], ["sea " * 200, "x y z " * 90, "漢 sky"], ["b"] * 3]
    texts = texts_of(questions, sum(options, []))
    full = [q.replace("_", " ".join(o.split())) for q, row in zip(questions, options) for o in row]
    ends, expected = (in_graph(t)[:, -19:].to_list() for t in (texts, tf.constant(full)))
    assert ends == expected
    # With the option in each blank the question would have 4 MB; one of 110 KB, 3 GB.
    texts = texts_of(["_ " * 2_000], ["dog " * 500, "fox", ""])
    assert int(tf.reduce_sum(tf.strings.length(texts))) < 20_000


@pytest.mark.slow
def test_a_session_refuses_wrong_ranks_and_fuses_gelu(exported):
    """As TensorFlow Serving runs it. Alone, gelu takes a tenth of a request's time."""
    # In a process of its own: a session takes the tokenizers of this one along when it ends.
    output, _ = run_code(_IN_A_SESSION, str(exported))
    *operations, wrong_rank = output.splitlines()
    assert "text must be [batch]" in wrong_rank
    for ran in map(str.split, operations):
        assert any("MatMul" in operation for operation in ran)
        if _pywrap_util_port.IsMklEnabled():  # oneDNN
            assert "Tanh" not in ran and "Sigmoid" not in ran


_IN_A_SESSION = """
import sys
import tensorflow as tf
import tensorflow_text

path = sys.argv[1]
v1 = tf.compat.v1
with tf.Graph().as_default(), v1.Session() as session:
    signatures = v1.saved_model.loader.load(session, ["serve"], path).signature_def
    for signature in (signatures["tokens"], signatures["pooled"]):
        metadata = v1.RunMetadata()
        session.run(
            signature.outputs["pooled_output"].name,
            {field.name: [[1] * 11] * 2 for field in signature.inputs.values()},
            options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE),
            run_metadata=metadata,
        )
        nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
        labels = (node.timeline_label.partition(" = ")[2].partition("(")[0] for node in nodes)
        print(*filter(None, labels))

    fill_mask = signatures["fill_mask"]
    tensor = session.graph.get_tensor_by_name(fill_mask.inputs["text"].name)
    # Python knows the placeholder's rank, TensorFlow Serving feeds past it.
    tensor._shape_val = tf.TensorShape(None)
    tensor.get_shape = lambda: tf.TensorShape(None)
    try:
        print(session.run(fill_mask.outputs["pieces"].name, {tensor: [["a [MASK]"]]}))
    except tf.errors.InvalidArgumentError as error:
        print(repr(str(error)))
"""
