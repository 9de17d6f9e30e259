import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data import masking
from pipelines.data.examples import ExampleOptions
from pipelines.data.masking import mask_ngrams, unmask
from pipelines.data.sentence_pairs import SENTENCE_OBJECTIVES, choose_pairs, lay_out
from tests.pipelines.data.small_records import as_tensors, stand_in_tokenizer

VOCAB, MASK_ID, CLS, SEP = 101, 4, 2, 3
WORD_STARTS = np.arange(VOCAB) % 3 != 0  # a third of the pieces continue a word
TOKENIZER = stand_in_tokenizer(WORD_STARTS)


def make_batch(lengths, seq_len, seed, word_starts=0.67):
    """[CLS] A [SEP] B [SEP] of random pieces, a share of which begins a word; (n, 0) has no B."""
    rng = np.random.default_rng(seed)
    ids = np.zeros([len(lengths), seq_len], np.int32)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for row, (a, b) in enumerate(lengths):
        begins = rng.random(a + b) < word_starts
        text = 3 * rng.integers(2, 33, a + b) + begins * rng.integers(1, 3, a + b)
        parts = [[CLS], text[:a], [SEP]] + ([text[a:], [SEP]] if b else [])
        joined = np.concatenate(parts)
        ids[row, : len(joined)] = joined
        mask[row, : len(joined)] = 1
        types[row, a + 2 : len(joined)] = 1
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}


def draw(rows, seq_len, predictions, seed):
    rng = np.random.default_rng(seed)
    widths = {"span_length": seq_len + 1, "span_order": seq_len + 1}
    widths.update(replace=predictions, replacement=predictions)
    return {name: rng.random((rows, width), np.float32) for name, width in widths.items()}


def apply(batch, predictions, prob=0.15, ngram=3, seed=0, draws=None, mask_rate=0.8):
    rows, seq_len = batch["input_mask"].shape
    draws = draws or draw(rows, seq_len, predictions, seed)
    tensors = ({name: tf.constant(v) for name, v in values.items()} for values in (batch, draws))
    of_batch, of_draws = tensors
    options = ExampleOptions(seq_len, predictions, prob, ngram, mask_rate)
    masked = mask_ngrams(of_batch, of_draws, options, TOKENIZER)
    return {name: value.numpy() for name, value in masked.items()}


@pytest.mark.parametrize("mask_rate", [1.0, 0.8, 0.0])
def test_shares_of_masks_random_pieces_and_kept_pieces(mask_rate):
    masked = apply(make_batch([(60, 60)] * 400, 123, seed=1), 18, seed=2, mask_rate=mask_rate)
    shown = np.take_along_axis(masked["input_word_ids"], masked["masked_lm_positions"], 1)
    real = masked["masked_lm_weights"] > 0
    shown, right = shown[real], masked["masked_lm_ids"][real]
    is_mask, is_kept = shown == MASK_ID, shown == right
    # 4 deviations of 7,000 draws are 0.02.
    assert is_mask.mean() == pytest.approx(mask_rate, abs=0.02 if mask_rate % 1 else 0)
    # A random piece is the right one in 1 of 96 cases.
    np.testing.assert_allclose(is_kept.mean(), (1 - mask_rate) / 2, atol=0.025)
    # A random piece is any but the control pieces.
    others = np.bincount(shown[~is_mask & ~is_kept], minlength=VOCAB)
    assert not others[:5].any()
    assert mask_rate or others[5:].min() > 0.5 * others[5:].mean()


def words_of(batch, row):
    """Returns the word number of every text piece of a row, from the rule's words: a slow copy."""
    length = batch["input_mask"][row].sum()
    first_sep = length - batch["input_type_ids"][row].sum() - 1
    words, word = {}, -1
    for position in range(1, length - 1):
        if position == first_sep:
            continue
        opens = position == 1 or position == first_sep + 1
        word += opens or bool(WORD_STARTS[batch["input_word_ids"][row, position]])
        words[position] = word
    return words


