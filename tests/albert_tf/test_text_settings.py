"""What a vocabulary's files say about its text, ours and Hugging Face's."""

import copy
import functools
import json
import pickle
import shutil
import unicodedata

import pytest
import sentencepiece
import tensorflow as tf

from albert_tf.checkpoints.pretrained import read_tokenizer
from albert_tf.text.model_normalizer import with_normalizer
from albert_tf.text.settings import TextSettings
from albert_tf.text.tokenization import AlbertTokenizer
from albert_tf.text.wordpiece import WordPieceVocabulary
from tests import vocabularies
from tests.builders import raises_one_line

OURS = {"latex_quotes": False}
TEXT = "The Fox said `` no '' to Émile and Élan in Été".split()


@pytest.fixture(params=["spiece.model", "vocab.txt"])
def vocabulary(request, tmp_path):
    """A cased vocabulary with accents, and nothing that records it."""
    path = tmp_path / "model" / request.param
    path.parent.mkdir()
    if request.param == "vocab.txt":
        path.write_text("\n".join([*WordPieceVocabulary.special, *dict.fromkeys(TEXT)]) + "\n")
    else:
        trained = vocabularies.train(tmp_path / "other" / "cased", TEXT * 3, 99, text=None)
        path.write_bytes(trained.read_bytes())
    return path


def of_hugging_face(path, **values):
    (path.parent / "config.json").write_text('{"model_type": "albert"}')
    known = {"do_lower_case": False, "keep_accents": True}
    (path.parent / "tokenizer_config.json").write_text(json.dumps({**known, **values}))


def test_settings_of_a_cased_vocabulary_must_be_known(vocabulary):
    with raises_one_line(r"pieces have capitals, such as .*: write .*, or the opposite, to .*json"):
        AlbertTokenizer(vocabulary)
    with raises_one_line(r"pieces have accents .*also accept --keep_accents"):
        AlbertTokenizer(vocabulary, do_lower_case=True)
    assert AlbertTokenizer(vocabulary, True, False).settings == (True, False, False)
    record = {"settings": {"do_lower_case": False, "keep_accents": True}}
    vocabulary.with_suffix(".json").write_text(json.dumps(record))
    assert AlbertTokenizer(vocabulary).settings == (False, True, False)
    with raises_one_line("--do_lower_case=true, but .* was trained with --do_lower_case=false"):
        AlbertTokenizer(vocabulary, do_lower_case=True)


def test_settings_beside_a_vocabulary_of_hugging_face(vocabulary):
    is_wordpiece = vocabulary.suffix == ".txt"
    of_hugging_face(vocabulary)
    assert AlbertTokenizer(vocabulary).settings == (False, True, not is_wordpiece)
    # What PREFIX.json states leaves the other settings, and the checks, as they are.
    record = vocabulary.with_suffix(".json")
    record.write_text('{"settings": {"do_lower_case": true}}')
    assert AlbertTokenizer(vocabulary).settings == (True, True, not is_wordpiece)
    record.unlink()
    of_hugging_face(vocabulary, latex_quotes=False)
    assert AlbertTokenizer(vocabulary).settings == (False, True, False)
    assert AlbertTokenizer(vocabulary, do_lower_case=True).settings.do_lower_case
    # A config of ours that has their name.
    (vocabulary.parent / "tokenizer_config.json").unlink()
    (vocabulary.parent / "config.json").write_text('{"hidden_size": 32}')
    assert not AlbertTokenizer(vocabulary, False, True).settings.latex_quotes


@pytest.mark.parametrize("vocabulary", ["vocab.txt"], indirect=True)
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", {"model_type": "bert", "tokenizer_class": "Camembert"}, "'Camembert', exp"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": "own.Own"}}, r"its own \(own.Own"),
        ("tokenizer_config.json", {"never_split": ["<e>"]}, "never_split is "),
        ("tokenizer_config.json", {"tokenizer_class": "XLNetTokenizer", **OURS}, "XLNetTokenizer"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "<e>"}}}, r"\(<e>\)"),
        ("tokenizer.json", {"added_tokens": [{"id": 9, "content": "<e>"}]}, r"\(<e>\)"),
        ("special_tokens_map.json", {"additional_special_tokens": ["<e>"]}, r"\(<e>\)"),
        ("tokenizer_config.json", {"extra_special_tokens": {"image": "<e>"}}, r"\(<e>\)"),
        ("special_tokens_map.json", {"cls_token": {"content": "<s>"}}, "cls_token is '<s>', exp"),
        ("added_tokens.json", {f"<e{i}>": i for i in range(9)}, r"\(<e0>, .*<e4>, \.\.\.\)"),
    ],
)
def test_what_their_tokenizers_do_and_ours_do_not(vocabulary, tmp_path, name, content, message):
    of_hugging_face(vocabulary)
    known = json.loads((vocabulary.parent / "tokenizer_config.json").read_text())
    known = known if name == "tokenizer_config.json" else {}
    (vocabulary.parent / name).write_text(json.dumps({**known, **content}))
    with raises_one_line(message):
        AlbertTokenizer(vocabulary)
    # Nor does a vocabulary from elsewhere make the model's tokenizer one of ours.
    elsewhere = shutil.copy(vocabulary, tmp_path / f"elsewhere{vocabulary.suffix}")
    elsewhere.with_suffix(".json").write_text('{"settings": {"keep_accents": true}}')
    with raises_one_line(message):
        read_tokenizer(str(vocabulary.parent), str(elsewhere), do_lower_case=False)


