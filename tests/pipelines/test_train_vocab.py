"""The vocabulary program: what it writes, when it works again, what it says to bad input."""

from __future__ import annotations

import gzip
import json
import re
import sys
import time

import pytest
import sentencepiece

from albert_tf.text.tokenization import AlbertTokenizer, preprocess
from pipelines import train_vocab as program
from pipelines.data.corpus import TextFormat
from pipelines.data.vocabulary_report import report
from pipelines.data.vocabulary_settings import resolve_lower_case
from pipelines.train_vocab import train_vocab
from tests.conftest import make_text

SETTINGS = {
    "vocab_size": 83,
    "model_type": "unigram",
    "character_coverage": 0.99995,
    "input_sentence_size": 10_000,
    "do_lower_case": True,
    "byte_fallback": False,
}
SENTENCES = TextFormat()


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(make_text(67, seed=3), encoding="utf-8")
    return path


def train(corpus, tmp_path, name="vocabulary", text_format=SENTENCES, **changes):
    prefix = tmp_path / name
    train_vocab([str(corpus)], str(prefix), {**SETTINGS, **changes}, text_format)
    return prefix


def listing(prefix) -> list[str]:
    lines = prefix.with_suffix(".vocab").read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_pieces_of_the_reference_come_first(corpus, tmp_path, model_type, capsys):
    prefix = train(corpus, tmp_path, model_type=model_type)
    tokenizer = AlbertTokenizer(f"{prefix}.model")
    first = [tokenizer.id_to_piece(i) for i in range(13)]
    assert first == '<pad> <unk> [CLS] [SEP] [MASK] ( ) " - . – £ €'.split()
    assert tokenizer.vocab_size == 83
    assert listing(prefix)[:13] == first
    assert len(listing(prefix)) == 83
    assert tokenizer.unk_id not in tokenizer.encode("The Brown fox (seven)")
    printed = capsys.readouterr().out
    assert "83 pieces; on 100 lines of the training text" in printed
    assert "0.0000 % <unk>" in printed


