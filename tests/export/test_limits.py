"""What is cut off before tokenizing: the model reads the pieces of the whole text."""

import time
import timeit

import numpy as np
import pytest
import tensorflow as tf

from export.verify import _TEXTS
from pipelines.tasks.classification import Example
from pipelines.tasks.multiple_choice import MultipleChoiceColumns, MultipleChoiceExample
from pipelines.tasks.reading.truncation import encode_first
from tests.export.task_models import TASKS, MultipleChoice


class Cloze(MultipleChoice):
    blank = "_"


CLOZE = Cloze("multiple_choice", {}, MultipleChoiceColumns("", "", ""), 19)


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
def test_a_run_reads_what_its_export_reads(make_module, case):
    module, task = make_module(TASKS["classifier of texts"]), TASKS["classifier of texts"]
    tokenizer, length = module.served.tokenizer, module.max_seq_length

    def of_run():
        return task.encode([Example("0", LONG[case], None, None)], tokenizer, length, False)[0]

    def of_export():
        return module.packer.truncate_and_pack(module.pieces(tf.constant([LONG[case]])))

    sequences, tokens = of_run(), of_export()
    ids = tf.boolean_mask(tokens["input_ids"], tokens["input_mask"])
    assert sequences.pieces.tolist() == ids.numpy().tolist()
    is_whole = case in ("blanks before", "blanks alone")
    assert (sequences.full_lengths[0] == len(sequences.pieces)) == is_whole
    if "blanks before" in case:
        assert sequences.pieces.tolist()[1:-1] == tokenizer.encode("the fox sings")
    # Cut first, some milliseconds; as a whole the words take seconds.
    assert min(timeit.repeat(of_run, number=1, repeat=3)) < 0.3
    assert min(timeit.repeat(of_export, number=1, repeat=3)) < 0.3

    # Of a question, too, with blanks behind it, and of options.
    module, text = make_module(CLOZE), LONG[case]
    for question, options in (
        (text, ["a", "b", "c"]),
        (f"who? {text}   ", ["a", f"{text}\u3000 ", text]),
        (f"_ sings {text}", [text, "", f"a{' ' * 9_000}"]),
    ):
        example = MultipleChoiceExample("0", "", question, tuple(options), None)
        begin = time.process_time()
        sequences, _ = CLOZE.encode([example], module.served.tokenizer, 32, False)
        assert time.process_time() - begin < 2
        texts = module._questions_with_options(tf.constant([question]), tf.constant(options))
        rows = np.split(sequences.pieces, sequences.row_splits[1:-1])
        read = [row[2:-1].tolist() for row in rows]  # behind [CLS] and [SEP]
        assert read == module.tokenizer(texts)[:, -19:].to_list()


def test_the_full_length_of_a_text_that_is_cut_is_an_estimate(tokenizer):
    texts = ["the old fox " * 5_000, "the fox", "  "]
    exact = tokenizer.encode_batch(texts)
    for (_, number), row in zip(encode_first(texts, tokenizer, 32), exact):
        assert number == pytest.approx(len(row), rel=0.01)


def test_the_end_of_a_question_with_many_blanks_is_read(make_module):
    """The last pieces, which are what the model reads, are those of the question in full."""
    module = make_module(CLOZE)
    questions = ["_ sings " * 9 + "and _ flies _ _", "a _ " * 400 + "_", "old " * 900 + "_ fox _"]
    options = [["the green tree " * 3, "a", ""], ["sea " * 200, "x y z " * 90, "漢 sky"], ["b"] * 3]
    texts = module._questions_with_options(tf.constant(questions), tf.constant(sum(options, [])))
    full = [q.replace("_", " ".join(o.split())) for q, row in zip(questions, options) for o in row]
    ends, expected = (module.tokenizer(t)[:, -19:].to_list() for t in (texts, tf.constant(full)))
    assert ends == expected
    # With the option in each blank the question would have 4 MB; one of 110 KB, 3 GB.
    options = tf.constant(["dog " * 500, "fox", ""])
    texts = module._questions_with_options(tf.constant(["_ " * 2_000]), options)
    assert int(tf.reduce_sum(tf.strings.length(texts))) < 20_000
    # A mark in a name is no blank of a task without blanks.
    texts = make_module(TASKS["multiple_choice"])._questions_with_options(
        tf.constant(["What does max_seq_length mean?"]), tf.constant(["pieces", "words", "lines"])
    )
    assert texts[0].numpy() == b"what does max_seq_length mean? pieces"