def check_row(before, masked, words, predictions, budget, seq_len):
    """Of one row; `before` are its pieces, `words` the number of each text position's word."""
    count = int(masked["masked_lm_weights"].sum())
    positions = masked["masked_lm_positions"]
    assert (masked["masked_lm_weights"] == (np.arange(predictions) < count)).all()
    assert (np.diff(positions[:count]) > 0).all()
    assert not positions[count:].any() and not masked["masked_lm_ids"][count:].any()
    assert 1 <= count <= budget
    chosen = set(positions[:count].tolist())
    assert chosen <= set(words), "a special piece or padding is predicted"
    pieces_of = {}
    for position, word in words.items():
        pieces_of.setdefault(word, set()).add(position)
    touched = {words[position] for position in chosen}
    for word in touched:
        # A word is cut only if it is the only one, and longer than the budget.
        assert pieces_of[word] <= chosen or (touched == {word} and len(pieces_of[word]) > budget)
    if count < budget and predictions + masking._MARGIN >= seq_len:
        # All pieces were looked at: there was no other word of one piece.
        assert {word for word, pieces in pieces_of.items() if len(pieces) == 1} <= touched
    now = masked["input_word_ids"]
    same = np.ones(seq_len, bool)
    same[list(chosen)] = False
    assert (now == before)[same].all()
    assert (now[now != before] >= MASK_ID).all(), "a control piece was put in"


sentence = st.lists(st.integers(6, VOCAB - 1), min_size=1, max_size=6)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.lists(sentence, min_size=1, max_size=5), min_size=1, max_size=5),
    st.sampled_from(list(SENTENCE_OBJECTIVES)),
    st.integers(0, 2**31),
    st.integers(1, 34),
    st.sampled_from([0.0, 0.08, 0.15, 0.5, 1.0]),
    st.integers(1, 5),
    st.sampled_from([0.2, 0.6, 1.0]),
)
def test_unmasking_restores_pairs(segments, objective, seed, predictions, prob, ngram, word_starts):
    seq_len, rows = 37, len(segments)
    rng = np.random.default_rng(seed)
    # Some pieces more continue a word: multiples of three.
    segments = [
        [[p - p % 3 * (rng.random() > word_starts) for p in s] for s in segment]
        for segment in segments
    ]
    texts = as_tensors(segments)
    split_draws, change_draws = tf.constant(rng.random([2, rows], np.float32))
    pairs = choose_pairs(texts, split_draws, change_draws, SENTENCE_OBJECTIVES[objective], seq_len)
    before = lay_out(pairs, texts, seq_len, CLS, SEP)
    before = {name: values.numpy() for name, values in before.items()}
    masked = apply(before, predictions, prob, ngram, seed)
    np.testing.assert_array_equal(unmask(masked), before["input_word_ids"])
    for row in range(rows):
        budget = min(predictions, max(1, round(prob * before["input_mask"][row].sum())))
        of_row = {name: values[row] for name, values in masked.items()}
        words = words_of(before, row)
        # The segment's own pieces and no other are text (with nsp the second is another's).
        special = set(np.flatnonzero(np.isin(before["input_word_ids"][row], [0, CLS, SEP])))
        assert set(words) == set(range(seq_len)) - special
        check_row(before["input_word_ids"][row], of_row, words, predictions, budget, seq_len)


def choose(words, lengths, orders, begin, predictions, prob):
    """Returns the positions that are predicted in a row, from its text piece `begin` on.

    `words` are the piece counts of the words of A and of B.
    """
    pieces = [[7] + [6] * (count - 1) for count in words[0] + words[1]]  # 6 continues a word
    in_a, text = sum(words[0]), np.array(sum(pieces, []))
    seq_len = len(text) + 3
    batch = {
        "input_word_ids": np.concatenate([[CLS], text[:in_a], [SEP], text[in_a:], [SEP]])[None],
        "input_mask": np.ones([1, seq_len], np.int32),
        "input_type_ids": (np.arange(seq_len) > in_a + 1)[None],
    }
    batch = {name: values.astype(np.int32) for name, values in batch.items()}
    draws = draw(1, seq_len, predictions, 0)
    # The middles of the intervals of lengths 1, 2, 3: 6/11, 3/11, 2/11.
    draws["span_length"][0, : len(lengths)] = [{1: 0.27, 2: 0.68, 3: 0.91}[n] for n in lengths]
    draws["span_order"][0, : len(orders)] = orders
    draws["span_order"][0, -1] = (begin + 0.5) / len(text)
    masked = apply(batch, predictions, prob, draws=draws)
    return masked["masked_lm_positions"][0, masked["masked_lm_weights"][0] > 0].tolist()


