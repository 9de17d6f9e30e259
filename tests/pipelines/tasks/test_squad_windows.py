import collections
import copy
import functools
import itertools
import re
import unicodedata

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from albert_tf.models import _may_answer
from albert_tf.text.model_normalizer import normalizer, with_normalizer
from albert_tf.text.sentence_pieces import SentencePieceVocabulary
from albert_tf.text.settings import TextSettings
from albert_tf.text.tokenization import AlbertTokenizer
from albert_tf.text.windows import cut
from pipelines.tasks.reading.squad_files import read_questions
from pipelines.tasks.reading.squad_windows import read_paragraphs
from pipelines.tasks.running.batches import make_batch
from pipelines.tasks.squad import SquadTask
from tests import sentences
from tests.conftest import make_text
from tests.pipelines.test_train_vocab import rules_for
from tests.vocabularies import train


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory):
    """A vocabulary that spells unknown characters in bytes."""
    lines = make_text(60).splitlines()
    model = train(tmp_path_factory.mktemp("bytes"), lines, 467, byte_fallback=True)
    return AlbertTokenizer(str(model))


@pytest.fixture(scope="module")
def accents_tokenizer(tmp_path_factory):
    """A vocabulary that keeps accents, and reads `` as "."""
    directory, lines = tmp_path_factory.mktemp("accents"), ['the "quick" fóx', *sentences.lines()]
    model = train(
        directory, lines * 3, 900, text=TextSettings(keep_accents=True, latex_quotes=True)
    )
    return AlbertTokenizer(str(model))


@pytest.fixture(scope="module")
def self_preparing_tokenizer(accents_tokenizer):
    """A model that lower-cases and removes accents by its own rules."""
    tokenizer, text = copy.copy(accents_tokenizer), TextSettings()
    with rules_for(f"{ODD}{sentences.TEXT}"):
        table = normalizer(text)
    content = with_normalizer(tokenizer.vocabulary.model_bytes, table)
    tokenizer.vocabulary = SentencePieceVocabulary("", content, text)
    return tokenizer


def texts_of_pieces(tokenizer, text):
    [paragraph] = read_paragraphs([text], tokenizer)
    places = zip(paragraph.pieces, paragraph.starts, paragraph.ends)
    return [(tokenizer.id_to_piece(piece), text[a : b + 1]) for piece, a, b in places]


def test_pieces_lie_where_they_come_from(tokenizer, byte_tokenizer):
    text = " \n The  QUICK\tbrown fóx (dog) "
    pairs = texts_of_pieces(tokenizer, text)
    assert "".join(part for _, part in pairs) == "The  QUICK\tbrown fóx (dog)"
    for piece, part in pairs:
        assert tokenizer.preprocess(part) == piece.replace("▁", " ").strip()
    for text, unknown in (("fox😀漢😀fox", "😀漢😀"), ("fox 日本 fox", "日本"), ("fox\0dog", "\0")):
        pairs = texts_of_pieces(tokenizer, text)
        assert [part for piece, part in pairs if piece == "<unk>"] == [unknown]
        assert pairs[-1][1].endswith(text[-1])
    # Dropped marks stay with the piece before.
    [paragraph] = read_paragraphs(["fox\u0302\u0303 dog\u0301"], tokenizer)
    assert {4, 9} <= set(paragraph.ends.tolist()) and 5 in paragraph.starts
    # Pieces and bytes of one character share it.
    pairs = texts_of_pieces(tokenizer, "fox \ufdfa dog")
    assert len([part for _, part in pairs if part == "\ufdfa"]) > 1
    pairs = texts_of_pieces(byte_tokenizer, "fox é😀漢 dog")
    expected = [(f"<0x{byte:02X}>", char) for char in "😀漢" for byte in char.encode()]
    assert [pair for pair in pairs if pair[0].startswith("<0x")] == expected


