import contextlib
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_tf.text.sentence_pieces import SentencePieceVocabulary
from albert_tf.text.settings import TextSettings
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.tasks.classification import ClassificationTask, Example
from tests import sentences, vocabularies
from tests.albert_tf.test_model_inputs import NAMES
from tests.builders import raises_one_line
from tests.jobs import run_code

# Characters, by their first three hexadecimal digits of five, added to Unicode after version 12.
LATER_BLOCKS = "008 018 02c 0a7 0ab 0fb 105 107 110 113 119 161 16d 1af 1cc 1cf 1df 1fb".split()

# What Python, ICU and RE2 may see differently: spaces, case, marks, line ends, non-characters.
ODD = (
    "\0\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2007\u2028\u2029\u202f\u3000\u180e\u200b\ufeff\xad"
)
ODD += "aA,1 \u03a3\u03c3\u0130\u0131\u1e9e\u0345\u0301\u302e\u0e38\u0b4d\u0dca"
ODD += "\uac00\u1100\u0149\ufb03\uffff\U0010ffff"


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return AlbertTokenizer(str(tiny_vocabulary))


@pytest.fixture(scope="module")
def digits_tokenizer(tmp_path_factory):
    """A vocabulary with pieces that end in a digit and a comma."""
    lines = [f"in {year}, or {n}, and x{n}, so" for year in range(1990, 2030) for n in "123"]
    directory = tmp_path_factory.mktemp("digits")
    options = {"model_type": "bpe", "byte_fallback": True}
    return AlbertTokenizer(str(vocabularies.train(directory / "digits", lines, 401, **options)))


@pytest.fixture(scope="module")
def sentences_tokenizer(tmp_path_factory):
    return AlbertTokenizer(str(sentences.train_vocabulary(tmp_path_factory.mktemp("sentences"))))


def assert_graph_agrees(tokenizer, texts):
    found = tokenizer.in_graph()(tf.constant(texts)).to_list()
    assert len(found) == len(texts)
    for text, ours, theirs in zip(texts, tokenizer.encode_batch(texts), found):
        assert ours == theirs, text


def test_graph_takes_an_empty_batch_and_bytes_that_are_not_text(tokenizer):
    in_graph = tokenizer.in_graph()
    assert in_graph(tf.constant([], tf.string)).to_list() == tokenizer.encode_batch([]) == []
    broken, mended = tf.constant([b"caf\xe9 fox"]), "caf\ufffd fox"
    assert in_graph.preprocess(broken).numpy() == [mended.encode()]
    assert in_graph(broken).to_list() == [tokenizer.encode(mended)]


def with_settings(tokenizer, *values):
    """Returns a tokenizer's vocabulary with other TextSettings."""
    return SentencePieceVocabulary("", tokenizer.vocabulary.model_bytes, TextSettings(*values))


@pytest.mark.parametrize(
    ("vocabulary", "keep_accents"),
    [("tokenizer", False), ("digits_tokenizer", False), ("sentences_tokenizer", True)],
)
def test_graph_agrees_on_any_text(request, vocabulary, keep_accents):
    tokenizer = with_settings(request.getfixturevalue(vocabulary), True, keep_accents, keep_accents)
    in_graph = tokenizer.in_graph()

    text = st.text(st.sampled_from(list(ODD)) | st.characters(codec="utf-8"))

    # Unicode 12, see test_graph_prepares_every_character_as_python_does.
    @settings(max_examples=20, deadline=None)
    @given(st.lists(text, min_size=1, max_size=5))
    def agrees(texts):
        texts = ["".join(c for c in text if not is_later(c)) for text in texts]
        prepared = [text.decode() for text in in_graph.preprocess(tf.constant(texts)).numpy()]
        assert prepared == [tokenizer.preprocess(text) for text in texts]
        assert in_graph(tf.constant(texts)).to_list() == tokenizer.encode_batch(texts)

    agrees()


def lines_of_nasty_files(nasty):
    texts = []
    for path in filter(Path.is_file, sorted(nasty.glob("*.*"))):
        with contextlib.suppress(UnicodeDecodeError):
            lines = path.read_bytes().decode("utf-8").split("\n")
            texts.extend(line[:200_000] for line in lines)
    assert len(texts) > 5000
    return texts


