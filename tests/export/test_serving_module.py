"""Answers from text equal the model's, for any text; every signature is as its table says."""

import dataclasses
import random
import re
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.models import AlbertForPreTraining
from albert_tf.text.packing import FEATURES, Packer
from albert_tf.text.tokenization import AlbertTokenizer
from export.modules.pretraining_module import EncoderModule, PreTrainingModule
from export.signatures import MAX_MASKS, NUM_CANDIDATES
from tests import sentences
from tests.export.conftest import MAX_SEQ_LENGTH
from tests.export.task_models import call

SHORT = "The quick fox jumps over a lazy dog."
LONG = "the quick brown fox jumps over a lazy dog while seven small birds sing " * 9


def ask(loaded, signature, **inputs):
    return call(loaded.signatures[signature], inputs)


def packed(first, second, special, max_seq_length=MAX_SEQ_LENGTH):
    """The reference's packing, piece by piece."""
    first, second = list(first), list(second)
    while len(first) + len(second) > max_seq_length - (3 if second else 2):
        (first if len(first) > len(second) else second).pop()
    ids = [special.cls_id, *first, special.sep_id]
    types = [0] * len(ids)
    if second:
        ids += [*second, special.sep_id]
        types += [1] * (len(second) + 1)
    return ids, types


def check_packed(tokens, rows, seq_len, pad_id=0):
    """Compares ids, masks and segments, in this order, with rows of `packed`, padded."""
    columns = zip(*((ids, [1] * len(ids), types) for ids, types in rows))
    for values, column, padding in zip(tokens, columns, (pad_id, 0, 0)):
        assert values.dtype == tf.int32
        expected = [row + [padding] * (seq_len - len(row)) for row in column]
        assert values.numpy().tolist() == expected


def alone(model, ids, types, positions=(0,)):
    """The model's answers to one example without padding."""
    names = ("input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions")
    values = (ids, [1] * len(ids), types, list(positions))
    inputs = {name: tf.constant([value], tf.int32) for name, value in zip(names, values)}
    return {**model.encoder(inputs), **model(inputs)}


@pytest.mark.parametrize("max_seq_length", [MAX_SEQ_LENGTH, MAX_SEQ_LENGTH + 1])
def test_packing_is_the_references(tokenizer, max_seq_length):
    lengths = [(0, 0), (0, 70), (70, 0), (70, 70), (9, 3), (33, 70), (70, 17), (17, 18), (35, 1)]
    firsts, seconds = zip(*((range(100, 100 + a), range(200, 200 + b)) for a, b in lengths))
    ragged = [
        tf.ragged.constant([*map(list, side)], tf.int32, row_splits_dtype=tf.int64)
        for side in (firsts, seconds)
    ]
    packer = Packer(tokenizer, max_seq_length)
    tokens = packer.truncate_and_pack(*ragged, ragged[1].row_lengths() > 0)
    rows = [packed(a, b, tokenizer, max_seq_length) for a, b in zip(firsts, seconds)]
    check_packed([tokens[name] for name in FEATURES], rows, max_seq_length)


def test_texts_are_answered_as_the_model_answers_them_alone(loaded, model, tokenizer, module):
    pairs = [(SHORT, "Birds sing."), (SHORT, ""), ("", SHORT), (LONG, SHORT), (LONG, LONG)]
    pairs += [("", ""), (SHORT, " ")]
    texts, text_pairs = zip(*pairs)
    answers = ask(loaded, "serving_default", text=texts, text_pair=text_pairs)
    for row, (a, b) in enumerate(pairs):
        expected = alone(model, *packed(tokenizer.encode(a), tokenizer.encode(b), tokenizer))
        in_order = tf.nn.softmax(expected["sentence_order_logits"])[0, 0] if b.strip() else 0.5
        mean = tf.reduce_mean(expected["sequence_output"], axis=1)[0]
        np.testing.assert_allclose(answers["in_order_probability"][row], in_order, atol=1e-5)
        np.testing.assert_allclose(answers["mean_pooled_output"][row], mean, atol=1e-5)
        pooled = expected["pooled_output"][0]
        np.testing.assert_allclose(answers["pooled_output"][row], pooled, atol=1e-5)
    rows = [packed(tokenizer.encode(a), tokenizer.encode(b), tokenizer)[0] for a, b in pairs]
    shares = tokenizer.unknown_shares(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))
    np.testing.assert_allclose(answers["unknown_share"], shares, atol=1e-7)
    # Random weights that answered alike would prove nothing.
    assert np.ptp(answers["in_order_probability"]) > 1e-2
    served = dataclasses.replace(module.served, kind="encoder")
    of_encoder = EncoderModule(model.encoder, served).serving_default(tf.constant(texts))
    without_pairs = ask(loaded, "serving_default", text=texts, text_pair=[""] * len(texts))
    assert of_encoder.keys() == without_pairs.keys() - {"in_order_probability"}
    for name, values in of_encoder.items():
        np.testing.assert_allclose(values, without_pairs[name], atol=1e-5, err_msg=name)


def test_a_model_of_one_segment_type_reads_no_pairs(model, module):
    config = dataclasses.replace(model.config, type_vocab_size=1)
    module = PreTrainingModule(AlbertForPreTraining(config), module.served)
    module.model.create_variables()
    assert list(module.signatures["serving_default"].inputs) == ["text"]
    tokens = module.tokenize(tf.constant([SHORT, SHORT]), tf.constant(["", SHORT]))
    errors = module._on_good_rows(module.pooled, **tokens)["error"].numpy()
    assert errors.tolist() == [b"", b"segment_ids must be 0 to 0"]