ODD = " \t\n\0\x1c\x85\xa0\u2028\u200b\ufeff\xad½ﬁ\ufdfa¨İΣẞ"
ODD += "``''é한\u1100\u1161e\u0301\u0345\u0b4d😀漢[]<▁.,19"


@pytest.mark.parametrize(
    "vocabulary",
    [
        "tokenizer",
        "byte_tokenizer",
        pytest.param("accents_tokenizer", marks=pytest.mark.slow),
        pytest.param("self_preparing_tokenizer", marks=pytest.mark.slow),
    ],
)
def test_any_text_is_covered_by_its_pieces(request, vocabulary):
    tokenizer = request.getfixturevalue(vocabulary)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.vocabulary.model_bytes)

    characters = st.sampled_from(ODD + "the quick fox") | st.characters(codec="utf-8")

    # Places are counted through all texts, and many of them cost as much as one.
    @settings(max_examples=6, deadline=None)
    @given(st.lists(st.text(characters, max_size=40), min_size=10, max_size=20))
    @example(["\u0301", "a\u0301\u0301 \u0301b", "À\u1baa", "\ufb01 \xbd fox\ufdfa ``e\u0301 x"])
    def check(texts):
        for text, paragraph in zip(texts, read_paragraphs(texts, tokenizer), strict=True):
            check_one(text, paragraph)

    def check_one(text, paragraph):
        pieces, starts, ends = paragraph.pieces.tolist(), paragraph.starts, paragraph.ends
        assert len(pieces) == len(starts) == len(ends)
        assert pieces == tokenizer.encode(text)
        if not pieces:
            return
        assert starts[0] >= 0 and ends[-1] < len(text)
        assert (starts <= ends).all()
        assert (np.diff(starts) >= 0).all() and (np.diff(ends) >= 0).all()
        for end, start in zip(ends, starts[1:]):
            assert not any(c.isalnum() for c in text[end + 1 : start])
        for piece_id, start, end in zip(pieces, starts, ends):
            piece = tokenizer.id_to_piece(piece_id).replace("▁", "")
            if not processor.is_unknown(piece_id) and not processor.is_byte(piece_id):
                # A piece that ends in the middle of ﬁ may exclude it, see InGraphTokenizer.align.
                splits = len(processor.normalize(text[end + 1 : end + 2]).lstrip("▁")) > 1
                limit = end + 1 + (tokenizer.vocabulary.prepares.keep_accents and splits)
                part = processor.normalize(tokenizer.preprocess(text[start:limit]))
                # Another mark may part À into two pieces, which share its place.
                piece, part = (unicodedata.normalize("NFD", form) for form in (piece, part))
                # Characters may join beyond one of them (Korean): only the rest is as it is.
                assert piece in part.replace("▁", "") or re.search("[\u1100-\u11ff가-힣]", text)

    check()


def windows_of(num_pieces, room, doc_stride):
    """First and last piece of each window of a text, and in which it has its maximum context."""
    before = 3  # pieces of a text before it
    texts = tf.RaggedTensor.from_row_lengths(tf.range(before + num_pieces), [before, num_pieces])
    windows = cut(texts, tf.constant([before, room], tf.int64), doc_stride)
    first, pieces = windows.first.numpy() - before, windows.pieces.row_lengths().numpy()
    best = np.split(windows.is_max_context.numpy(), np.cumsum(pieces)[:-1])
    return list(zip(first.tolist(), (first + pieces).tolist(), best))[1:]


@pytest.mark.parametrize(
    ("num_pieces", "room", "doc_stride"),
    [(0, 7, 3), (7, 7, 3), (8, 7, 3), (61, 13, 5), (61, 13, 50), (5, 1, 1),
     (61, 13, 4),  # pieces in the middle of two windows
     (265, 260, 128)],  # the last window is shorter by more than 100
)  # fmt: skip
def test_windows_by_definition(num_pieces, room, doc_stride):
    windows = windows_of(num_pieces, room, doc_stride)
    assert windows[0][0] == 0 and windows[-1][1] == num_pieces
    for (first, last, _), (following, _, _) in itertools.pairwise(windows):
        assert following - first == min(room, doc_stride) and last - first == room
    for piece in range(num_pieces):
        contexts = {
            w: min(piece - first, last - 1 - piece) + 0.01 * (last - first)
            for w, (first, last, _) in enumerate(windows)
            if first <= piece < last
        }
        holders = [w for w in contexts if windows[w][2][piece - windows[w][0]]]
        assert holders == [max(contexts, key=contexts.get)]