def test_text_is_prepared_as_the_tokenizer_does(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("École  Über\u00a0ALLES\n\nÉté été ﬁn\n" * 30, encoding="utf-8")
    lower = train(path, tmp_path, "lower", vocab_size=29)
    cased = train(path, tmp_path, "cased", vocab_size=31, do_lower_case=False)
    for prefix, expected in [(lower, set()), (cased, set("EUALS"))]:
        letters = set("".join(listing(prefix)[13:]))
        assert {c for c in letters if c.isupper()} == expected
        assert not letters & set("ÉéÜüﬁ\u00a0")


def test_done_is_not_done_again(corpus, tmp_path, capsys):
    prefix = train(corpus, tmp_path)
    before = prefix.with_suffix(".model").read_bytes()
    times = prefix.with_suffix(".model").stat().st_mtime_ns
    capsys.readouterr()
    train(corpus, tmp_path)
    assert "is there already" in capsys.readouterr().out
    with pytest.raises(ValueError, match="made with --input_format=sentences: delete it"):
        train(corpus, tmp_path, text_format=TextFormat("prose"))
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


SLOW_BEFORE_0_2_3 = pytest.mark.skipif(
    sys.version_info < (3, 10), reason="sentencepiece 0.2.2 takes minutes for this line"
)


@pytest.mark.parametrize(
    ("long_line", "vocab_size"),
    [
        ("zebra " * 2000, 27),
        pytest.param("z" * 200_003, 23, marks=SLOW_BEFORE_0_2_3),
        pytest.param("z " * 100_000, 22, marks=SLOW_BEFORE_0_2_3),
    ],
)
def test_long_lines_count_and_take_no_longer(tmp_path, long_line, vocab_size):
    path = tmp_path / "corpus.txt"
    path.write_text("short words\n" * 101 + long_line + "\n")
    started = time.monotonic()
    assert any("z" in piece for piece in listing(train(path, tmp_path, vocab_size=vocab_size)))
    assert time.monotonic() - started < 9


def test_breaking_lines_loses_nothing():
    for text in ("a " * 2000 + "b", "x" * 6001, "ab " * 700, "y" * 1999 + " z", "y" * 2000 + " z"):
        lines = [line[0] for line in program._LINE.finditer(text)]
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert max(map(len, lines)) <= 2000
        if " " in text:
            assert " ".join(lines).strip() == text.strip()


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
        train(corpus, tmp_path, text_format=TextFormat(on_bad_line="skip"))
        assert "left out 1 bad lines" in capsys.readouterr().out


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_byte_fallback_leaves_no_unknown_text(corpus, tmp_path, model_type, capsys):
    prefix = train(corpus, tmp_path, vocab_size=331, byte_fallback=True, model_type=model_type)
    tokenizer = AlbertTokenizer(f"{prefix}.model")
    first = [tokenizer.id_to_piece(i) for i in range(14)]
    assert first == '<pad> <unk> [CLS] [SEP] [MASK] ( ) " - . – £ € <0x00>'.split()
    assert tokenizer.unk_id not in tokenizer.encode("葉 “Ж”")
    assert [tokenizer.id_to_piece(i) for i in tokenizer.encode("葉")][1:] == [
        "<0xE8>",
        "<0x91>",
        "<0x89>",
    ]


def test_bpe_is_another_vocabulary(corpus, tmp_path):
    unigram, bpe = train(corpus, tmp_path, "u"), train(corpus, tmp_path, "b", model_type="bpe")
    assert listing(unigram)[:13] == listing(bpe)[:13]
    assert set(listing(unigram)) != set(listing(bpe))


@pytest.mark.parametrize(("input_format", "suffix"), [("prose", ".txt"), ("jsonl", ".jsonl.gz")])
def test_reads_the_formats_of_corpora(tmp_path, input_format, suffix):
    paragraphs = make_text(67, seed=3).split("\n\n")
    if input_format == "jsonl":
        content = "\n".join(
            json.dumps({"id": "жж", "body": text}, ensure_ascii=False) for text in paragraphs
        )
    else:
        content = "\n\n".join(paragraphs)
    path = tmp_path / f"corpus{suffix}"
    content = content.encode()
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    text_format = TextFormat(input_format, text_field="body")
    pieces = listing(train(path, tmp_path, text_format=text_format))
    sentences = tmp_path / "sentences.txt"
    sentences.write_bytes("\n\n".join(paragraphs).encode())
    assert set(pieces) == set(listing(train(sentences, tmp_path, "sentences")))


def test_report_is_on_lines_that_training_did_not_see(tmp_path, capsys):
    path = tmp_path / "corpus.txt"
    lines = make_text(900, seed=4).split("\n")
    lines = [line for line in lines if line][:10_003]
    assert len(lines) == 10_003
    for i in range(99, len(lines), 100):
        lines[i] = "ж" * 7  # only in the lines held out
    path.write_text("\n".join(lines), encoding="utf-8")
    prefix = train(path, tmp_path, character_coverage=1.0)
    printed = capsys.readouterr().out
    assert "on 100 lines held out of training: 2.00 pieces per word, 50.0000 % <unk>" in printed
    assert "hint: 100 % of the Cyrillic letters" in printed
    path.write_text("\n".join(lines[:9999]), encoding="utf-8")  # 99 of them: all train
    prefix = train(path, tmp_path, "small", character_coverage=1.0)
    assert "on 100 lines of the training text" in capsys.readouterr().out
    assert any("ж" in piece for piece in listing(prefix))


class TestReport:
    @pytest.fixture(scope="class")
    def processor(self, tiny_vocabulary):
        return sentencepiece.SentencePieceProcessor(model_file=str(tiny_vocabulary))

    def test_names_unknown_quotes(self, processor):
        text = report(processor, ["the “fox” sings", "seven 葉 small birds"], "here")
        assert re.search(r"1\d\d pieces; on 2 lines here", text)
        assert "hint: curly quotes" in text and "--character_coverage" in text
        assert "'“' 1, '”' 1, '葉' 1" in text
        assert "hint" not in report(processor, ["the fox 葉"], "here")

    @pytest.mark.parametrize(
        ("letters", "script"),
        [
            ("дело было", "Cyrillic"),
            ("한국어를", "Hangul"),
            ("中文字", "Han"),
            ("العربية", "Arabic"),
        ],
    )
    def test_names_scripts_that_fell_out(self, processor, letters, script):
        lines = [preprocess(f"the fox {letters}", True)] * 7 + ["seven small birds"] * 90
        text = report(processor, lines, "here")
        assert f"hint: 100 % of the {script} letters, which are " in text
        assert "--byte_fallback" in text
        assert "hint" not in report(processor, lines[:1] + lines[7:], "here")

    def test_counts_pieces_per_word_or_character(self, processor, tmp_path):
        pieces = len(processor.encode("the fox sings"))
        assert f"{pieces / 3:.2f} pieces per word" in report(processor, ["the fox sings"], "here")
        # `▁` and one <unk> a line; 2 of 3 letters have no spaces between them
        assert "0.67 pieces per character" in report(processor, ["字字ж"], "here")
        assert "0.67 pieces per word" not in report(processor, ["字жж"], "here")


@pytest.mark.parametrize(
    ("written", "flag", "expected"),
    [
        (None, None, True),
        (None, False, False),
        ({"settings": {"do_lower_case": False}}, None, False),
        ({"settings": {"do_lower_case": False}}, False, False),
        ({"settings": {"do_lower_case": True}}, None, True),
        ({"tokens": ["another program's"]}, None, True),
    ],
)
def test_lower_case_is_the_vocabularys(tmp_path, written, flag, expected):
    if written:
        (tmp_path / "own.v2.json").write_text(json.dumps(written))
    assert resolve_lower_case(f"{tmp_path}/own.v2.model", flag) is expected


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_lower_case_may_not_be_contradicted(corpus, tmp_path, do_lower_case):
    model = f"{train(corpus, tmp_path, do_lower_case=do_lower_case)}.model"
    assert resolve_lower_case(model, None) is do_lower_case
    with pytest.raises(ValueError, match=r"--do_lower_case=.* was trained with .*leave the flag"):
        resolve_lower_case(model, not do_lower_case)
