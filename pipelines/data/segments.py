"""Splits documents into segments: contiguous chunks of whole sentences. No piece is dropped."""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from albert_tf.text.packing import NUM_SPECIAL_PIECES

# Maximum number of pieces that a segment leaves unused to cut a sentence between two words.
_MAX_UNUSED = 8

SHORTEST_RUN = 3  # minimum number of pieces in a run of words; see cut_runs

# `room_before` of a segment that starts inside a cut sentence. Such a segment has no order label.
NO_ROOM = -1


class Segment(NamedTuple):
    """A contiguous chunk of one document."""

    input_ids: list[int]
    sentence_starts: list[int]  # index of the first piece of each sentence; starts with 0
    # Number of pieces left unused in the previous segment, too few for the first sentence of this
    # segment. 0 at the start of a document. NO_ROOM if the segment starts inside a cut sentence.
    room_before: int
    opens_document: bool


def has_order(segment: Segment) -> bool:
    """Returns whether a segment can have a sentence-order label: see sentence_pairs.

    It cannot if no sentence after the first is longer than `room_before`, or if the segment starts
    inside a cut sentence.
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
    """Yields the segments of a document. Their concatenation is the whole document.

    Whole sentences are added to a segment while they fit its target length. Only a sentence longer
    than a full segment is cut, between two words if possible. If the last sentence were cut to fill
    the segment, only part B would end inside a sentence, which would reveal the sentence order.

    `sentences` are lists of pieces. They are read lazily, and empty lists are skipped.
    `max_seq_length` includes special pieces. With probability `short_seq_prob` a target length is
    drawn uniformly from 2 to the maximum. `word_starts`, [vocab_size], is True for pieces that
    start a word.

    Source: the reference's create_instances_from_document.
    Deviation: the reference truncates text that does not fit, and draws the short target length
    once per document.
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
            # After `max_sentences`, a sentence of any length starts the next segment: room is 0.
            # max, because a single sentence can be longer than a short target.
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
    """Returns where to cut a sentence of more than `room` pieces, at a word start if possible."""
    cuts = range(room, max(room - _MAX_UNUSED, 1) - 1, -1)
    return next((cut for cut in cuts if word_starts[sentence[cut]]), room)


def cut_runs(
    sentences: Iterable[Sequence[int]],
    longest: int,
    word_starts: Sequence[bool],
    rng: random.Random,
) -> Iterator[list[int]]:
    """Splits a document into runs of words instead of sentences; yields the pieces of each run.

    A run can start and end inside a sentence. It has SHORTEST_RUN to `longest` pieces, plus the
    rest of its last word.

    The words on both sides of a cut indicate which run comes first. Two sentences indicate their
    order less often.
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
