"""tokenizer.json gives our ids for every kind of vocabulary: `make test-extras`."""

import json
import random
import re
import unicodedata

import numpy as np
import pytest
import sentencepiece

from albert_tf.checkpoints import huggingface
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text import tokenizer_json
from albert_tf.text.model_normalizer import normalizer, with_normalizer
from albert_tf.text.settings import TextSettings
from albert_tf.text.tokenization import AlbertTokenizer
from albert_tf.text.wordpiece import WordPieceVocabulary
from tests import vocabularies

SYMBOLS = ["(", ")", '"', "-", ".", "–", "£", "€"]
OWN_SYMBOLS = [
    *SYMBOLS,
    "<e1>",
    "</e1>",
    "…",
    "а́",
]  # the last two are changed by SentencePiece's map
CASED = {"do_lower_case": False}
# Name of each vocabulary: its settings, options of SentencePiece.
VOCABULARIES = {
    "unigram": ({}, {}),
    "bpe": ({}, {"model_type": "bpe"}),
    "char": ({}, {"model_type": "char"}),
    "bytes": ({}, {"byte_fallback": True}),
    "bpe bytes": ({}, {"byte_fallback": True, "model_type": "bpe"}),
    "cased": (CASED, {}),
    "accents": ({"keep_accents": True}, {"character_coverage": 0.999}),
    "cased accents bpe": ({"keep_accents": True, **CASED}, {"model_type": "bpe"}),
    "symbols": ({"keep_accents": True}, {"user_defined_symbols": OWN_SYMBOLS}),
    "symbols bpe": ({}, {"user_defined_symbols": OWN_SYMBOLS, "model_type": "bpe"}),
    "symbols char": ({}, {"user_defined_symbols": OWN_SYMBOLS, "model_type": "char"}),
    "no prefix": ({}, {"add_dummy_prefix": False}),
    "identity": ({}, {"normalization_rule_name": "identity"}),
    "in model": ({}, {}),
    "in model, accents bpe": ({"keep_accents": True}, {"model_type": "bpe"}),
    "in model, cased": (CASED, {"byte_fallback": True}),
    "published": ({}, None),
    "published, latex quotes": ({"latex_quotes": True}, None),
    "wordpiece": ({"do_lower_case": True, "keep_accents": False}, None),
    "wordpiece accents": ({"do_lower_case": True, "keep_accents": True}, None),
    "wordpiece cased": (CASED, None),
}


def read(path):
    return path.read_bytes().decode("utf-8", "replace").splitlines()


@pytest.fixture(scope="module")
def novels(shared):
    paths = sorted((shared / "data/pretrain_eltec_eng").glob("*.txt"))
    return [line for path in paths for line in read(path) if line.strip()][:4000:2]


@pytest.fixture(scope="module")
def texts(shared, novels, nasty):
    """2,000 lines of novels, 500 of each other language, and awkward ones."""
    others = [read(p)[:500] for p in sorted((shared / "data/multilingual").glob("*_*.txt"))]
    strange = [read(path) for path in sorted(nasty.glob("*.[tj]s*")) if path.is_file()]
    strange += [read(path) for path in sorted(nasty.glob("*.txt")) if path.is_file()]
    assert len(novels) == 2000 and len(others) == 8 and len(strange) > 30
    return [*novels, *(line for lines in (*others, *strange) for line in lines)]


