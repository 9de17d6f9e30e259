import contextlib
import functools
import os
import re
import unicodedata

import pytest
import sentencepiece

from albert_tf.checkpoints.pretrained import read_tokenizer
from albert_tf.text import model_normalizer
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data.corpus import TextFormat
from pipelines.data.vocabulary_report import lost_marks
from pipelines.finetune import initial_model
from pipelines.train_vocab import VocabularySettings, train_vocab
from tests import sentences
from tests.albert_tf.test_tokenization import lines_of_nasty_files
from tests.conftest import make_text
from tests.vocabularies import unrecorded


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(make_text(67, seed=3), encoding="utf-8")
    return path


def train(corpus, tmp_path, name="vocabulary", text_format=None, **changes):
    prefix = tmp_path / name
    settings = VocabularySettings(**{"vocab_size": 83, **changes})
    train_vocab([str(corpus)], str(prefix), settings, text_format or TextFormat())
    return prefix


def listing(prefix) -> list[str]:
    lines = prefix.with_suffix(".vocab").read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines]


def test_pieces_of_the_reference_come_first(corpus, tmp_path):
    for model_type in ("unigram", "bpe"):
        prefix = train(corpus, tmp_path, model_type, model_type=model_type)
        tokenizer = AlbertTokenizer(f"{prefix}.model")
        first = [tokenizer.id_to_piece(i) for i in range(14)]
        assert first == '<pad> <unk> [CLS] [SEP] [MASK] ( ) " - . – £ € ,'.split()
        assert tokenizer.vocab_size == len(listing(prefix)) == 83
        assert listing(prefix)[:14] == first
        assert tokenizer.unk_id not in tokenizer.encode("The Brown fox (seven)")
    assert set(listing(tmp_path / "unigram")) != set(listing(tmp_path / "bpe"))


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_no_piece_ends_in_a_digit_and_a_comma(tmp_path, model_type):
    """Other readers of the vocabulary would not split it again."""
    years = [f"in {year}, {year}, or {year}, it was {year % 7},000" for year in range(1900, 2000)]
    (tmp_path / "years.txt").write_text("\n".join(years))
    prefix = train(tmp_path / "years.txt", tmp_path, vocab_size=40, model_type=model_type)
    assert "▁1" in "".join(listing(prefix))
    assert not AlbertTokenizer(f"{prefix}.model").vocabulary.digit_comma_splits


def test_text_is_prepared_as_the_tokenizer_does(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("École  Über\u00a0ALLES\n\nÉté été ﬁn\n" * 30, encoding="utf-8")
    lower = train(path, tmp_path, "lower", vocab_size=29)
    cased = train(path, tmp_path, "cased", vocab_size=31, do_lower_case=False)
    assert AlbertTokenizer(f"{lower}.model").settings == (True, False, False)
    assert read_tokenizer("any", f"{cased}.model").settings.do_lower_case is False
    assert (
        initial_model(None, "albert_base", f"{cased}.model").tokenizer.settings.do_lower_case
        is False
    )
    for prefix, expected in [(lower, set()), (cased, set("EUALS"))]:
        letters = set("".join(listing(prefix)[14:]))
        assert {c for c in letters if c.isupper()} == expected
        assert not letters & set("ÉéÜüﬁ\u00a0")


@contextlib.contextmanager
def rules_for(text):
    """Makes normalizers of the rules for characters of this text only: all rules take 8 s."""
    known = {
        c for form in ("NFC", "NFD", "NFKC", "NFKD") for c in unicodedata.normalize(form, text)
    }
    decompile = sentencepiece.SentencePieceNormalizer.decompile

    def decompile_some(normalizer):
        return [rule for rule in decompile(normalizer) if known.issuperset(rule[0])]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_normalizer, "_is_assigned", known.__contains__)
        patch.setattr(sentencepiece.SentencePieceNormalizer, "decompile", decompile_some)
        yield


