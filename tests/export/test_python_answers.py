"""A SavedModel's answers to real and nasty text are those of Python.

AlbertTokenizer and the model compute what is expected, each text without padding: nothing of what
was saved has a part in it.
"""

from __future__ import annotations

import dataclasses
import random
import unicodedata
from collections import defaultdict

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import model_directory
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.tokenization import AlbertTokenizer
from export.loading import load_module, open_checkpoint
from export.signatures import NUM_CANDIDATES
from export.verify import _certain_ranks, _example
from tests import sentences
from tests.export.task_models import CONFIG
from tests.export.test_serving_module import packed

LONGEST = 43
LINES_PER_LANGUAGE = 12
# In characters; Python's tokenizer and the graph's are compared further elsewhere.
LONGEST_LINE = 2_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["own", pytest.param("real", marks=pytest.mark.shared)])
def vocabulary(request, tmp_path_factory):
    """A vocabulary of the tests' own sentences, and the published one with real text."""
    if request.param == "own":
        return sentences.train_vocabulary(tmp_path_factory.mktemp("vocabulary"))
    return request.getfixturevalue("shared") / "data/albert_spiece_30k/30k-clean.model"


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return AlbertTokenizer(str(vocabulary))


@pytest.fixture(scope="module")
def texts(request, vocabulary, nasty):
    """Lines of nine languages, and all lines of the nasty files that are text; each once."""
    lines = []
    if vocabulary.stem == "sentences":
        lines += sentences.lines()
    else:
        data = request.getfixturevalue("shared") / "data"
        for path in sorted((data / "multilingual").glob("*.txt")):
            found = path.read_text(encoding="utf-8").splitlines()
            found = [line for line in found if line.strip()]
            lines += random.Random(1).sample(found, LINES_PER_LANGUAGE)
    lines += ["The quick brown fox, at 10,000 feet, isn't lazy.", "“Nobody knocked,” he said —"]
    for path in sorted(p for p in nasty.iterdir() if p.is_file()):
        for line in path.read_bytes().split(b"\n"):
            try:
                lines.append(line[:LONGEST_LINE].decode())
            except UnicodeDecodeError:
                continue
    lines = list(dict.fromkeys(lines))
    assert len(lines) > 280
    return lines


@pytest.fixture(scope="module")
def pretrained(tokenizer, tmp_path_factory):
    """A model with random weights, and its SavedModels by kind."""
    config = dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size)
    model = AlbertForPreTraining(config)
    model.create_variables()
    rng = np.random.RandomState(5)
    for variable in model.variables:
        variable.assign_add(rng.normal(0, 0.3, variable.shape))
    directory = tmp_path_factory.mktemp("model")
    model_directory.save_for_pretraining(model, str(directory))
    tokenizer.save(str(directory))
    kinds = ("pretraining", "encoder")
    modules = [load_module(open_checkpoint(str(directory), kind, LONGEST)) for kind in kinds]
    return model, {module.kind: saved(module, directory / module.kind) for module in modules}


def saved(module, path):
    """Saves what answers to text or records; returns the signatures."""
    names = {"serving_default", "examples", "fill_mask"} & module.signatures.keys()
    functions = {name: module.function(name) for name in names}
    tf.saved_model.save(module, str(path), signatures=functions)
    return tf.saved_model.load(str(path)).signatures


def ask(signature, **inputs):
    tensors = {name: tf.constant(value, tf.string) for name, value in inputs.items()}
    return {name: t.numpy() for name, t in signature(**tensors).items()}


