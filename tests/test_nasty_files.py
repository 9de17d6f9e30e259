"""Awkward files through the jobs that read text: what comes of each is told in a table."""

import hashlib
import os
import shutil

import pytest

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data.corpus import TextFormat
from pipelines.data.examples import ExampleOptions
from pipelines.data.pretraining_dataset import pretraining_dataset, read_sources
from pipelines.train_vocab import VocabularySettings, train_vocab
from tests.builders import raises_one_line
from tests.nasty_files import ODD_NAME
from tests.pipelines.data.small_records import create_records

UTF16 = "this is UTF-16 text; convert the file to UTF-8"
NO_TEXT = "no text in it"
LONG = "very_long_line.txt"

# What is wrong with a file (None: nothing); what is read of it, with --on_bad_line=skip where
# lines are bad, as sentences: documents, sentences, lines skipped (None: the file is refused all
# the same); and as prose: documents, sentences.
OUTCOMES = {
    "latin1.txt": (":1: byte 0xE9 is not UTF-8", (0, 0, 4), (0, 0)),
    "cp1252_smart_quotes.txt": (":1: byte 0x93 is not UTF-8", (1, 2, 2), (1, 2)),
    "utf16le_bom.txt": (UTF16, None, None),
    "utf16be_bom.txt": (UTF16, None, None),
    "utf16le_nobom.txt": (UTF16, None, None),
    "utf8_bom.txt": (None, (2, 4, 0), (2, 4)),
    "utf8_bom_mid.txt": (None, (2, 4, 0), (2, 4)),
    "crlf.txt": (None, (2, 4, 0), (2, 4)),
    "cr_only.txt": (None, (2, 4, 0), (2, 4)),
    "mixed_eol.txt": (None, (2, 5, 0), (2, 10)),
    "blank_is_spaces.txt": (None, (3, 6, 0), (3, 6)),
    "nuls.txt": (None, (2, 5, 0), (2, 4)),
    "controls.txt": (None, (1, 2, 0), (1, 2)),
    "truncated_utf8.txt": (":1: byte 0xC3 is not UTF-8", (0, 0, 1), (0, 0)),
    "invalid_utf8.txt": (":2: byte 0xFF is not UTF-8", (2, 4, 1), (2, 4)),
    "empty.txt": (NO_TEXT, None, None),
    "only_newlines.txt": (NO_TEXT, None, None),
    "one_char.txt": (None, (1, 1, 0), (1, 1)),
    "one_line_no_newline.txt": (None, (1, 1, 0), (1, 1)),
    "single_sentence_docs.txt": (None, (200, 200, 0), (200, 200)),
    "many_empty_docs.txt": (None, (2, 4, 0), (2, 4)),
    LONG: (None, (1, 2, 0), (1, 809)),  # read in two parts of 1 MB at most
    "long_token.txt": (None, (2, 4, 0), (2, 64)),
    "long_url_base64.txt": (None, (1, 2, 0), (1, 41)),
    "emoji_zwj.txt": (None, (2, 4, 0), (2, 3)),
    "zalgo_combining.txt": (None, (1, 2, 0), (1, 3)),
    "bidi_zero_width.txt": (None, (1, 2, 0), (1, 2)),
    "nfkc_expanders.txt": (None, (1, 2, 0), (1, 2)),
    "case_folding.txt": (None, (1, 2, 0), (1, 2)),
    "cjk_no_spaces.txt": (None, (2, 4, 0), (2, 6)),
    "private_use_nonchars.txt": (None, (1, 2, 0), (1, 2)),
    "special_tokens_in_text.txt": (None, (2, 4, 0), (2, 4)),
    "html_markup.txt": (None, (2, 6, 0), (2, 3)),
    "csv_quotes.tsv": (None, (2, 9, 0), (2, 2)),
    "crlf_bom.tsv": (None, (1, 3, 0), (1, 1)),
    "squad_nasty.json": (None, (1, 1, 0), (1, 20)),
    "squad_truncated.json": (None, (1, 1, 0), (1, 20)),
    "not_gzip.gz": ("not a whole gzip file .*give it a name without .gz", None, None),
    "truncated.tfrecord": (None, (1, 1, 0), (1, 1)),
}


def create(input_file, output_dir, vocabulary, shard_bytes=64_000_000, **text_format):
    settings = {"max_seq_length": 512, "random_seed": 3, "text_format": TextFormat(**text_format)}
    return create_records(input_file, output_dir, vocabulary, shard_bytes, **settings)


