import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import scoring
from albert_tf.models import AlbertForPreTraining
from albert_tf.scoring import SentenceScorer, TextEmbedder
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from tests.builders import tiny_config
from tests.conftest import make_text

WORDS = make_text(2, seed=5).translate(str.maketrans("", "", ".?!")).split()
TEXTS = ["", WORDS[0], "zzq xw zzzqx", " ".join(WORDS[:30]), " ".join(WORDS[3:9])]
TEXTS += ["ᚠᛇᚻ 한국어 नमस्ते ﬁ", "👩\u200d👩\u200d👧."]


@pytest.fixture(scope="module")
def tokenizer(pretrained):
    return AlbertTokenizer.load(str(pretrained))


@pytest.fixture(scope="module")
def model(pretrained):
    return albert_tf.from_pretrained(pretrained)[0]


def by_hand(model, tokenizer, text, masks_rest_of_word=True):
    """Masks each piece in a row of its own; all rows are the whole text, so none is padded."""
    if not text:
        return np.nan
    ids = np.array([tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id])
    starts, places = tokenizer.word_starts(), np.arange(1, len(ids) - 1)
    rows = np.tile(ids, [len(places), 1])
    for row, place in zip(rows, places):
        row[place] = tokenizer.mask_id
        rest = place + 1
        while masks_rest_of_word and rest < len(ids) - 1 and not starts[ids[rest]]:
            row[rest] = tokenizer.mask_id
            rest += 1
    inputs = {"input_word_ids": rows, "masked_lm_positions": places[:, np.newaxis]}
    log_probs = tf.nn.log_softmax(model(inputs)["masked_lm_logits"][:, 0]).numpy()
    return log_probs[places - 1, ids[places]].sum()


def test_scores_equal_those_by_hand(model, tokenizer, monkeypatch):
    monkeypatch.setattr(scoring, "PIECES_PER_BATCH", 100)
    scorer = SentenceScorer(model, tokenizer)
    scored = []
    found = scorer.score_pieces(scorer.encode(TEXTS), scored.append)
    expected = [by_hand(model, tokenizer, text) for text in TEXTS]
    np.testing.assert_allclose([s.log_likelihood for s in found], expected, rtol=1e-5, atol=1e-4)
    pieces = [len(tokenizer.encode(text)) for text in TEXTS]
    assert [s.num_pieces for s in found] == pieces and scored[-1] == sum(pieces)
    assert [s.num_words for s in found[:5]] == [len(text.split()) for text in TEXTS[:5]]
    assert scorer(["he, too."])[0].num_words == 4
    assert len(scored) > 3, "one batch hides padding"
    other = by_hand(model, tokenizer, TEXTS[2], masks_rest_of_word=False)
    assert abs(other - expected[2]) > 1e-3, "nothing to tell the two apart by"


def test_models_that_have_no_masked_lm_of_these_pieces(model, tokenizer):
    with pytest.raises(UserError, match="expected an AlbertForPreTraining, got AlbertEncoder"):
        SentenceScorer(model.encoder, tokenizer)
    with pytest.raises(UserError, match="expected a model with an encoder, got AlbertEncoder"):
        TextEmbedder(model.encoder, tokenizer)
    other = AlbertForPreTraining(tiny_config(vocab_size=tokenizer.vocab_size - 1))
    for kind in (SentenceScorer, TextEmbedder):
        with pytest.raises(UserError, match=rf"has {other.config.vocab_size} pieces, the tokeni"):
            kind(other, tokenizer)
    with pytest.raises(UserError, match="pooling 'max': expected one of mean, cls"):
        TextEmbedder(model, tokenizer, "max")


def test_a_text_as_long_as_the_model_reads_and_one_that_is_longer(model, tokenizer):
    room = model.config.max_position_embeddings - 2
    words = " ".join(WORDS * 9).split()
    longest = max(n for n in range(1, 99) if len(tokenizer.encode(" ".join(words[:n]))) <= room)
    scorer, text = SentenceScorer(model, tokenizer), " ".join(words[:longest])
    [score] = scorer([text])
    assert score.num_pieces > room - 9
    np.testing.assert_allclose(score.log_likelihood, by_hand(model, tokenizer, text), 1e-5)
    for kind in (SentenceScorer, TextEmbedder):
        with pytest.raises(UserError, match="expected a list of texts, got dict: pass a column"):
            kind(model, tokenizer)({"text": ["a"]})
    problem = rf"^texts\[1\]: '{WORDS[0]}.* pieces, but the model reads {room}"
    with pytest.raises(UserError, match=problem):
        scorer(["one", " ".join(words[:99])])
    with pytest.raises(UserError, match=r"texts\[1\]: expected a string, got None"):
        scorer(["one", None])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_embeddings_equal_those_by_hand(model, tokenizer, pooling, monkeypatch):
    monkeypatch.setattr(scoring, "PIECES_PER_BATCH", 100)
    long = " ".join(WORDS * 9)
    texts = [*TEXTS[:4], long]
    found = TextEmbedder(model, tokenizer, pooling)(texts)
    for vector, text in zip(found, texts):
        room = model.config.max_position_embeddings - 2
        ids = [tokenizer.cls_id, *tokenizer.encode(text)[:room], tokenizer.sep_id]
        output = model.encoder({"input_word_ids": tf.constant([ids])})["sequence_output"][0]
        expected = output[0] if pooling == "cls" else tf.reduce_mean(output, axis=0)
        np.testing.assert_allclose(vector, expected, atol=1e-5)
    assert TextEmbedder(model, tokenizer)([]).shape == (0, model.config.hidden_size)