# Positions:  1 _the  2 _quick 3 ly  4 _fox  5 [SEP]  6 _ran  7 _off: spans of 2, 1, 3.
FOX = ([1, 2, 1], [1, 1]), [2, 1, 3]
ORDERS = [0.7, 0.2, 0.4]
# 2 + 12 pieces are ranked: a word of one, four of three, and the first of another three.
LONG = ([1, 3, 3, 3, 3, 3, 3], [3]), [1] * 8, [n / 10 for n in range(8)]
# Three words drawn, two before [SEP] and one behind, which is a span of its own.
ACROSS = ([1, 2], [2, 1, 1]), [3, 2], [0.1, 0.9, 0.5]
TWO_LONG_WORDS = ([3], [2]), [1, 1], [0.5, 0.6]


def test_worked_examples():
    for words, lengths, orders, begin, predictions, prob, expected in (
        # Whole spans in order.
        (*FOX, ORDERS, 3, 3, 1.0, [4, 6, 7]),
        # Begun inside a span, what is left of it counts. At `ly` two of the budget of 3 remain:
        # _fox, _ran _off are taken, as the last one's first piece lies within.
        (*FOX, ORDERS, 2, 3, 1.0, [4, 6, 7]),
        # At `_quick`: one remains, so _fox alone; what is missing is filled with _ran, _off.
        (*FOX, ORDERS, 1, 3, 1.0, [4, 6, 7]),
        (*FOX, ORDERS, 1, 2, 1.0, [4, 6]),
        # Too many drop a span of one piece: _fox, for the first two words.
        (*FOX, [0.3, 0.2, 0.9], 3, 3, 1.0, [1, 2, 3]),
        # Nothing to drop cuts the last span to whole words: it has three pieces and ends in a word
        # of two. A budget of 2 has room for _the, and for the next word of one piece.
        (*FOX, ORDERS, 0, 2, 1.0, [1, 4]),
        # No word fits.
        (*TWO_LONG_WORDS, 0, 1, 0.15, [1]),
        (*TWO_LONG_WORDS, 3, 1, 0.15, [5]),
        (*TWO_LONG_WORDS, 0, 2, 0.3, [1, 2]),
        # A word that is not looked at as a whole fills nothing.
        (*LONG, 0, 2, 0.5, [1]),
        # No span crosses the separator. Both words of A fill a budget of 3; with one of 5 the span
        # of two in B is taken, not the word that was drawn with those of A.
        (*ACROSS, 0, 3, 1.0, [1, 2, 3]),
        (*ACROSS, 0, 5, 1.0, [1, 2, 3, 7, 8]),
    ):
        assert masking._MARGIN == 12
        assert choose(words, lengths, orders, begin, predictions, prob) == expected
    # The highest draw begins at the last piece.
    highest = np.nextafter(np.float32(1), np.float32(0))
    for count in (1, 2, 30, 59):
        begin = highest * (count + 1) - 0.5
        assert choose(([1] * count, [1]), [1] * (count + 1), [], begin, 1, 0.01) == [count + 2]


@pytest.mark.parametrize(
    ("length", "predictions", "prob", "expected"),
    [(90, 20, 0.15, 14), (96, 20, 0.15, 14), (97, 20, 0.15, 15), (96, 9, 0.15, 9), (10, 9, 0.15, 2),
     (6, 9, 0.15, 1), (5, 9, 0.05, 1)],
)  # fmt: skip
def test_budget(length, predictions, prob, expected):
    """Half of an odd number rounds to even, as in the reference: 13.5 and 14.4 are 14, 1.5 is 2."""
    batch = make_batch([(2, length - 5)], 99, 1, word_starts=1.0)
    assert apply(batch, predictions, prob)["masked_lm_weights"].sum() == expected


def test_every_position_is_predicted_as_often_and_longer_ngrams_are_rarer():
    rows, length = 6000, 62
    batch = make_batch([(length - 2, 0)] * rows, 64, 3)
    positions = apply(batch, 9, ngram=3, seed=4)["masked_lm_positions"]
    hits = np.bincount(positions[positions > 0], minlength=64)[1 : length - 1]
    # Of the budget of 9; spans begin and end at the edges more often, by 3 %.
    expected = 9 * rows / len(hits)
    assert (abs(hits - expected) < 5 * expected**0.5 + 0.03 * expected).all()
    batch = {name: values[:1000] for name, values in batch.items()}
    batch["input_word_ids"][:, 1 : length - 1] = 7  # each piece is a word

    def touching(ngram):
        positions = apply(batch, 5, 5 / 64, ngram, seed=4)
        return (np.diff(positions["masked_lm_positions"], axis=1) == 1).mean()

    assert touching(1) < 0.1 < touching(2) < touching(3) < touching(4)
