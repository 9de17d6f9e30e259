"""Splits documents into segments, contiguous chunks of whole sentences. No piece is lost."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from albert_tf.text.packing import NUM_SPECIAL_PIECES

# Pieces that a segment may leave unused in order to cut a sentence between two words.
_MAX_UNUSED = 8

SHORTEST_RUN = 3  # minimum number of pieces in a run of words; see cut_runs

# `room_before` of a segment that opens with the rest of a cut sentence. It gets no order label.
NO_ROOM = -1


class Segment(NamedTuple):
    """One contiguous chunk of one document."""

    input_ids: list[int]
    sentence_starts: list[int]  # first piece of each sentence or rest of a sentence; begins with 0
    # Number of pieces that were free in the previous segment: too few for the first sentence of
    # this one. 0 at the opening of a document; or NO_ROOM.
    room_before: int
    opens_document: bool


def has_order(segment: Segment) -> bool:
    """Returns whether a segment can have a sentence-order label: see sentence_pairs.

    It has none if no later sentence is longer than `room_before`, or if the segment opens with the
    rest of a cut sentence. The first case holds for 24 %, 19 % and 5 % of the segments inside
    documents at 32, 128 and 512 pieces (novels).
    """
    ends = [*segment.sentence_starts[1:], len(segment.input_ids)]
    longest = max((b - a for a, b in zip(segment.sentence_starts[1:], ends[1:])), default=0)
    return segment.room_before != NO_ROOM and longest > segment.room_before


def split_document(
    sentences: Iterable[Sequence[int]],
    max_seq_length: int,
    short_seq_prob: float,
    word_starts: Sequence[bool],
    rng: random.Random,
    max_sentences: int | None = None,
) -> Iterator[Segment]:
    """Yields the segments of a document; joined, they are the whole document.

    A segment takes whole sentences while they fit its target length. Only a sentence longer than a
    whole segment is cut, before a word if possible. Cutting the last sentence to fill a segment
    would reveal the order of its two parts: only part B would end inside a sentence.

    Source: the reference's create_instances_from_document.
    Deviation: the reference truncates text that does not fit, which loses 2 to 16 % of it. It draws
    the shorter target once per document, so a long document may give short examples only.

    `sentences` are lists of pieces, read as needed; empty ones are skipped. `max_seq_length`
    includes special pieces. With probability `short_seq_prob` the target length is shorter,
    uniform from 2 pieces on. `word_starts` [vocab_size] is true for pieces that begin a word.
    """
    longest = max_seq_length - NUM_SPECIAL_PIECES

    def draw_target() -> int:
        return rng.randint(2, longest) if rng.random() < short_seq_prob else longest

    target = draw_target()
    pieces: list[int] = []
    starts: list[int] = []
    room, opens = 0, True
    for sentence in sentences:
        is_full = len(starts) == max_sentences
        if pieces and (is_full or len(pieces) + len(sentence) > target):
            yield Segment(pieces, starts, room, opens)
            opens = False
            # After `max_sentences` any sentence opens the next segment, so no room is recorded.
            # max: a single sentence may be longer than a short target.
            room = 0 if is_full else max(target - len(pieces), 0)
            target, pieces, starts = draw_target(), [], []
        begin = 0
        while len(sentence) - begin > longest:
            cut = _cut(sentence[begin : begin + longest + 1], longest, word_starts)
            yield Segment(list(sentence[begin : begin + cut]), [0], room, opens)
            begin, room, opens = begin + cut, NO_ROOM, False
        if sentence := sentence[begin:]:
            starts.append(len(pieces))
            pieces.extend(sentence)
    if pieces:
        yield Segment(pieces, starts, room, opens)


def _cut(sentence: Sequence[int], room: int, word_starts: Sequence[bool]) -> int:
    """Returns where to cut a sentence of more than `room` pieces: before a word if possible."""
    cuts = range(room, max(room - _MAX_UNUSED, 1) - 1, -1)
    return next((cut for cut in cuts if word_starts[sentence[cut]]), room)


def cut_runs(
    sentences: Iterable[Sequence[int]],
    longest: int,
    word_starts: Sequence[bool],
    rng: random.Random,
) -> Iterator[list[int]]:
    """Cuts a document into runs of words, in place of sentences; yields the pieces of each run.

    A run may begin and end inside a sentence. It has SHORTEST_RUN to `longest` pieces, plus the
    rest of its last word.

    The words on both sides of a cut show which run comes first, so a small model learns to compare
    the two runs within some 50,000 pairs. Two sentences show their order less often.
    """
    run: list[int] = []
    size = rng.randint(SHORTEST_RUN, longest)
    for sentence in sentences:
        for piece in sentence:
            if len(run) >= size and word_starts[piece]:
                yield run
                run, size = [], rng.randint(SHORTEST_RUN, longest)
            run.append(piece)
    if run:
        yield run