@pytest.mark.parametrize("values", itertools.product([True, False], repeat=3))
def test_graph_agrees_with_every_setting(sentences_tokenizer, nasty, values):
    lines = [line for line in lines_of_nasty_files(nasty)[::20] if len(line) < 5_000]
    vocabulary = with_settings(sentences_tokenizer, *values)
    assert_graph_agrees(vocabulary, [*lines, *sentences.ugly(), ODD])


# Ideographs and Hangul begin at U+3400, forms that NFKD replaces at U+F900.
MOST_CODES = [*range(0x3400), *range(0xF900, 0x10000)]
ALL_CODES = [*range(0xD800), *range(0xE000, 0x110000)]


@pytest.mark.parametrize(
    ("form", "codes"),
    [
        pytest.param("A{0}\u03a3{0}{0}b", MOST_CODES, id="most"),
        pytest.param("A{0}\u03a3{0}{0}b", ALL_CODES, id="all in words", marks=pytest.mark.slow),
        pytest.param("{0}", ALL_CODES, id="all alone", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("keep_accents", [False, True])
def test_graph_prepares_every_character_as_python_does(tokenizer, form, codes, keep_accents):
    tokenizer = with_settings(tokenizer, True, keep_accents, keep_accents)
    texts = [form.format(chr(code)) for code in codes]
    prepared = tokenizer.in_graph().preprocess(tf.constant(texts)).numpy()
    expected = [tokenizer.preprocess(text).encode() for text in texts]
    different = [chr(code) for code, a, b in zip(codes, expected, prepared) if a != b]
    assert all(map(is_later, different))
    assert len(different) < 300


def is_later(character):
    return f"{ord(character):05x}"[:3] in LATER_BLOCKS


def test_long_texts_are_left_to_the_graph(tokenizer, monkeypatch):
    text = "the quick brown fox " * 200
    [in_graph] = tokenizer.in_graph()(tf.constant([text])).to_list()
    monkeypatch.setattr(tokenizer.vocabulary._processor, "encode", lambda texts, **_: [[7] * 513])
    assert tokenizer.encode(text) == in_graph


@pytest.mark.slow
def test_saved_model_needs_no_file(tmp_path, digits_tokenizer):
    """tests/export/ has SavedModels with other vocabularies."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "a", "##b"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    word_pieces = AlbertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=False)
    (tmp_path / "vocab.txt").unlink()
    texts = [ODD, "天地ab。", "1,000, 2,5, a9, 3.0, £5, x1,y2,", "eee eeeee ......", "e" * 300]
    texts += ["[CLS] [MASK] <pad> <unk> \u2581word", *sentences.lines()]
    for name, one in (("digits", digits_tokenizer), ("word pieces", word_pieces)):
        module = tf.Module()
        module.tokenizer = one.in_graph()
        signature = [tf.TensorSpec([None], tf.string)]
        module.tokenize = tf.function(module.tokenizer, signature, autograph=False)
        tf.saved_model.save(module, str(tmp_path / name))
        loaded = tf.saved_model.load(str(tmp_path / name))
        assert loaded.tokenize(tf.constant(texts)).to_list() == one.encode_batch(texts)


def test_digit_comma_pieces_are_split(digits_tokenizer):
    pieces = digits_tokenizer.pieces
    split = {pieces[i] for i in digits_tokenizer.vocabulary.digit_comma_splits}
    assert {"\u25812011,", "1,"} <= split
    found = [pieces[i] for i in digits_tokenizer.encode("in 2011, x1,")]
    assert found == ["\u2581in", "\u2581201", "1", ",", "\u2581x", "1", ","]


def test_word_starts_in_every_script(tmp_path):
    text = "дом домой 2024 한국어 cat's, ไทย 日本 かな บ้าน بيت بيتنا ... [MASK]"
    chosen = ["...", "омой", "24", "한국", "'s", "日本", "かな", "ไทย", "يت", "()", ",", "64)"]
    options = {"user_defined_symbols": chosen, "byte_fallback": True}
    model = vocabularies.train(tmp_path / "scripts", [text] * 3, 337, **options)
    tokenizer = AlbertTokenizer(str(model))
    pieces = tokenizer.pieces
    starts = dict(zip(pieces, tokenizer.word_starts().tolist()))
    begin = "[MASK] <pad> <unk> ... () , 日本 かな ไทย <0x41> <0xE3>".split()
    go_on = "омой 24 한국 's يت 64) <0x80> <0xBF>".split()
    assert [piece for piece in begin + go_on if starts[piece]] == begin
    assert all(start for piece, start in starts.items() if piece.startswith("\u2581"))
    replacements = {pieces[i] for i in tokenizer.replacement_ids()}
    specials = {*tokenizer.vocabulary.special}
    assert replacements == {p for p in starts if not p.startswith("<0x")} - specials


def test_files_that_are_no_model(tokenizer, tmp_path):
    (tmp_path / "x.vocab").write_text("<pad>\t0\n<unk>\t0\n")
    controls = ("[CLS]", "[SEP]")
    words = ["some words in here"] * 3
    model = vocabularies.train(tmp_path / "words", words, 23, control_pieces=controls)
    for path, message in (
        (tmp_path, "no vocabulary at"),
        (tmp_path / "x.vocab", "is not a SentencePiece model"),
        (model, r"lacks \[MASK\]"),
    ):
        with pytest.raises(ValueError, match=message):
            AlbertTokenizer(str(path))
    tokenizer.save(str(tmp_path))
    for content, message in (
        ('{"do_lower_case"', "damaged or not JSON"),
        ('{"remove_space": false}', "remove_space is false"),
        ('{"do_lower_case": false, "strip_accents": true}', "strip_accents is true, .* with false"),
        ('{"do_lower_case": 1}', "do_lower_case is 1, expected true or false"),
    ):
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(ValueError, match=rf"tokenizer_config.json: {message}"):
            AlbertTokenizer.load(str(tmp_path))


def test_a_seed_that_is_set_does_no_harm(tiny_vocabulary):
    code = """
import sys
import tensorflow as tf
from albert_tf.text.tokenization import AlbertTokenizer

tokenizer = AlbertTokenizer(sys.argv[1])
text = "eee eeeee " + "e" * 300  # Segmentations of equal score: asks the graph.
before, in_graph = tokenizer.encode(text), tokenizer.in_graph()
assert tokenizer.in_graph() is in_graph
tf.random.set_seed(7)
assert tokenizer.encode(text) == before
assert tokenizer.in_graph() is not in_graph
"""
    run_code(code, str(tiny_vocabulary))  # in a process of its own: see seeds_keep_tokenizers


@pytest.mark.shared
class TestReference:
    @pytest.fixture(scope="class")
    def golden(self, shared):
        path = shared / "data/golden_features/tokenizer_golden.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    @pytest.mark.parametrize("case", ["lower", "cased"])
    def test_ids_of_the_published_vocabulary(self, shared, golden, nasty, case):
        model = str(shared / "data/albert_spiece_30k/30k-clean.model")
        tokenizer = AlbertTokenizer(model, do_lower_case=case == "lower")
        for entry in golden:
            assert tokenizer.preprocess(entry["text"]) == entry[case]["preprocessed"]
            if entry["text"] == "a" * 500:
                # Many segmentations of equal score; the reference's depends on its release of
                # SentencePiece (see AlbertTokenizer._may_tie). As many pieces, in another order.
                assert sorted(tokenizer.encode(entry["text"])) == sorted(entry[case]["ids"])
                continue
            assert tokenizer.encode(entry["text"]) == entry[case]["ids"], entry["text"]
        texts = [entry["text"] for entry in golden]
        texts += ["eee", "eeeee", "!!!!!!!", "a eee", "0" * 26]  # segmentations of equal score
        texts += lines_of_nasty_files(nasty)[::5] if case == "lower" else []
        assert_graph_agrees(tokenizer, texts)

    def test_digit_comma_split_is_the_only_difference(self, shared):
        golden = shared / "golden/google_tf1"
        tokenizer = AlbertTokenizer(str(golden / "spm16k.model"))
        entries = json.loads((golden / "tokenization.json").read_text(encoding="utf-8"))
        split = stray = 0
        for entry in entries:
            ids = tokenizer.encode(entry["text"])
            if entry["upstream_ids"] == entry["spm_ids"]:
                assert ids == entry["spm_ids"], entry["text"]
                continue
            split += 1
            pieces = [tokenizer.id_to_piece(i) for i in ids]
            assert "".join(pieces) == "".join(entry["spm_pieces"])
            if ids != entry["upstream_ids"]:
                # Theirs differ by stray boundary marks alone, before the digits split off.
                assert len(pieces) == len(entry["upstream_pieces"])
                pairs = {(a, b) for a, b in zip(pieces, entry["upstream_pieces"]) if a != b}
                assert all(a.isdigit() and b == "\u2581" + a for a, b in pairs)
                stray += 1
        # Only where every such piece began with a boundary mark itself are we the same.
        assert (len(entries), split, stray) == (204, 21, 19)

    def test_word_starts_differ_only_in_digits_and_punctuation(self, shared):
        golden = shared / "golden/google_tf1"
        tokenizer = AlbertTokenizer(str(golden / "spm16k.model"))
        theirs = json.loads((golden / "start_piece_by_id.json").read_text())
        ours = tokenizer.word_starts()
        pieces = tokenizer.pieces
        only_theirs = [p for p, a, b in zip(pieces, ours, theirs) if b and not a]
        only_ours = [p for p, a, b in zip(pieces, ours, theirs) if a and not b]
        # Digits and what is joined to them go on with a word for us.
        assert len(only_theirs) == 720
        assert all(any(c.isdigit() for c in p) and p[0] != "\u2581" for p in only_theirs)
        # Control pieces and punctuation of several characters go on with a word for them.
        controls = ["[CLS]", "[SEP]", "[MASK]"]
        assert (only_ours[:3], len(only_ours)) == (controls, 62)
        assert not any(c.isalnum() for p in only_ours[3:] for c in p)


def test_a_batch_is_what_fine_tuning_makes_of_the_texts(tokenizer):
    texts = ["The brown fox", "a river " * 40, "", "seven"]
    seconds = ["some sea", "or the sea " * 30, "b", ""]
    for length in (3, 17, 40):
        for pairs in (None, seconds):
            batch = tokenizer(texts, pairs, max_length=length)
            both = zip(texts, pairs or [None] * len(texts))
            examples = [Example("0", *of_example, None) for of_example in both]
            task = ClassificationTask("own", {}, labels=["a", "b"])
            sequences, _ = task.encode(examples, tokenizer, length, False)
            ids, mask, types = (batch[name].numpy() for name in NAMES)
            assert ids[mask == 1].tolist() == sequences.pieces.tolist()
            assert mask.sum(axis=1).tolist() == np.diff(sequences.row_splits).tolist()
            firsts = (mask - types).sum(axis=1)
            assert firsts.tolist() == sequences.first_lengths.tolist()
            assert (ids[mask == 0] == tokenizer.pad_id).all() and ids.shape[1] <= length
    assert set(batch) == set(NAMES) and {value.dtype for value in batch.values()} == {tf.int32}
    assert tokenizer([])["input_word_ids"].shape[0] == 0


def test_lone_surrogates_are_replaced(tokenizer):
    texts, valid = ["fox \ud83d", "river"], ["fox \ufffd", "river"]
    assert tokenizer.encode_batch(texts) == tokenizer.encode_batch(valid)
    found, expected = (tokenizer(of, of)["input_word_ids"].numpy() for of in (texts, valid))
    np.testing.assert_array_equal(found, expected)


def test_a_batch_of_no_texts_is_refused(tokenizer):
    for arguments, message in (
        (("one text",), "a list of texts, got one string"),
        ((["a"], ["b", "c"]), "1 texts, but 2 text_pairs"),
        ((["a", 1],), r"texts\[1\]: expected a string, got int"),
        (([np.nan],), r"texts\[0\]: expected a string, got nan: .*series.fillna"),
        ((SimpleNamespace(columns=["a"]),), r"got SimpleNamespace: pass .* list\(table\['text'\]"),
        ((None,), "a list of texts, got NoneType"),
        ((tf.constant(["a"]),), r"a list of texts, got a tensor: .* give it to in_graph\(\)"),
        ((["a"], None, 2), "max_length=2: expected a whole number, 3 or more"),
    ):
        with raises_one_line(message):
            tokenizer(*arguments)
    assert len(tokenizer(iter("ab"), iter("cd"))["input_mask"]) == 2