def test_the_files_are_what_they_were(nasty):
    """A checkout that converts line ends, or another formula of a long file, would pass unseen."""
    index = (nasty / "INDEX.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert [line.split("\t")[0] for line in index] == list(OUTCOMES)
    for line in (nasty / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((nasty / name).read_bytes()).hexdigest() == digest, name


# Of the others, prose has as many sentences, or none is read.
PROSE = [name for name, (_, a, b) in OUTCOMES.items() if a and a[:2] != b and name != LONG]


@pytest.mark.parametrize(
    ("name", "input_format"),
    [
        *((name, "sentences") for name in OUTCOMES if name != LONG),
        *((name, "prose") for name in PROSE),
        *(pytest.param(LONG, name, marks=pytest.mark.slow) for name in ("sentences", "prose")),
    ],
)
def test_records(nasty, tiny_vocabulary, tmp_path, in_this_process, name, input_format):
    problem, as_sentences, as_prose = OUTCOMES[name]
    # In three ranges, each of which has to find its documents.
    size = os.path.getsize(nasty / name)
    options = {"vocabulary": tiny_vocabulary, "shard_bytes": size // 3 + 1}
    options.update(output_dir=tmp_path / "records", input_format=input_format)
    if problem:
        with raises_one_line(problem):
            create(nasty / name, **options)
    if as_sentences is None or as_sentences[0] == 0:
        with raises_one_line(problem if as_sentences is None else NO_TEXT):
            create(nasty / name, **options, on_bad_line="skip")
    else:
        manifest = create(nasty / name, **options, on_bad_line="skip")
        found = (manifest.documents, manifest.sentences, manifest.skipped_lines)
        assert found == (as_sentences if input_format == "sentences" else (*as_prose, found[2]))
        assert found[2] == as_sentences[2]
        assert manifest.pieces > 0


def train(paths, prefix, **changes):
    settings = {"vocab_size": 200, "character_coverage": 0.999, "do_lower_case": False}
    text_format = TextFormat(**changes.pop("text_format", {}))
    settings = VocabularySettings(**{**settings, **changes})
    train_vocab([*map(str, paths)], str(prefix), settings, text_format)


def test_vocabulary(nasty, tmp_path):
    """test_all_together trains one on all good files."""
    options = {"vocab_size": 61, "character_coverage": 0.99}
    faults = {name: fault for name, (fault, *_) in OUTCOMES.items() if fault not in (None, NO_TEXT)}
    faults["only_newlines.txt"] = "hold no text"
    faults["one_char.txt"] = "--vocab_size is too large"
    faults["cjk_no_spaces.txt"] = "--vocab_size is too small"
    for name, problem in faults.items():
        with raises_one_line(problem):
            train([nasty / name], tmp_path / "own", **options)
    with raises_one_line("hold no text"):
        train([nasty / "latin1.txt"], tmp_path / "own", text_format={"on_bad_line": "skip"})
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_all_together(nasty, tiny_vocabulary, tmp_path, in_this_process):
    with raises_one_line(r"is not UTF-8|is UTF-16 text|not a whole gzip"):
        create(f"{nasty}/*.*", tmp_path / "refused", tiny_vocabulary)
    texts = tmp_path / "texts"
    texts.mkdir()
    expected = [1, 2, 0]  # of the one file that the index of the directory passes over
    shutil.copy(nasty / ODD_NAME, texts)
    for name, (problem, as_sentences, _) in OUTCOMES.items():
        if as_sentences:
            expected = [a + b for a, b in zip(expected, as_sentences)]
        if as_sentences or problem == NO_TEXT:
            shutil.copy(nasty / name, texts)
    skipping = {"input_format": "sentences", "on_bad_line": "skip"}
    train(sorted(texts.iterdir()), tmp_path / "vocabulary", text_format=skipping)
    model = tmp_path / "vocabulary.model"
    manifest = create(f"{texts}/*", tmp_path / "records", model, 500_000, **skipping)
    assert [manifest.documents, manifest.sentences, manifest.skipped_lines] == expected
    sources, tokenizer = read_sources(str(tmp_path / "records")), AlbertTokenizer(str(model))
    (batch,) = pretraining_dataset(sources, ExampleOptions(512), tokenizer, 8).take(1)
    assert batch["input_word_ids"].shape == (8, 512)
