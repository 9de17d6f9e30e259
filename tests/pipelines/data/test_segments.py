import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.segments import NO_ROOM, SHORTEST_RUN, cut_runs, split_document

WORD_STARTS = [i % 3 == 0 for i in range(30)]


def split(sentences, max_seq_length, short_seq_prob=0.0, seed=0, word_starts=WORD_STARTS):
    rng = random.Random(seed)
    return list(split_document(sentences, max_seq_length, short_seq_prob, word_starts, rng))


def test_worked_examples():
    # Room for 5 pieces: a sentence that does not fit behind the others opens a segment.
    assert split([[], [0, 1], [3, 4], [6, 7], [9] * 4], 8) == [
        ([0, 1, 3, 4], [0, 2], 0, True),
        ([6, 7], [0], 1, False),
        ([9] * 4, [0], 3, False),
    ]
    # Only a sentence longer than any segment is cut, before a word (3); its rest and the next
    # sentence go on together.
    assert split([[9], [0, 1, 1, 3, 4, 4, 1], [6], [9, 9]], 8) == [
        ([9], [0], 0, True),
        ([0, 1, 1], [0], 4, False),
        ([3, 4, 4, 1, 6], [0, 4], NO_ROOM, False),
        ([9, 9], [0], 0, False),
    ]
    # A long word is cut at the piece.
    assert split([[0] + [1] * 11, [2]], 8) == [
        ([0, 1, 1, 1, 1], [0], 0, True),
        ([1] * 5, [0], NO_ROOM, False),
        ([1, 1, 2], [0, 2], NO_ROOM, False),
    ]
    # A short target does not cut one; it has no room left.
    short = split([[0, 1, 1], [3, 4]], 8, short_seq_prob=1.0, seed=1)
    assert short == [([0, 1, 1], [0], 0, True), ([3, 4], [0], 0, False)]


@settings(max_examples=100, deadline=None)
@given(
    sentences=st.lists(st.lists(st.integers(0, 29), max_size=40), max_size=12),
    max_seq_length=st.integers(8, 50),
    short_seq_prob=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_no_piece_is_lost(sentences, max_seq_length, short_seq_prob, seed):
    segments = split(sentences, max_seq_length, short_seq_prob, seed)
    assert sum((segment.input_ids for segment in segments), []) == sum(sentences, [])
    offsets = [0, *itertools.accumulate(map(len, sentences))]
    boundaries = {at for at, sentence in zip(offsets, sentences) if sentence}
    begin, longest, left = 0, max_seq_length - 3, None
    for pieces, starts, room, opens in segments:
        assert opens == (begin == 0)
        end = begin + len(pieces)
        # What opens a segment, the rest of a sentence aside, did not fit before.
        assert (room == NO_ROOM) == (begin not in boundaries)
        assert room < min([at for at in boundaries if at > begin] + [offsets[-1]]) - begin
        if short_seq_prob == 0 and room != NO_ROOM:
            assert room == (left or 0)
        left = longest - len(pieces)
        assert 1 <= len(pieces) <= longest
        assert starts == sorted({0} | {at - begin for at in boundaries if begin <= at < end})
        begin = end
        # What ends inside a sentence is a part of one that is longer than any segment.
        if end not in boundaries and end != offsets[-1]:
            assert len(starts) == 1 and len(pieces) > longest - 9


def test_short_targets_are_drawn_for_each_segment_uniformly():
    segments = split([[0]] * 300_000, 13, 0.25, word_starts=[True] * 30)
    lengths = [len(segment.input_ids) for segment in segments[:-1]]
    # Targets of 2 to 10; 10 comes of the long ones too.
    expected = {n: 0.25 / 9 + 0.75 * (n == 10) for n in range(2, 11)}
    for length, share in expected.items():
        sigma = (share * (1 - share) / len(lengths)) ** 0.5
        assert lengths.count(length) / len(lengths) == pytest.approx(share, abs=4 * sigma)
    # The document is read as it goes: this one has no end.
    segments = split_document(itertools.repeat([0, 1, 1]), 16, 0.1, WORD_STARTS, random.Random(0))
    assert len(list(itertools.islice(segments, 5))) == 5


def test_runs_are_the_document_cut_between_words():
    is_start, rng = [True, False], random.Random(1)
    sentences = [rng.choices((0, 1), k=rng.randint(1, 40)) for _ in range(300)]
    runs = list(cut_runs(sentences, 9, is_start, random.Random(5)))
    assert sum(runs, []) == sum(sentences, [])
    assert all(is_start[run[0]] for run in runs[1:])
    assert min(map(len, runs[:-1])) == SHORTEST_RUN
    assert not any(is_start[piece] for run in runs for piece in run[9:])
    assert len({len(run) for run in runs}) > 6
    assert runs == list(cut_runs(sentences, 9, is_start, random.Random(5)))
    assert list(cut_runs([[], [0]], 9, is_start, rng)) == [[0]]