@pytest.mark.parametrize("vocabulary", ["spiece.model"], indirect=True)
@pytest.mark.parametrize("prepares_itself", [False, True])
def test_latex_quotes(vocabulary, prepares_itself):
    """As transformers' AlbertTokenizer reads them, with which the model was trained."""
    of_hugging_face(vocabulary)
    if prepares_itself:  # whatever its rules are, they have no quotes
        table = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
        vocabulary.write_bytes(with_normalizer(vocabulary.read_bytes(), table))
    tokenizer = AlbertTokenizer(vocabulary)
    text = "The ``Fox'' said '' no ` '"
    assert tokenizer.preprocess(text) == 'The "Fox" said " no ` \''
    assert tokenizer.in_graph()([text]).to_list() == [tokenizer.encode(text)]


@pytest.mark.parametrize("vocabulary", ["spiece.model"], indirect=True)
def test_tokenizers_go_to_other_processes(vocabulary):
    tokenizer = AlbertTokenizer(vocabulary, False, True)
    expected = tokenizer.encode("The Fox said")
    assert len(set(expected)) > 2
    vocabulary.unlink()  # the copy needs no file
    used = copy.deepcopy(tokenizer)
    assert used.in_graph()(["The Fox said"]).to_list() == [expected]
    for other in (pickle.loads(pickle.dumps(each)) for each in (tokenizer, used)):
        assert other.encode("The Fox said") == expected
        assert other.settings == TextSettings(False, True)


def test_text_makes_no_special_piece(tmp_path):
    options = {"control_pieces": ["[CLS]", "[SEP]"], "user_defined_symbols": ["[MASK]"]}
    model = vocabularies.train(tmp_path / "user", TEXT * 3, 99, **options)
    with raises_one_line(r"\[MASK\] .*user-defined symbols, .*--control_symbols"):
        AlbertTokenizer(model)


def test_words_whose_pieces_are_marked_otherwise(tmp_path):
    train = functools.partial(vocabularies.train, lines=["the open file"] * 9, vocab_size=40)
    with raises_one_line("trained with treat_whitespace_as_suffix: expected"):
        AlbertTokenizer(train(tmp_path / "suffix", treat_whitespace_as_suffix=True))
    for option, message in (
        ("add_dummy_prefix", "=false, so the first word of a sentence"),
        ("split_by_whitespace", "=false"),
    ):
        tokenizer = AlbertTokenizer(train(tmp_path / option, **{option: False}))
        with raises_one_line(f"trained with.*{option}{message}"):
            tokenizer.word_starts()


def test_marks_may_be_composed_in_part(tmp_path):
    """As in Vietnamese text of Windows: a letter with its horn, and a separate tone."""
    kept = TextSettings(keep_accents=True)
    lines = ["người việt ở đà nẵng"] * 9
    model = vocabularies.train(tmp_path / "vi", lines, 60, text=kept, character_coverage=1.0)
    tokenizer, whole = AlbertTokenizer(model), "người việt"
    forms = [whole, unicodedata.normalize("NFD", whole), "ng\u01b0\u01a1\u0300i vi\xea\u0323t"]
    expected = tokenizer.encode(whole)
    assert tokenizer.unk_id not in expected
    assert tokenizer.encode_batch(forms) == [expected] * 3
    assert tokenizer.in_graph()(forms).to_list() == [expected] * 3
    aligned = tokenizer.in_graph().align(tf.constant(forms))
    ends = aligned.limits.numpy().reshape(3, -1)[:, -1]
    assert ends.tolist() == [len(text.encode()) for text in forms]


def test_bytes_are_decoded_as_characters(tmp_path):
    text = ["a fox in the sea"] * 3
    model = vocabularies.train(tmp_path / "bytes", text, 300, byte_fallback=True)
    tokenizer = AlbertTokenizer(model)
    ids = tokenizer.encode("a 日本 fox")
    assert any(tokenizer.id_to_piece(i).startswith("<0x") for i in ids)
    assert tokenizer.decode(ids) == "a 日本 fox"
    assert tokenizer.decode(tokenizer.encode("日")[:-1]) == "\ufffd"