def by_length(rows):
    """Yields rows of equal length, and the model's inputs of them: no padding is needed."""
    places = defaultdict(list)
    for place, (ids, _) in enumerate(rows):
        places[len(ids)].append(place)
    for same in places.values():
        ids, types = (np.array([rows[i][part] for i in same], np.int32) for part in (0, 1))
        inputs = {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": types}
        yield same, {name: tf.constant(value) for name, value in inputs.items()}


def in_python(rows, compute):
    """Returns what `compute` answers to the model's inputs, for all rows."""
    answers = [{} for _ in rows]
    for same, inputs in by_length(rows):
        for name, values in compute(inputs).items():
            for place, value in zip(same, values.numpy()):
                answers[place][name] = value
    return {name: np.stack([answer[name] for answer in answers]) for name in answers[0]}


def embed(encoder, inputs):
    encoded = encoder(inputs)
    return {
        "pooled_output": encoded["pooled_output"],
        "mean_pooled_output": tf.reduce_mean(encoded["sequence_output"], axis=1),
    }


def embed_and_judge(model, inputs):
    embedded = embed(model.encoder, inputs)
    in_order = tf.nn.softmax(model.sentence_order(embedded["pooled_output"]))[:, 0]
    is_pair = tf.reduce_any(inputs["input_type_ids"] > 0, axis=1)
    return {"in_order_probability": tf.where(is_pair, in_order, 0.5), **embedded}


def with_unknown_share(expected, rows, tokenizer):
    row_splits = np.cumsum([0, *(len(ids) for ids, _ in rows)])
    pieces = np.concatenate([ids for ids, _ in rows])
    return {**expected, "unknown_share": tokenizer.unknown_shares(pieces, row_splits)}


def as_records(rows):
    """Serialized examples with padding, each with its own."""
    records = []
    for number, (ids, types) in enumerate(rows):
        columns = {"input_ids": ids, "input_mask": [1] * len(ids), "segment_ids": types}
        padding = [0] * (number % 5)
        records.append(_example({n: np.array([*v, *padding]) for n, v in columns.items()}))
    return records


def check(answers, expected):
    assert answers.keys() - {"error"} == expected.keys()
    assert not any(answers.get("error", []))
    for name, values in expected.items():
        assert np.ptp(values, axis=0).max() > 1e-2, "alike whatever the text: proves nothing"
        np.testing.assert_allclose(answers[name], values, atol=1e-5, err_msg=name)


def test_the_encoder_alone(pretrained, tokenizer, texts):
    model, signatures = pretrained
    rows = [packed(ids, [], tokenizer, LONGEST) for ids in tokenizer.encode_batch(texts)]
    expected = in_python(rows, lambda inputs: embed(model.encoder, inputs))
    expected = with_unknown_share(expected, rows, tokenizer)
    check(ask(signatures["encoder"]["serving_default"], text=texts), expected)
    check(ask(signatures["encoder"]["examples"], examples=as_records(rows)), expected)


def test_a_pretrained_model(pretrained, tokenizer, texts):
    model, signatures = pretrained
    encoded = tokenizer.encode_batch(texts)
    rows = [packed(*pair, tokenizer, LONGEST) for pair in zip(encoded, encoded[::-1])]
    expected = in_python(rows, lambda inputs: embed_and_judge(model, inputs))
    expected = with_unknown_share(expected, rows, tokenizer)
    answers = ask(signatures["pretraining"]["serving_default"], text=texts, text_pair=texts[::-1])
    check(answers, expected)
    check(ask(signatures["pretraining"]["examples"], examples=as_records(rows)), expected)


def around_masks(text, tokenizer, ids_of):
    """Pieces of a text with [MASK]; what touches one behind it begins no word."""
    ids = []
    for number, part in enumerate(text.split("[MASK]")):
        pieces = tokenizer.encode(part)
        if number:
            ids.append(tokenizer.mask_id)
            is_apart = part[:1] in "\t\n\f\r" or unicodedata.category(part[0]).startswith("Z")
            if pieces and not is_apart:
                first = tokenizer.id_to_piece(pieces[0])
                inside = first[1:] if first.startswith("▁") else first
                pieces[:1] = [ids_of.get(inside, pieces[0])] if inside else []
        ids += pieces
    return ids


def test_masks(pretrained, tokenizer, texts):
    model, signatures = pretrained
    ids_of = {tokenizer.id_to_piece(i): i for i in range(tokenizer.vocab_size)}
    rng = random.Random(2)
    masked = []
    for text in texts:  # a mask anywhere, inside of words and at both ends too
        place = rng.randint(0, min(len(text), 40))
        masked.append(f"{text[:place]}[MASK]{text[place:]}")
    masked += ["[MASK]" + text + " [MASK]" for text in texts[:40]]
    rows = [
        packed(around_masks(text, tokenizer, ids_of), [], tokenizer, LONGEST) for text in masked
    ]
    answers = ask(signatures["pretraining"]["fill_mask"], text=masked)
    count = [row.count(tokenizer.mask_id) for row, _ in rows]
    assert answers["num_masks"].tolist() == count and max(count) > 1
    for same, inputs in by_length(rows):
        sequences = model.encoder(inputs)["sequence_output"]
        for place, sequence in zip(same, sequences):
            positions = np.flatnonzero(np.array(rows[place][0]) == tokenizer.mask_id)
            if not len(positions):
                continue
            logits = model.masked_lm(
                tf.gather(sequence, positions)[tf.newaxis], model.encoder.embeddings.word_embeddings
            )
            best = tf.math.top_k(tf.nn.softmax(logits[0]), NUM_CANDIDATES)
            probabilities = answers["probabilities"][place, : len(positions)]
            np.testing.assert_allclose(probabilities, best.values, atol=1e-5)
            certain = _certain_ranks(best.values.numpy())
            pieces = np.vectorize(tokenizer.id_to_piece)(best.indices.numpy())
            found = np.char.decode(answers["pieces"][place, : len(positions)].astype("S"), "utf-8")
            assert found[certain].tolist() == pieces[certain].tolist(), masked[place]
