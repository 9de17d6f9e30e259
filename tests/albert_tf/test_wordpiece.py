import random

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.text.settings import TextSettings
from albert_tf.text.tokenization import AlbertTokenizer
from albert_tf.text.wordpiece import WordPieceVocabulary, prepared
from tests.albert_tf.test_words import NONCHARACTERS, nasty_texts

SPECIAL = WordPieceVocabulary.special
HEAD = "\n".join(SPECIAL) + "\n"
TEXTS = [
    "",
    " ",
    "北京是中国的首都。",
    "我爱TensorFlow2.0和Python！",
    "The QUICK brown fox's unaffable 3.14% émigré, naïve Ünïcode",
    "Straße ΣΊΣΥΦΟΣ İstanbul ﬁn ½ Å",
    "tab\tnew\nline\r\u3000ideographic\u00a0space\u200bzero\u00adsoft\ufeffbom",
    "control\x00\x01\x0b\x0c\x1c\x85\u2028\u2029\ufffd",
    "[MASK] [CLS]x [UNK] ##ing",
    "カタカナひらがな漢字 서울 한국어 ภาษาไทย العربية हिन्दी",
    "e\u0301a\u0300 Å\u0323 \u0301 x\u0301\u0327",
    "🙂👩\u200d👩\u200d👧 𠀀𪚥丽 ﾊﾛｰ １２３ＡＢＣ",
    "a" * 100 + " " + "a" * 101 + " " + "b" * 250 + "。" + "ä" * 101,
    "don't-stop_now (really?) <x@y.z> $5 `q` ^~|+=",
    "…“quotes”—dash–‘x’、，；「」 IͅĲǅ ÆŒ ŉ ß ẞ ς Σ ΑΣ",
]


def vocabulary():
    """Pieces of the texts, some of them ending inside of words, and all of their characters."""
    rng = random.Random(5)
    pieces = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    texts = "\n".join(TEXTS)
    words = {
        word
        for lower in (True, False)
        for word in texts.translate(prepared(TextSettings(lower))).split()
    }
    for word in sorted(word for word in words if len(word) <= 40):
        cut = rng.randint(1, len(word))
        pieces += [word[:cut], f"##{word[cut:]}" if cut < len(word) else word]
        pieces += [c for c in word if rng.random() < 0.8]
        pieces += [f"##{c}" for c in word if rng.random() < 0.5]
    pieces += ["a", "##a", "b", "##b", "##aa"]
    return list(dict.fromkeys(pieces))


@pytest.fixture(scope="module")
def vocabulary_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("wordpiece") / "vocab.txt"
    path.write_bytes(("\n".join(vocabulary()) + "\n").encode())
    return str(path)


CASED = pytest.param(False, marks=pytest.mark.slow)  # makes a second table of characters


@pytest.fixture(scope="module", params=[True, CASED], ids=["lower", "cased"])
def tokenizer(request, vocabulary_file):
    return AlbertTokenizer(vocabulary_file, request.param, keep_accents=False)


def random_texts(number):
    rng = random.Random(3)
    blocks = [(0x20, 0x250), (0x370, 0x530), (0x2000, 0x2070), (0x3000, 0x3100)]
    blocks += [(0x4E00, 0x4E80), (0xAC00, 0xAC80), (0x300, 0x370)]
    codes = [code for block in blocks for code in range(*block)] + [0x20] * 150
    return ["".join(map(chr, rng.choices(codes, k=rng.randint(0, 40)))) for _ in range(number)]


def test_a_worked_example(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, *"un ##aff ##able 北 京 !".split()]), encoding="utf-8")
    tokenizer = AlbertTokenizer(str(path))
    assert tokenizer.is_wordpiece
    assert tokenizer.encode("UNAFFABLE北京! xyz") == [5, 6, 7, 8, 9, 10, 1]
    assert tokenizer.decode([5, 6, 7, 8, 9]) == "unaffable 北 京"
    assert tokenizer.word_starts().tolist() == [True] * 6 + [False, False, True, True, True]
    assert tokenizer.replacement_ids().tolist() == [5, 6, 7, 8, 9, 10]
    tokenizer.save(str(tmp_path / "."))
    again = AlbertTokenizer.load(str(tmp_path))
    assert again.sha256 == tokenizer.sha256 and again.settings == tokenizer.settings


def test_the_graph_has_the_same_ids(tokenizer, nasty):
    texts = [*TEXTS, *random_texts(100), *nasty_texts(nasty)]
    texts = [text for text in texts if not NONCHARACTERS.search(text)]
    graph = tokenizer.in_graph()
    expected = tokenizer.encode_batch(texts)
    assert graph(tf.constant(texts)).to_list() == expected
    assert len({i for row in expected for i in row}) > 150
    assert graph(tf.constant([], tf.string)).to_list() == []
    prepared = graph.preprocess(tf.constant(texts)).numpy()
    for text, bytes_of_graph in zip(texts, prepared):
        assert bytes_of_graph.decode().split() == tokenizer.preprocess(text).split()


def test_places_in_the_text(tokenizer):
    texts = ["\u200b\u200bx", "a\U0010ffff b\ufdd0 \U0001fffe", *TEXTS, "x\u200b", "\u200b"]
    texts += random_texts(60)
    aligned = tokenizer.in_graph().align(tf.constant(texts))
    assert aligned.pieces.to_list() == tokenizer.encode_batch(texts)
    bounds = aligned.pieces.row_limits()[:-1].numpy()
    starts, limits = (np.split(x.numpy(), bounds) for x in (aligned.starts, aligned.limits))
    for text, ids, first, last in zip(texts, aligned.pieces.to_list(), starts, limits):
        assert np.all(first < last) and np.all(np.diff(first) >= 0)
        assert not ids or last[-1] <= len(text.encode())
        for i, start, limit in zip(ids, first, last):
            part = text.encode()[start:limit].decode()
            if i != tokenizer.unk_id:
                piece = tokenizer.id_to_piece(i)
                piece = piece.removeprefix("##") if piece not in ("##", "#") else piece
                assert piece in "".join(tokenizer.preprocess(part).split()), (text, part)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\n", r"lacks \[CLS\], \[SEP\], \[MASK\]"),
        (b"\xff", "is not UTF-8"),
        (f"{HEAD}a\na\n".encode(), r"txt:7: 'a' again"),
        (f"{HEAD}\na\n".encode(), r"txt:6: an empty piece"),
        # tensorflow-text takes no longer ones into a graph.
        (f"{HEAD}##{'x' * 257}".encode(), r"txt:6: a piece of 257 bytes, expected at most 256"),
    ],
)
def test_no_vocabulary(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        AlbertTokenizer(str(path))
