"""What is cut off before tokenizing: the model reads the pieces of the whole text."""

import time
import timeit

import pytest
import tensorflow as tf

from albert_tf.text.choices import questions_with_options
from export.verify import _TEXTS
from pipelines.tasks.classification import Example
from pipelines.tasks.multiple_choice import MultipleChoiceExample
from tests.export.task_models import CLOZE, TASKS


def test_a_text_that_is_cut_has_the_pieces_of_the_whole(module):
    number = module.max_seq_length
    texts = [text if isinstance(text, bytes) else text.encode() for text, _ in _TEXTS]
    texts = [*(text * 300 for text in texts), b" ".join(texts * 50), "é漢🙂x".encode() * 2_000]
    texts += [b"x" * shift + "漢é🙂 fox ".encode() * 2_000 for shift in range(1, 5)]
    texts = tf.constant(texts)
    assert (tf.strings.length(module.read(texts), "UTF8_CHAR") <= 64 * number).numpy().all()
    cut, whole = module.pieces(texts)[:, :number], module.tokenizer(texts)[:, :number]
    assert cut.to_list() == whole.to_list()


LONG = {
    "blanks before": " \u3000\t" * 1_700 + "the fox sings",
    "blanks alone": " " * 9_000,
    "blanks within": "the" + " " * 9_000 + "fox",
    "a million words": "old 漢 fox " * 333_000,
    "many characters of one": "\ufdfa" * 9_000,
    "Korean": "한국어 " * 2_000,
    "marks": "x" + "\u0301" * 9_000 + " fox",
}


@pytest.mark.parametrize("case", LONG)
def test_a_long_text_is_read_in_no_time(tokenizer, case):
    """Cut first, some milliseconds; as a whole the words take seconds."""
    task, text = TASKS["classifier of texts"], LONG[case]

    def sequences_of(text):
        return task.encode([Example("0", text, None, None)], tokenizer, 43, False)[0]

    sequences = sequences_of(text)
    is_whole = case in ("blanks before", "blanks alone")
    assert (sequences.full_lengths[0] == len(sequences.pieces)) == is_whole
    if "blanks before" in case:
        assert sequences.pieces.tolist()[1:-1] == tokenizer.encode("the fox sings")
    assert min(timeit.repeat(lambda: sequences_of(text), number=1, repeat=3)) < 0.3

    # Of a question, too, with blanks behind it, and of options.
    for question, options in (
        (text, ["a", "b", "c"]),
        (f"who? {text}   ", ["a", f"{text}\u3000 ", text]),
        (f"_ sings {text}", [text, "", f"a{' ' * 9_000}"]),
    ):
        example = MultipleChoiceExample("0", "", question, tuple(options), None)
        begin = time.process_time()
        CLOZE.encode([example], tokenizer, 32, False)
        assert time.process_time() - begin < 2


def test_the_full_length_of_a_text_that_is_cut_is_an_estimate(tokenizer):
    texts = ["the old fox " * 5_000, "the fox", "  "]
    examples = [Example("0", text, None, None) for text in texts]
    sequences, _ = TASKS["classifier of texts"].encode(examples, tokenizer, 32, False)
    exact = [len(row) + 2 for row in tokenizer.encode_batch(texts)]
    assert sequences.full_lengths == pytest.approx(exact, rel=0.01)


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
