import re
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from albert_tf.text.words import split_words, split_words_in_graph

# TensorFlow 2.15 takes them for no text.
NONCHARACTERS = re.compile(
    "[\ufdd0-\ufdef" + "".join(chr(p << 16 | e) for p in range(17) for e in (0xFFFE, 0xFFFF)) + "]"
)


def nasty_texts(nasty):
    for path in filter(Path.is_file, sorted(nasty.glob("*.txt"))):
        yield from path.read_bytes()[:4000].decode("utf-8", "replace").splitlines()[:50]


def words_of(text):
    return [text[start:limit] for start, limit in split_words(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's 3.5 北京", "It ' s 3 . 5 北 京"),
        (" \tone\u3000two\u00a0", "one two"),
        ("Müller Mu\u0308ller", "Müller Mu\u0308ller"),
        ("a-b c_d <x@y.z>", "a - b c _ d < x @ y . z >"),
        ("เก a เ ำ ພາສາ", "เก a เ ำ ພາ ສາ"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("コーヒーa ー 서울", "コー ヒー a ー 서울"),
        ("ต่างๆ ที่๑๒๓ab ໑໒", "ต่า งๆ ที่ ๑๒๓ab ໑໒"),
        ("", ""),
        ("\u0301a\u0301", "\u0301a\u0301"),
    ],
)
def test_what_a_word_is(text, expected):
    assert words_of(text) == expected.split(" ") * bool(expected)


def test_graph_on_awkward_texts(nasty):
    texts = ["", " ", "a", "a b", "\0 a\0b", "x" * 500, "¨ a_b", "\u0301"]
    texts += ["\U0001f469\u200d\U0001f467!", *nasty_texts(nasty)]
    words, starts, limits = split_words_in_graph(tf.constant(texts, tf.string))
    words = words.to_list()
    assert starts.dtype == limits.dtype == tf.int32
    spans = tf.stack([starts, limits], axis=2).to_list()
    for text, of_text, places in zip(texts, words, spans):
        if sys.version_info < (3, 12):
            text = NONCHARACTERS.sub("\ufffd", text)
        assert [word.decode() for word in of_text] == words_of(text)
        assert places == split_words(text).tolist()
    assert len(words) == len(texts)
    assert split_words_in_graph(tf.constant([], tf.string))[0].to_list() == []
