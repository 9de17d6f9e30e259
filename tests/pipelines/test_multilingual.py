"""Other scripts all the way: text -> vocabulary -> records -> masked examples."""

import unicodedata
from typing import NamedTuple

import numpy as np
import pytest

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data.corpus import TextFormat, read_documents
from pipelines.data.examples import ExampleOptions
from pipelines.data.masking import unmask
from pipelines.data.pretraining_dataset import pretraining_dataset, read_sources
from pipelines.data.vocabulary_settings import resolve_lower_case
from tests import builders
from tests.pipelines.data.small_records import create_records
from tests.pipelines.test_train_vocab import train


class Language(NamedTuple):
    file: str
    script: str  # as in the names of its letters
    has_spaces: bool
    vocab_size: int
    do_lower_case: bool = True


LANGUAGES = {
    "ko": Language("ko_korsts_chatbot.txt", "HANGUL", True, 1900),
    "zh": Language("zh_xquad_contexts.txt", "CJK", False, 2900),
    "th": Language("th_xquad_contexts.txt", "THAI", False, 500),
    "ar": Language("ar_xquad_contexts.txt", "ARABIC", True, 700),
    "ru": Language("ru_xquad_contexts.txt", "CYRILLIC", True, 600, do_lower_case=False),
    "vi": Language("vi_xquad_contexts.txt", "LATIN", True, 400),
    "de": Language("de_eltec_DEU002.txt", "LATIN", True, 600, do_lower_case=False),
}
SLOW = ("zh", "ar", "ru", "vi", "de")
BATCH = 64


def masked_examples(code, source, directory):
    """Returns a tokenizer and a batch of examples."""
    language = LANGUAGES[code]
    text = source.read_text(encoding="utf-8-sig")[:90_000]
    text = text[: text.rindex("\n\n")]  # whole documents
    if language.has_spaces:
        text_format = TextFormat()
    else:
        # Without line ends, as such text lies in files: a document is a paragraph.
        text = "\n\n".join(document.replace("\n", "") for document in text.split("\n\n"))
        text_format = TextFormat("prose", language=code)
    path = directory / "text.txt"
    path.write_text(text, encoding="utf-8")
    changes = {"character_coverage": 0.999, "input_sentence_size": 100_000}
    changes.update(vocab_size=language.vocab_size, do_lower_case=language.do_lower_case)
    model = f"{train(path, directory, text_format=text_format, **changes)}.model"
    settings = {"do_lower_case": resolve_lower_case(model, None), "text_format": text_format}
    with builders.units_in_this_process():
        manifest = create_records(
            path, directory / "records", model, 40_000, max_seq_length=157, **settings
        )
    assert manifest.do_lower_case is language.do_lower_case
    assert manifest.documents == len(text.split("\n\n"))
    sentences = [s.text for s in read_documents(str(path), text_format)]
    assert manifest.sentences == len(sentences)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    tokenizer = AlbertTokenizer(model, language.do_lower_case)
    sources = read_sources(str(directory / "records"))
    dataset = pretraining_dataset(sources, ExampleOptions(157), tokenizer, BATCH)
    batch = {name: values.numpy() for name, values in next(iter(dataset)).items()}
    return tokenizer, batch


def is_of(piece: str, script: str) -> bool:
    """Tells whether a piece holds nothing but letters of a script, and no space before them."""
    return all(unicodedata.name(c, "").startswith(script) and c.isalpha() for c in piece)


@pytest.mark.shared
@pytest.mark.parametrize(
    "code", [pytest.param(code, marks=[pytest.mark.slow] * (code in SLOW)) for code in LANGUAGES]
)
def test_text_is_pieces_and_words_are_masked_whole(code, shared, tmp_path):
    """As far as the script has words; where it has none every piece is one."""
    language = LANGUAGES[code]
    source = shared / "data/multilingual" / language.file
    tokenizer, batch = masked_examples(code, source, tmp_path)
    ids, real = unmask(batch), batch["input_mask"].astype(bool)
    assert (ids[real] == tokenizer.unk_id).mean() < 0.01
    assert tokenizer.mask_id not in ids
    pieces = [tokenizer.id_to_piece(i).lstrip("▁") for i in ids[real]]
    assert np.mean([bool(p) and is_of(p, language.script) for p in pieces]) > 0.5
    shares = batch["masked_lm_weights"].sum(axis=1) / real.sum(axis=1)
    assert 0.13 < shares.mean() < 0.17
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
    assert inside_words > 150 and masked_inside > 15
    assert cut_words == 0 if language.has_spaces else cut_words > 50
