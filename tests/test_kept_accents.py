"""Vocabularies with accents go through every program, and their words keep their marks."""

import json
import random

import pytest
import sentencepiece
import tensorflow as tf

import albert_tf
from albert_tf.text.in_graph import import_tensorflow_text
from albert_tf.text.tokenization import AlbertTokenizer
from albert_tf.text.wordpiece import WordPieceVocabulary
from export import fixed_graph
from pipelines.data.records import Manifest
from tests.albert_tf.checkpoints.test_name_map import convert
from tests.builders import finetune_flags, read_tsv, tiny_config, write_pretrained
from tests.jobs import pretrain_flags, record_flags, run

# Pairs that are the same words without their marks.
WORDS = "かぎ かき bán bàn ข่า ข้า क्षमा कषमा".split()
SETTINGS = {"do_lower_case": False, "keep_accents": True, "latex_quotes": False}


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def vocabulary(request, tmp_path_factory):
    """A vocabulary of a corpus of WORDS, beside the corpus and a model with random weights."""
    place, rng = tmp_path_factory.mktemp("accents"), random.Random(1)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(4, 20))) for _ in range(400)]
    documents = ["\n".join(lines[start : start + 10]) for start in range(0, 400, 10)]
    (place / "corpus.txt").write_text("\n\n".join(documents), encoding="utf-8")
    path = place / "vocabulary.model"
    if request.param == "bpe":
        flags = f"--input_file={place}/corpus.txt", f"--output_prefix={path.with_suffix('')}"
        accents = "--keep_accents", "--do_lower_case=false"
        sizes = "--vocab_size=40", "--model_type=bpe"
        out, _ = run("pipelines.train_vocab", *flags, *sizes, *accents)
        assert "cased, accents kept" in out and "lose" not in out
    else:
        path, characters = path.with_suffix(".txt"), sorted(set("".join(WORDS)))
        pieces = [*WordPieceVocabulary.special, *characters, *(f"##{c}" for c in characters)]
        path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
        path.with_suffix(".json").write_text(json.dumps({"settings": SETTINGS}))
    write_pretrained(place / "untrained", path)
    return path


@pytest.fixture(scope="module")
def place(vocabulary):
    return vocabulary.parent


@pytest.fixture(scope="module")
def ids(vocabulary):
    """The ids of WORDS; those of SentencePiece are what it gives to them as they are."""
    ids = AlbertTokenizer(vocabulary).encode_batch(WORDS)
    if vocabulary.suffix == ".model":
        model = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
        assert model.encode(WORDS) == ids
    assert len({*map(tuple, ids)}) == len(WORDS) and not any(1 in row for row in ids)
    return ids


WORDPIECE = pytest.param("wordpiece", marks=pytest.mark.slow)


@pytest.mark.parametrize("vocabulary", ["bpe", WORDPIECE], indirect=True, scope="module")
def test_models_keep_them(place, ids, tmp_path):
    convert(place / "untrained", tmp_path / "out", "huggingface")
    convert(tmp_path / "out", tmp_path / "in")
    for model in (place / "untrained", tmp_path / "out", tmp_path / "in"):
        tokenizer = albert_tf.from_pretrained(model)[1]
        assert tokenizer.encode_batch(WORDS) == ids
        assert tokenizer.in_graph()(tf.constant(WORDS)).to_list() == ids
        config = json.loads((model / "tokenizer_config.json").read_text())
        assert SETTINGS.items() <= config.items()


@pytest.mark.extras("tokenizers")
def test_tokenizer_json_keeps_them(place, ids, tmp_path):
    import tokenizers

    module = fixed_graph.load(f"{place}/untrained")
    fixed_graph.write(module, f"{tmp_path}/model.tflite", b"", {}, "")
    assert SETTINGS.items() <= json.loads((tmp_path / "model.tflite.json").read_text()).items()
    read = tokenizers.Tokenizer.from_file(f"{tmp_path}/model.tflite.tokenizer.json")
    assert [read.encode(word, add_special_tokens=False).ids for word in WORDS] == ids


@pytest.mark.slow
def test_programs_keep_them(vocabulary, place, ids, tmp_path):
    size = AlbertTokenizer(vocabulary).vocab_size
    tiny_config(vocab_size=size, max_position_embeddings=48).write(f"{place}/config.json")
    own = f"--spm_model_file={vocabulary}"
    run("pipelines.create_pretraining_data", *record_flags(place, place / "records", own))
    assert Manifest.read(f"{place}/records").text_settings == (False, True, False)
    files = f"--record_dir={place}/records", own
    shown = run("pipelines.show_records", *files)[0]
    assert len({*"".join(WORDS)} - {*shown}) <= 1  # one may be masked
    steps = ["--num_train_steps=6", "--save_checkpoint_steps=6", own]
    run("pipelines.pretrain", *pretrain_flags(place, tmp_path / "model"), *steps)

    rows = "".join(f"{word}\t{i % 2}\n" for i, word in enumerate(WORDS))
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.tsv").write_text(f"text\tlabel\n{rows}", encoding="utf-8")
    flags = finetune_flags(tmp_path, place / "untrained")
    run("pipelines.finetune", *flags, f"--output_dir={tmp_path}/tuned")
    seed, saved = tmp_path / "tuned/seed_12345", tmp_path / "saved"
    for model in (tmp_path / "model", seed):
        assert AlbertTokenizer.load(str(model)).encode_batch(WORDS) == ids
    flags = f"--input_file={tmp_path}/test.tsv", f"--output_file={tmp_path}/predicted.tsv"
    run("pipelines.predict", f"--model={seed}", *flags)
    predicted = [float(row["probability_0"]) for row in read_tsv(tmp_path / "predicted.tsv")]
    assert all(a != b for a, b in zip(predicted[::2], predicted[1::2]))

    run("export.export_saved_model", f"--checkpoint={seed}", f"--output={saved}")
    import_tensorflow_text()
    loaded = tf.saved_model.load(f"{saved}/1")
    texts, no_pairs = tf.constant(WORDS), tf.constant([""] * len(WORDS))
    answers = loaded.signatures["tokenize"](text=texts, text_pair=no_pairs)
    rows = tf.ragged.boolean_mask(answers["input_ids"], answers["input_mask"] == 1).to_list()
    assert [row[1:-1] for row in rows] == ids
    answers = loaded.signatures["serving_default"](text=texts)
    assert answers["probabilities"][:, 0].numpy() == pytest.approx(predicted, abs=1e-5)
    files = f"--checkpoint={seed}", f"--output={tmp_path}/toy.tflite"
    run("export.convert", "--format=tflite", *files)
    assert SETTINGS.items() <= json.loads((tmp_path / "toy.tflite.json").read_text()).items()