@pytest.mark.parametrize(
    ("keep_accents", "has_all_rules"),
    [
        (False, False),
        pytest.param(False, True, marks=pytest.mark.slow),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
)
def test_a_model_that_prepares_text_itself(nasty, tmp_path, keep_accents, has_all_rules):
    """SentencePiece alone gives our ids for raw text, and those of the usual vocabulary."""
    path = tmp_path / "corpus.txt"
    path.write_text(sentences.TEXT * 3, encoding="utf-8")
    lines = [line for line in lines_of_nasty_files(nasty)[::5] if len(line) < 5000]
    lines += sentences.ugly()
    options = {"vocab_size": 390, "character_coverage": 1.0, "keep_accents": keep_accents}
    usual = train(path, tmp_path, "usual", **options)
    with contextlib.nullcontext() if has_all_rules else rules_for("".join(lines)):
        prefix = train(path, tmp_path, "itself", normalize_in_model=True, **options)
    usual, tokenizer = AlbertTokenizer(f"{usual}.model"), AlbertTokenizer(f"{prefix}.model")
    assert tokenizer.pieces == usual.pieces
    assert tokenizer.settings == usual.settings == (True, keep_accents, False)
    expected = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model").encode(lines)
    assert tokenizer.encode_batch(lines) == tokenizer.in_graph()(lines).to_list() == expected
    tokenizer.save(str(tmp_path / "saved"))
    alone = unrecorded(f"{prefix}.model", tmp_path)
    for again in (AlbertTokenizer.load(str(tmp_path / "saved")), AlbertTokenizer(alone, True)):
        assert again.encode_batch(lines) == expected

    decompose = functools.partial(unicodedata.normalize, "NFD")
    differ = [a for a, b, c in zip(lines, usual.encode_batch(lines), expected) if b != c]
    in_order = [line for line in differ if decompose(line) == "".join(map(decompose, line))]
    assert not in_order and bool(differ) == keep_accents
    assert tokenizer.vocabulary.normalize("ΟΔΟΣ") == "▁οδοσ"


def test_done_is_not_done_again(corpus, tmp_path, capsys):
    model = train(corpus, tmp_path).with_suffix(".model")
    before = model.read_bytes(), model.stat().st_mtime_ns
    capsys.readouterr()
    train(corpus, tmp_path)
    shown = capsys.readouterr().out
    assert "is there already" in shown and "modified after" not in shown
    os.utime(corpus, (2**32, 2**32))
    train(corpus, tmp_path)
    assert f"{corpus} modified after" in capsys.readouterr().out
    for changes, message in (
        (
            {"text_format": TextFormat("prose")},
            "(settings.input_format 'sentences' there, 'prose' here)",
        ),
        ({"vocab_size": 79}, "with other settings (settings.vocab_size 83 there, 79 here)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            train(corpus, tmp_path, **changes)
    corpus.write_text(corpus.read_text() + "more\n")
    with pytest.raises(ValueError, match="other input files"):
        train(corpus, tmp_path)
    model.with_suffix(".json").unlink()
    with pytest.raises(ValueError, match="there already, but made of other input files"):
        train(corpus, tmp_path)
    assert (model.read_bytes(), model.stat().st_mtime_ns) == before
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".model", ".txt", ".vocab"]


def test_report_is_on_lines_that_training_did_not_see(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pipelines.train_vocab._MIN_HELDOUT_LINES", 10)
    path = tmp_path / "corpus.txt"
    lines = [line for line in make_text(90, seed=4).split("\n") if line][:1003]
    lines[99::100] = ["ж" * 7] * len(lines[99::100])  # only in the lines held out
    path.write_text("\n".join(lines), encoding="utf-8")
    train(path, tmp_path, character_coverage=1.0)
    printed = capsys.readouterr().out
    assert "on 10 lines held out of training: 2.00 pieces per word, 50.0000 % <unk>" in printed
    assert "most frequent among <unk>: 'жжжжжжж' 10" in printed
    path.write_text("\n".join(lines[:999]), encoding="utf-8")  # 9 of them: all train
    prefix = train(path, tmp_path, "small", character_coverage=1.0)
    assert "on 10 lines of the training text" in capsys.readouterr().out
    assert any("ж" in piece for piece in listing(prefix))


def test_report_shows_words_that_lose_a_mark(tmp_path, capsys):
    words = "the old café, 1914 " * 25
    assert lost_marks([words, "한국어 " * 2500]) == []
    [hint] = lost_marks([words])
    assert "hint: 33 % of the words lose accents or other marks (café -> cafe 25): to keep" in hint
    path = tmp_path / "corpus.txt"
    path.write_text("かぎ が ある。\nขา ข่า\n" * 40, encoding="utf-8")
    for keep_accents, hints in ((False, 1), (True, 0)):
        prefix = train(path, tmp_path, f"{keep_accents}", vocab_size=24, keep_accents=keep_accents)
        printed = capsys.readouterr().out
        assert printed.count("43 % of the words lose") == hints
        assert printed.count("(ぎ -> き 40, が -> か 40, ข่า -> ขา 40): ") == hints
        assert printed.count("train with --keep_accents") == hints
        letters = set("".join(listing(prefix)))
        assert ("が" in letters, "ぎ" in letters, "\u0e48" in letters) == (keep_accents,) * 3
