"""Saved pre-trained models answer elsewhere as they do here, from raw text: `make test-extras`."""

import random

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from export.loading import open_checkpoint
from export.modules.pretraining_module import PreTrainingModule
from tests import marks
from tests.builders import write_pretrained
from tests.conftest import WORDS
from tests.test_readmes import FENCE, PAGES

pytestmark = pytest.mark.slow


@pytest.fixture(params=marks.KINDS)
def saved(request, tmp_path):
    """Returns the model, its tokenizer, and the directory of save_pretrained."""
    write_pretrained(tmp_path / "ours", marks.write_vocabulary(tmp_path, request.param))
    model, tokenizer = albert_tf.from_pretrained(tmp_path / "ours")
    albert_tf.save_pretrained(model, tokenizer, tmp_path / "theirs")
    return model, tokenizer, str(tmp_path / "theirs")


@pytest.mark.extras("torch", "transformers")
def test_the_code_on_the_page_computes_our_outputs(saved, tmp_path, monkeypatch):
    model, tokenizer, _ = saved
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs").rename("for_the_hub")
    [code] = [c for _, c in FENCE.findall(PAGES["pipelines/README.md"]) if "AutoModel" in c]
    names = {}
    exec(code, names)
    ours = model.encoder(tokenizer(["Birds sing.", "Who sings?"]))["pooled_output"]
    np.testing.assert_allclose(names["embeddings"], ours, atol=1e-5)
    assert len(names["answers"]) == 5


@pytest.mark.extras("torch", "transformers")
def test_scores_equal_a_loop_of_transformers(saved):
    import torch
    import transformers

    model, tokenizer, directory = saved
    rng = random.Random(3)
    texts = ["a", "?", "ᚠᛇᚻ 한국어 ភាសា नमस्ते ﬁ", "👩\u200d👩\u200d👧, Ünïcödé!", "中文 text 1,234"]
    texts += marks.texts(3, 95, 5)
    longest = " ".join(rng.choices(WORDS, k=60))
    while len(tokenizer.encode(longest)) > 62:
        longest = longest[:-1].rstrip()
    texts.append(longest)
    theirs = transformers.AlbertForMaskedLM.from_pretrained(directory).eval()
    pieces_of = transformers.AutoTokenizer.from_pretrained(directory)
    starts = tokenizer.word_starts()

    def score(text):
        [ids] = pieces_of(text, return_tensors="pt")["input_ids"]
        places = torch.arange(1, len(ids) - 1)
        rows = ids.repeat(len(places), 1)
        for row, place in zip(rows, places):
            rest = place + 1
            while rest < len(ids) - 1 and not starts[ids[rest]]:
                rest += 1
            row[place:rest] = pieces_of.mask_token_id
        with torch.no_grad():
            logits = theirs(rows).logits
        log_probs = logits[torch.arange(len(places)), places].log_softmax(-1).double()
        return float(log_probs.gather(1, ids[places][:, None]).sum())

    scorer = albert_tf.SentenceScorer(model, tokenizer)
    found = [one.log_likelihood for one in scorer(texts)]
    np.testing.assert_allclose(found, list(map(score, texts)), 1e-6, 1e-4)


@pytest.mark.extras("torch", "transformers")
def test_masks_are_filled_as_served(saved, tmp_path):
    import transformers

    model, tokenizer, directory = saved
    places = ("the [MASK].", '"[MASK]" they sing', "old-[MASK] trees", "[MASK]-boats")
    texts = [f"{text} {place}" for text, place in zip(marks.texts(4, 20, 3), places * 5)]
    module = PreTrainingModule(model, open_checkpoint(str(tmp_path / "ours"), None, 64))
    served = module.fill_mask(tf.constant(texts))
    pipeline = transformers.pipeline("fill-mask", model=directory, device="cpu")
    for place, text in enumerate(texts):
        found = pipeline(text, top_k=served["pieces"].shape[-1])
        pieces = [tokenizer.id_to_piece(answer["token"]) for answer in found]
        assert pieces == [piece.decode() for piece in served["pieces"][place, 0].numpy()], text
        scores = [answer["score"] for answer in found]
        np.testing.assert_allclose(scores, served["probabilities"][place, 0], atol=1e-5)


@pytest.mark.extras("torch", "sentence_transformers")
def test_sentence_transformers_embeds_alike(saved):
    import sentence_transformers

    model, tokenizer, directory = saved
    texts = marks.texts(5, 50, 5)
    found = sentence_transformers.SentenceTransformer(directory, device="cpu").encode(texts)
    expected = albert_tf.TextEmbedder(model, tokenizer)(texts)
    np.testing.assert_allclose(found, expected, atol=1e-5)
