"""The vocabulary program: what it writes, when it works again, what it says to bad input."""

from __future__ import annotations

import pytest
import sentencepiece

from albert_tf.tokenization import AlbertTokenizer
from pipelines import train_vocab as program
from pipelines.train_vocab import train_vocab
from tests.conftest import make_text

SETTINGS = {
    "vocab_size": 83,
    "model_type": "unigram",
    "character_coverage": 0.99995,
    "input_sentence_size": 10_000,
    "do_lower_case": True,
    "byte_fallback": False,
    "on_decode_error": "error",
}


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(make_text(67, seed=3), encoding="utf-8")
    return path


def train(corpus, tmp_path, name="vocabulary", **changes):
    prefix = tmp_path / name
    train_vocab([str(corpus)], str(prefix), {**SETTINGS, **changes})
    return prefix


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_pieces_of_the_reference_come_first(corpus, tmp_path, model_type, capsys):
    prefix = train(corpus, tmp_path, model_type=model_type)
    tokenizer = AlbertTokenizer(f"{prefix}.model")
    first = [tokenizer.id_to_piece(i) for i in range(13)]
    assert first == '<pad> <unk> [CLS] [SEP] [MASK] ( ) " - . – £ €'.split()
    assert tokenizer.vocab_size == 83
    listing = prefix.with_suffix(".vocab").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in listing][:13] == first
    assert len(listing) == 83
    assert tokenizer.unk_id not in tokenizer.encode("The Brown fox (seven)")
    printed = capsys.readouterr().out
    assert "83 pieces; on" in printed
    assert "0.0000 % <unk>" in printed


def test_text_is_prepared_as_the_tokenizer_does(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("École  Über\u00a0ALLES\n\nÉté été ﬁn\n" * 30, encoding="utf-8")
    lower = train(path, tmp_path, "lower", vocab_size=29)
    cased = train(path, tmp_path, "cased", vocab_size=31, do_lower_case=False)
    for prefix, expected in [(lower, set()), (cased, set("EUALS"))]:
        listing = prefix.with_suffix(".vocab").read_text(encoding="utf-8").splitlines()[13:]
        letters = set("".join(line.split("\t")[0] for line in listing))
        assert {c for c in letters if c.isupper()} == expected
        assert not letters & set("ÉéÜüﬁ\u00a0")


def test_done_is_not_done_again(corpus, tmp_path, capsys):
    prefix = train(corpus, tmp_path)
    before = prefix.with_suffix(".model").read_bytes()
    times = prefix.with_suffix(".model").stat().st_mtime_ns
    capsys.readouterr()
    train(corpus, tmp_path)
    assert "is there already" in capsys.readouterr().out
    assert prefix.with_suffix(".model").stat().st_mtime_ns == times
    with pytest.raises(
        ValueError, match="made with --vocab_size=83, --do_lower_case=True: delete it"
    ):
        train(corpus, tmp_path, vocab_size=79, do_lower_case=False)
    corpus.write_text(corpus.read_text() + "more\n")
    with pytest.raises(ValueError, match="other input files"):
        train(corpus, tmp_path)
    prefix.with_suffix(".json").unlink()
    with pytest.raises(ValueError, match=r"vocabulary\.json, which would say how"):
        train(corpus, tmp_path)
    assert prefix.with_suffix(".model").read_bytes() == before
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".model", ".txt", ".vocab"]


def test_a_drawn_part_of_the_text_is_the_same_every_time(corpus, tmp_path):
    models = [
        train(corpus, tmp_path, name, input_sentence_size=size, vocab_size=61)
        .with_suffix(".vocab")
        .read_text(encoding="utf-8")
        for name, size in {"a": 150, "b": 150, "c": 10_000}.items()
    ]
    assert models[0] == models[1] != models[2]


def test_long_lines_count(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("short words\n" * 101 + "zebra " * 2000 + "\n")
    assert "z" in train(path, tmp_path, vocab_size=27).with_suffix(".vocab").read_text("utf-8")


class TestErrors:
    def test_no_text(self, tmp_path):
        path = tmp_path / "empty.txt"
        path.write_text("\n \n\n")
        with pytest.raises(ValueError, match="only blank lines"):
            train(path, tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == ["empty.txt"]

    @pytest.mark.parametrize("model_type", ["unigram", "bpe"])
    def test_vocabulary_too_large(self, corpus, tmp_path, model_type):
        with pytest.raises(ValueError, match=r"at most \d+ pieces can be made"):
            train(corpus, tmp_path, vocab_size=30_000, model_type=model_type)

    def test_vocabulary_too_small(self, corpus, tmp_path):
        with pytest.raises(ValueError, match=r"characters alone need \d+ pieces"):
            train(corpus, tmp_path, vocab_size=17)

    def test_not_utf8(self, corpus, tmp_path, capsys):
        corpus.write_bytes(corpus.read_bytes() + b"caf\xe9\n")
        with pytest.raises(ValueError, match=r"corpus\.txt:\d+: byte 0xE9 is not UTF-8"):
            train(corpus, tmp_path)
        train(corpus, tmp_path, on_decode_error="skip")
        assert "left out 1 lines that are not UTF-8" in capsys.readouterr().out


def test_report_names_unknown_quotes(corpus, tmp_path):
    prefix = train(corpus, tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    text = program.report(processor, ["the “fox” sings", "seven 葉 small birds"])
    assert "on 2 lines" in text
    assert "hint: curly quotes" in text
    assert "'“' 1, '”' 1, '葉' 1" in text
    assert "hint" not in program.report(processor, ["the fox 葉"])
