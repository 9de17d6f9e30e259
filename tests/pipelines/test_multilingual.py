"""Other scripts all the way: text -> vocabulary -> records -> masked examples."""

import unicodedata
from dataclasses import dataclass

import numpy as np
import pytest

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines import create_pretraining_data as job
from pipelines.data.corpus import TextFormat, read_documents
from pipelines.data.examples import ExampleOptions
from pipelines.data.masking import unmask
from pipelines.data.pretraining_dataset import pretraining_dataset, read_sources
from pipelines.data.shard_writer import Settings
from pipelines.data.vocabulary_settings import resolve_lower_case
from pipelines.train_vocab import train_vocab
from tests import builders


@dataclass(frozen=True)
class Language:
    file: str
    script: str  # as in the names of its letters
    has_spaces: bool
    vocab_size: int
    do_lower_case: bool = True

    @property
    def code(self) -> str:
        return self.file[:2]


LANGUAGES = [
    Language("ko_korsts_chatbot.txt", "HANGUL", True, 1900),
    Language("ar_xquad_contexts.txt", "ARABIC", True, 700),
    Language("zh_xquad_contexts.txt", "CJK", False, 2900),
    Language("th_xquad_contexts.txt", "THAI", False, 500),
    Language("ru_xquad_contexts.txt", "CYRILLIC", True, 600, do_lower_case=False),
    Language("vi_xquad_contexts.txt", "LATIN", True, 400),
    Language("de_eltec_DEU002.txt", "LATIN", True, 600, do_lower_case=False),
    Language("fr_eltec_audoux_marie_claire.txt", "LATIN", True, 600),
]
BATCH = 64


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            language,
            id=language.code,
            marks=[pytest.mark.slow] * (language.code in "vi de fr ar ru"),
        )
        for language in LANGUAGES
    ],
)
def masked(request, shared, tmp_path_factory):
    """Language, tokenizer and a batch of examples, with the printed report of the vocabulary."""
    language = request.param
    directory = tmp_path_factory.mktemp(language.code)
    source = shared / "data" / "multilingual" / language.file
    text = source.read_text(encoding="utf-8-sig")[:90_000]
    text = text[: text.rindex("\n\n")]  # whole documents
    if language.has_spaces:
        text_format = TextFormat()
    else:
        # Without line ends, as such text lies in files: a document is a paragraph.
        text = "\n\n".join(document.replace("\n", "") for document in text.split("\n\n"))
        text_format = TextFormat("prose", language=language.code)
    path = directory / "text.txt"
    path.write_text(text, encoding="utf-8")
    settings = {
        "vocab_size": language.vocab_size,
        "model_type": "unigram",
        "character_coverage": 0.999,
        "input_sentence_size": 100_000,
        "do_lower_case": language.do_lower_case,
        "byte_fallback": False,
    }
    train_vocab([str(path)], str(directory / "vocabulary"), settings, text_format)
    model = str(directory / "vocabulary.model")
    with builders.units_in_this_process():
        manifest = job.create_pretraining_data(
            input_file=str(path),
            output_dir=str(directory / "records"),
            settings=Settings(
                model, resolve_lower_case(model, None), 157, 0.1, 0.1, 7, text_format=text_format
            ),
            shard_bytes=40_000,
        )
    assert manifest.do_lower_case is language.do_lower_case
    assert manifest.documents == len(text.split("\n\n"))
    sentences = [s.text for s in read_documents(str(path), text_format)]
    assert manifest.sentences == len(sentences)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    tokenizer = AlbertTokenizer(model, language.do_lower_case)
    dataset = pretraining_dataset(
        read_sources(str(directory / "records")), ExampleOptions(157), tokenizer, BATCH
    )
    batch = {name: values.numpy() for name, values in next(iter(dataset)).items()}
    return language, tokenizer, batch


def is_of(piece: str, script: str) -> bool:
    """Tells whether a piece holds nothing but letters of a script, and no space before them."""
    return all(unicodedata.name(c, "").startswith(script) and c.isalpha() for c in piece)


@pytest.mark.shared
def test_text_is_pieces_of_the_vocabulary(masked):
    language, tokenizer, batch = masked
    ids, real = unmask(batch), batch["input_mask"].astype(bool)
    assert (ids[real] == tokenizer.unk_id).mean() < 0.01
    assert tokenizer.mask_id not in ids
    pieces = [tokenizer.id_to_piece(i).lstrip("▁") for i in ids[real]]
    assert np.mean([bool(p) and is_of(p, language.script) for p in pieces]) > 0.5
    shares = batch["masked_lm_weights"].sum(axis=1) / real.sum(axis=1)
    assert 0.13 < shares.mean() < 0.17


@pytest.mark.shared
def test_words_are_masked_whole(masked):
    """As far as the script has words; where it has none every piece is one."""
    language, tokenizer, batch = masked
    ids = unmask(batch)
    predicted = np.zeros(ids.shape, bool)
    rows, columns = np.nonzero(batch["masked_lm_weights"])
    predicted[rows, batch["masked_lm_positions"][rows, columns]] = True
    inside_words = masked_inside = cut_words = 0
    for row, chosen, mask in zip(ids, predicted, batch["input_mask"]):
        pieces = [tokenizer.id_to_piece(i) for i in row[: mask.sum()]]
        for i in range(2, len(pieces)):
            # A piece that goes on with letters where another one left off.
            joined = pieces[i - 1].lstrip("▁") + pieces[i]
            if is_of(joined, language.script) and pieces[i - 1] != "▁":
                inside_words += 1
                masked_inside += chosen[i]
                cut_words += chosen[i] != chosen[i - 1]
    assert inside_words > 150
    assert masked_inside > 15
    if language.has_spaces:
        assert cut_words == 0
    else:
        assert cut_words > 50