# Windows where ours differ: pieces where segmentations of equal score exist (see
# AlbertTokenizer._may_tie), starts that take in less of the white space before a word, ends that
# take in the accents which were dropped from their letter.
GOLDEN = {
    "squad11_dev_eval_128_32_24": (327, {"starts": 2}),
    "squad11_train_128_32_24": (268, {"starts": 1}),
    "squad11_train_384_128_64": (201, {"starts": 3, "ends": 1}),
    "squad20_dev_eval_384_128_64": (203, {"pieces": 1}),
}


read_once = functools.cache(read_questions)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * ("_384_" in name)) for name in GOLDEN],
)
def test_features_are_the_references(shared, golden, spiece_30k, name):
    tokenizer, (options, *features) = spiece_30k, golden(name)
    of_id = {q.id: q for q in read_once(str(shared / "data" / options["source"]))}
    questions = [of_id[question_id] for question_id in options["qids"]]
    training = options["is_training"]
    task = SquadTask({}, **{name: options[name] for name in ("doc_stride", "max_query_length")})
    sequences, windows = task.encode(questions, tokenizer, options["max_seq_length"], training)
    batch = make_batch(sequences, np.arange(len(sequences)), options["max_seq_length"])
    batch = {name: values.numpy() for name, values in batch.items()}
    may_answer = _may_answer({k: v for k, v in batch.items() if k.startswith("input")}).numpy()

    expected_windows, expected_differences = GOLDEN[name]
    assert len(windows) == len(features) == expected_windows
    differences = collections.Counter()
    for i, (window, feature) in enumerate(zip(windows, features)):
        context, paragraph = questions[window.example].context, window.paragraph
        same_pieces = batch["input_word_ids"][i] == feature["input_ids"]
        if not same_pieces.all():
            differences["pieces"] += 1
            assert (~same_pieces).sum() == 2
            both = (batch["input_word_ids"][i], feature["input_ids"])
            pieces, theirs = ("".join(map(tokenizer.id_to_piece, ids)) for ids in both)
            assert pieces == theirs
        assert batch["input_mask"][i].tolist() == feature["input_mask"]
        assert batch["input_type_ids"][i].tolist() == feature["segment_ids"]
        assert (~may_answer[i]).astype(int).tolist() == feature["p_mask"]
        is_max_context = {
            str(window.offset + k): bool(best) for k, best in enumerate(window.is_max_context)
        }
        assert is_max_context == feature["token_is_max_context"]

        text = same_pieces[window.offset :][: window.last - window.first]
        for kind, ours, theirs in (
            ("starts", paragraph.starts, feature["tok_start_to_orig_index"]),
            ("ends", paragraph.ends, feature["tok_end_to_orig_index"]),
        ):
            ours, theirs = ours[window.first : window.last], np.array(theirs)
            where = np.flatnonzero((ours != theirs) & text)
            differences[kind] += bool(len(where))
            for k in where:
                if kind == "starts":
                    assert ours[k] > theirs[k] and not context[theirs[k] : ours[k]].strip()
                else:
                    dropped = context[theirs[k] + 1 : ours[k] + 1]
                    assert dropped and all(map(unicodedata.combining, dropped))
        if training:
            for label in ("start_position", "end_position"):
                assert sequences.labels[f"{label}s"][i] == feature[label]
            assert sequences.labels["is_impossible"][i] == feature["is_impossible"]
    assert +differences == expected_differences