def around_masks(text, tokenizer, ids_of):
    """Pieces of a text with [MASK]; what touches one behind it begins no word."""
    ids = []
    for number, part in enumerate(text.split("[MASK]")):
        pieces = tokenizer.encode(part)
        if number:
            ids.append(tokenizer.mask_id)
            is_apart = part[:1] in "\t\n\f\r" or unicodedata.category(part[0]).startswith("Z")
            if pieces and not is_apart:
                inside = tokenizer.id_to_piece(pieces[0]).removeprefix("▁")
                pieces[:1] = [ids_of.get(inside, pieces[0])] if inside else []
        ids += pieces
    return ids


def test_masks_are_filled_as_the_model_predicts_them(loaded, model, tokenizer):
    texts = ["The [MASK] fox", "[MASK][MASK]", "dog [MASK]s, [MASK]. " + SHORT, "é\u3000[MASK]"]
    answers = ask(loaded, "fill_mask", text=texts)
    ids_of = {tokenizer.id_to_piece(i): i for i in range(tokenizer.vocab_size)}
    for row, text in enumerate(texts):
        ids, types = packed(around_masks(text, tokenizer, ids_of), [], tokenizer)
        masks = [place for place, i in enumerate(ids) if i == tokenizer.mask_id]
        assert len(masks) == answers["num_masks"][row] == text.count("[MASK]")
        [logits] = alone(model, ids, types, masks)["masked_lm_logits"]
        best = tf.math.top_k(tf.nn.softmax(logits), NUM_CANDIDATES)
        found = (answers[name][row, : len(masks)] for name in ("probabilities", "pieces"))
        np.testing.assert_allclose(next(found), best.values, atol=1e-5)
        pieces = [[tokenizer.id_to_piece(i).encode() for i in of] for of in best.indices.numpy()]
        assert next(found).tolist() == pieces


def test_masks_anywhere_are_tokenized_as_in_python(module, tmp_path, nasty):
    lines = b"\n".join(path.read_bytes() for path in sorted(nasty.glob("*.*")) if path.is_file())
    lines = {line[:500] for line in lines.decode("utf-8", "ignore").split("\n")}
    texts = [*sentences.lines(), *sorted(lines)]
    rng = random.Random(2)
    places = [(text, rng.randint(0, min(len(text), 40))) for text in texts]
    # And before all white space but the plain one.
    places += [(text, space.start()) for text in texts for space in re.finditer(r"[^\S ]", text)]
    masked = [f"{text[:place]}[MASK]{text[place:]}" for text, place in places]
    masked += [f"[MASK]{text} [MASK]" for text in texts[:40]]
    many = AlbertTokenizer(str(sentences.train_vocabulary(tmp_path)))
    for tokenizer in (module.served.tokenizer, many):
        served = dataclasses.replace(module.served, tokenizer=tokenizer)
        of_text = PreTrainingModule(module.model, served)._tokenize_around_masks
        ids_of = {tokenizer.id_to_piece(i): i for i in range(tokenizer.vocab_size)}
        for text, ids in zip(masked, of_text(tf.constant(masked)).to_list()):
            expected = around_masks(text, tokenizer, ids_of)
            assert ids[:MAX_SEQ_LENGTH] == expected[:MAX_SEQ_LENGTH], text


def test_masks_past_the_longest_length_or_the_most_of_a_text_are_cut_off(loaded):
    most = ["a[MASK]" * 16, "[MASK]" * MAX_MASKS, "[MASK]" * (MAX_MASKS + 1)]
    broken = [b"caf\xe9 [MASK]", "caf\ufffd [MASK]"]
    answers = ask(loaded, "fill_mask", text=["[MASK]" * 50, LONG + "[MASK]", "", *most, *broken])
    expected = [MAX_MASKS, 0, 0, 16, MAX_MASKS, MAX_MASKS, 1, 1]
    assert answers["num_masks"].tolist() == expected
    assert (answers["pieces"] != b"").all(axis=2).sum(axis=1).tolist() == expected
    # Bytes that are no UTF-8 are read as replacement characters.
    np.testing.assert_allclose(*answers["probabilities"][-2:], atol=1e-5)
    assert ask(loaded, "fill_mask", text=[])["pieces"].shape == (0, MAX_MASKS, NUM_CANDIDATES)


def test_token_signatures_are_the_models_answers(loaded, model, tokenizer):
    ids, types = packed(tokenizer.encode(SHORT), tokenizer.encode("Birds sing."), tokenizer)
    tokens = {"input_ids": ids, "input_mask": [1] * len(ids), "segment_ids": types}
    # The same example twice, once with padding of nonsense ids that nothing may see.
    tokens = {name: [row + [3 * (name == "input_ids")] * 4] * 2 for name, row in tokens.items()}
    positions = [5, 1, 0]
    expected = alone(model, ids, types, positions)
    expected["mlm_logits"] = expected["masked_lm_logits"]
    expected["sop_log_probs"] = tf.nn.log_softmax(expected["sentence_order_logits"])
    for signature in ("tokens", "pooled", "mlm", "sop"):
        given = {"mlm_positions": [positions] * 2} if signature == "mlm" else {}
        answers = ask(loaded, signature, **tokens, **given)
        assert not any(answers.pop("error"))
        for name, rows in answers.items():
            value, atol = expected[name][0], 1e-4 if name == "mlm_logits" else 1e-5
            for row in rows:
                np.testing.assert_allclose(row[: len(value)], value, atol=atol, rtol=1e-5)
