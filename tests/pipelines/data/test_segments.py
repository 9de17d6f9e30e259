import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.segments import NO_ROOM, Segment, has_order, split_document

WORD_STARTS = [i % 3 == 0 for i in range(30)]


def split(sentences, max_seq_length, short_seq_prob=0.0, seed=0, word_starts=WORD_STARTS):
    rng = random.Random(seed)
    return list(split_document(sentences, max_seq_length, short_seq_prob, word_starts, rng))


def test_worked_example():
    # Room for 5 pieces: a sentence that does not fit behind the others opens a segment.
    sentences = [[], [0, 1], [3, 4], [6, 7], [9] * 4]
    assert split(sentences, 8) == [
        ([0, 1, 3, 4], [0, 2], 0, True),
        ([6, 7], [0], 1, False),
        ([9] * 4, [0], 3, False),
    ]


def test_only_a_sentence_longer_than_any_segment_is_cut():
    # Before a word (3); its rest and the next sentence go on together.
    sentences = [[9], [0, 1, 1, 3, 4, 4, 1], [6], [9, 9]]
    assert split(sentences, 8) == [
        ([9], [0], 0, True),
        ([0, 1, 1], [0], 4, False),
        ([3, 4, 4, 1, 6], [0, 4], NO_ROOM, False),
        ([9, 9], [0], 0, False),
    ]
    # A short target does not cut one; it has no room left.
    segments = split([[0, 1, 1], [3, 4]], 8, short_seq_prob=1.0, seed=1)
    assert segments == [([0, 1, 1], [0], 0, True), ([3, 4], [0], 0, False)]


def test_a_long_word_is_cut_at_the_piece():
    assert split([[0] + [1] * 11, [2]], 8) == [
        ([0, 1, 1, 1, 1], [0], 0, True),
        ([1] * 5, [0], NO_ROOM, False),
        ([1, 1, 2], [0, 2], NO_ROOM, False),
    ]


@pytest.mark.parametrize(
    ("starts", "room", "expected"),
    [
        ([0, 2, 4], 0, True),
        ([0, 2, 4], 2, True),  # of 2, 2 and 3 pieces: the last would not have fitted
        ([0, 2, 4], 3, False),
        ([0, 5], 2, False),  # the first alone would not have fitted
        ([0], 0, False),
        ([0, 2, 4], NO_ROOM, False),
    ],
)
def test_an_order_can_be_asked_where_two_sentences_can_open(starts, room, expected):
    assert has_order(Segment([5] * 7, starts, room, False)) is expected


@settings(max_examples=100, deadline=None)
@given(
    sentences=st.lists(st.lists(st.integers(0, 29), max_size=40), max_size=12),
    max_seq_length=st.integers(8, 50),
    short_seq_prob=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_no_piece_is_lost(sentences, max_seq_length, short_seq_prob, seed):
    segments = split(sentences, max_seq_length, short_seq_prob, seed)
    assert [p for segment in segments for p in segment.input_ids] == [
        p for sentence in sentences for p in sentence
    ]
    boundaries, offset = set(), 0
    for sentence in sentences:
        if sentence:
            boundaries.add(offset)
        offset += len(sentence)
    begin = 0
    for pieces, starts, room, opens in segments:
        assert opens == (begin == 0)
        end = begin + len(pieces)
        # What opens a segment, the rest of a sentence aside, did not fit before.
        assert (room == NO_ROOM) == (begin not in boundaries)
        assert room < min([at for at in boundaries if at > begin] + [offset]) - begin
        assert 1 <= len(pieces) <= max_seq_length - 3
        assert starts == sorted({0} | {at - begin for at in boundaries if begin <= at < end})
        begin = end
        # What ends inside a sentence is a part of one that is longer than any segment.
        if end not in boundaries and end != offset:
            assert len(starts) == 1 and len(pieces) > max_seq_length - 3 - 9


def test_takes_as_many_sentences_as_fit():
    sentences = [[0] + [1] * (n % 23) for n in range(200)]
    segments = split(sentences, 40)
    lengths = [len(sentence) for sentence in sentences]
    taken, room_left = 0, 0
    for pieces, starts, room_before, _ in segments:
        assert room_before == room_left
        room_left = 37 - len(pieces)
        count = len(starts)
        assert len(pieces) == sum(lengths[taken : taken + count]) <= 37
        taken += count
        assert taken == len(lengths) or len(pieces) + lengths[taken] > 37


def test_short_targets_are_drawn_for_each_segment_uniformly():
    everywhere = [True] * 30
    document = [[0]] * 300_000
    lengths = [len(s.input_ids) for s in split(document, 13, 0.25, word_starts=everywhere)][:-1]
    # Targets of 2 to 10; 10 comes of the long ones too.
    expected = {n: 0.25 / 9 + 0.75 * (n == 10) for n in range(2, 11)}
    for length, share in expected.items():
        sigma = (share * (1 - share) / len(lengths)) ** 0.5
        assert lengths.count(length) / len(lengths) == pytest.approx(share, abs=4 * sigma)


def test_reads_the_document_as_it_goes():
    def endless():
        while True:
            yield [0, 1, 1]

    segments = split_document(endless(), 16, 0.1, WORD_STARTS, random.Random(0))
    assert len([next(segments) for _ in range(5)]) == 5