def with_symbols(novels, symbols):
    """Returns 200 lines in which each symbol is inside of, before, behind and between words."""
    rng = random.Random(3)
    places = ("{0}{2}{1}", "{2}{0}{1}", "{0}{1}{2}", "{0}{1} {2} x", "{2}{2}{0}{2}{1}")
    words = [word for line in novels[:99] for word in line.split()]
    lines = []
    for number in range(200):
        before, word, after = (rng.choices(words, k=rng.randint(1, 4)) for _ in range(3))
        symbol, place = symbols[number % len(symbols)], places[number // len(symbols) % len(places)]
        half = len(word[0]) // 2
        changed = place.format(word[0][:half], word[0][half:], symbol)
        lines.append(" ".join([*before, changed, *after]))
    return lines


@pytest.fixture(scope="module")
def open_tokenizer(shared, texts, novels, tmp_path_factory):
    def make(name):
        settings, options = VOCABULARIES[name]
        path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
        if name.startswith("published"):
            path = shared / "data/albert_spiece_30k/30k-clean.model"
        elif name.startswith("wordpiece"):
            path.write_text("\n".join(word_pieces(texts)) + "\n", encoding="utf-8")
        else:
            options = {"user_defined_symbols": SYMBOLS, **options}
            options = {"vocab_size": 5000, "character_coverage": 0.995, **options}
            options |= {"pad_piece": "<pad>", "unk_piece": "<unk>"}
            path = vocabularies.train(
                path.with_suffix(""),
                [line for line in texts[::2] if len(line) < 2000],
                text=TextSettings(**settings),
                **options,
            )
        if name.startswith("in model"):
            path.write_bytes(
                with_normalizer(path.read_bytes(), normalizer(TextSettings(**settings)))
            )
        return AlbertTokenizer(str(path), **settings)

    return make


def word_pieces(texts):
    """Returns a WordPiece vocabulary of the characters and the first halves of words."""
    text = unicodedata.normalize("NFC", " ".join(texts))
    words = sorted({*re.findall(r"\w+", text + text.lower())})
    halves = {word[: len(word) // 2 + 1] for word in words[::20] if len(word) < 50}
    characters = {*unicodedata.normalize("NFD", text + text.lower()), *text} - {*" \ufffd"}
    known = {c for c in characters if c.isprintable() and not c.isspace()}
    return [
        *WordPieceVocabulary.special,
        *sorted(halves | known),
        *(f"##{c}" for c in sorted(known)),
    ]


def why(tokenizer, text, ours, theirs):
    """Returns why the library cannot give our ids for a text; None if it should."""
    if any(piece in text for piece in tokenizer.vocabulary.special):
        return "a special piece is written in the text"
    if tokenizer.is_wordpiece:
        return None
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.vocabulary.model_bytes)
    scores = [sum(map(processor.get_score, ids)) for ids in (ours, theirs)]
    if len(ours) == len(theirs) and np.isclose(*scores, rtol=1e-6):
        return "two segmentations have the same score in float32"
    whole = processor.encode(tokenizer.preprocess(text))
    if not tokenizer.vocabulary.digit_comma_splits.keys().isdisjoint(whole):
        return "a piece that ends in a digit and a comma is split after segmentation"
    return None


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.extras("transformers")
@pytest.mark.parametrize("name", VOCABULARIES)
def test_auto_tokenizer_gives_our_ids(name, open_tokenizer, texts, novels, tmp_path):
    import transformers

    tokenizer = open_tokenizer(name)
    huggingface.write_tokenizer(str(tmp_path), tokenizer, max_length=512)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert AlbertTokenizer.load(str(tmp_path)).settings == tokenizer.settings
    assert theirs.convert_ids_to_tokens(range(tokenizer.vocab_size)) == tokenizer.pieces
    lines = [*texts, *with_symbols(novels, OWN_SYMBOLS)]
    found = theirs(lines, add_special_tokens=False)["input_ids"]
    differ = [
        (why(tokenizer, *each), *each)
        for each in zip(lines, tokenizer.encode_batch(lines), found)
        if each[1] != each[2]
    ]
    print(name, len(lines), [reason for reason, *_ in differ])
    unexplained = [(line[:99], ours, ids) for reason, line, ours, ids in differ if not reason]
    assert not unexplained and len(differ) < 0.01 * len(lines), unexplained[:3]

    # Pairs, as the models read them.
    short = [line for line in novels if len(line) < 200]
    pairs = short[:50], short[50:100]
    ours = tokenizer(*pairs, max_length=512)
    theirs = theirs(*pairs, padding=True, pad_to_multiple_of=8, return_tensors="np")
    names = {"input_ids": "word_ids", "attention_mask": "mask", "token_type_ids": "type_ids"}
    assert theirs.keys() == names.keys()
    for key, our_key in names.items():
        np.testing.assert_array_equal(theirs[key], ours[f"input_{our_key}"])


NUMBERS = [f"in {year}, {year} of {year}," for year in range(1900, 2000)]


def test_what_the_file_cannot_express_is_named(tmp_path, capsys):
    options = {"pad_piece": "<pad>", "unk_piece": "<unk>", "vocab_size": 60}
    path = vocabularies.train(tmp_path / "refused", NUMBERS, **options, model_type="word")
    with pytest.raises(UserError, match="model of words cannot be written as tokenizer"):
        tokenizer_json.content(AlbertTokenizer(str(path)).vocabulary)
    path = vocabularies.train(tmp_path / "numbers", NUMBERS, **options, model_type="bpe")
    vocabulary = AlbertTokenizer(str(path)).vocabulary
    tokenizer_json.write(str(tmp_path / "tokenizer.json"), vocabulary)
    number = len(vocabulary.digit_comma_splits)
    assert f"tokenizer.json: {number} pieces end in a digit and a comma" in capsys.readouterr().out
    written = files.read_json(str(tmp_path / "tokenizer.json"))
    merges = {"".join(pair) for pair in written["model"]["merges"]}
    assert number and not any(vocabulary.pieces[i] in merges for i in vocabulary.digit_comma_splits)
