"""Places of pieces in texts: those that the tasks find in Python, for any text."""

import json

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from albert_tf.text.tokenization import AlbertTokenizer
from export.text.alignment import WHITE_SPACE, AligningTokenizer
from pipelines.tasks.reading.squad_windows import Aligner
from tests import vocabularies
from tests.conftest import make_text

ODD = " \t\n\0\1\x1c\x85\xa0\u2028\u200b\ufeff\xad½ﬁ\ufdfa¨İΣẞ\ufffd▁"
ODD += "한\u1100\u1161e\u0301\u0345\u0b4d😀漢[]<.,19"


@pytest.fixture(scope="module", params=["digit comma", "bytes"])
def tokenizer(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "tiny"
    lines = [*make_text(60).splitlines(), "3, 19, 1,9 10, 2010, 11, " * 9]
    if request.param == "bytes":
        model = vocabularies.train(path, lines, vocab_size=467, byte_fallback=True)
        return AlbertTokenizer(str(model), do_lower_case=False)
    model = vocabularies.train(path, lines, vocab_size=223, split_by_number=False)
    tokenizer = AlbertTokenizer(str(model))
    assert any(len(parts) > 2 for parts in tokenizer.digit_comma_splits.values())
    return tokenizer


def check(tokenizer, aligning, texts):
    aligned = aligning.align(tf.constant(texts, tf.string))
    expected = Aligner(tokenizer).read(texts)
    assert aligned.pieces.to_list() == [paragraph.pieces for paragraph in expected]
    splits = aligned.pieces.row_splits.numpy()
    visible = 0
    for row, (text, paragraph) in enumerate(zip(texts, expected)):
        pieces = slice(splits[row], splits[row + 1])
        num_bytes = np.cumsum([0, *(len(c.encode()) for c in text)])
        num_visible = visible + np.cumsum([0, *(not c.isspace() for c in text)])
        visible = num_visible[-1]
        starts, limits = paragraph.starts, paragraph.ends + 1
        np.testing.assert_array_equal(aligned.starts[pieces], num_bytes[starts], repr(text))
        np.testing.assert_array_equal(aligned.limits[pieces], num_bytes[limits], repr(text))
        np.testing.assert_array_equal(aligned.visible_before[pieces], num_visible[starts])
        np.testing.assert_array_equal(aligned.visible_through[pieces], num_visible[limits])


def test_any_text_is_aligned_as_in_python(tokenizer):
    aligning = AligningTokenizer(tokenizer)
    texts = st.text(st.sampled_from(ODD + "the quick fox"), max_size=40)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(texts, max_size=3))
    @example([])
    @example(["", " ", "\u0301"])
    @example(["2010, 19, 1,9 3, fox 11,", "dog 2010,"])
    @example(["the 2010, fox 19,", "\u0301a\u0301\u0301 \u0301b\u0301 ", "x" * 300, ""])
    @example(["fox\ufeff dog", "\x01dog", "fox \x01dog", "😀漢\u0301é😀"])
    @example(["the\U0010ffff fox \U0001fffe", "\U0010ffff\ufffe\ufffd dog \ufdd0\U0010ffffa"])
    def check_batch(texts):
        check(tokenizer, aligning, texts)

    check_batch()


def test_white_space_is_pythons():
    every = [chr(code) for code in range(0x11_0000) if not 0xD800 <= code < 0xE000]
    found = tf.strings.regex_full_match(every, WHITE_SPACE).numpy()
    assert {c for c, matches in zip(every, found) if matches} == set(filter(str.isspace, every))


@pytest.mark.shared
def test_real_contexts_are_aligned_as_in_python(shared):
    tokenizer = AlbertTokenizer(str(shared / "data/albert_spiece_30k/30k-clean.model"))
    articles = json.loads((shared / "data/squad/v1.1/dev-v1.1.json").read_text())["data"]
    texts = [p["context"] for article in articles[::4] for p in article["paragraphs"][::3]]
    for path in sorted((shared / "data/multilingual").glob("*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        texts += [line for line in lines if line.strip()][:40]
    assert len(texts) > 400
    aligning = AligningTokenizer(tokenizer)
    for begin in range(0, len(texts), 100):
        check(tokenizer, aligning, texts[begin : begin + 100])
