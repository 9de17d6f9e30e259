import numpy as np
import pytest

from pipelines.tasks.reading.squad_windows import Paragraph, Window
from pipelines.tasks.scoring.squad_answers import find_answers
from tests.pipelines.tasks.test_squad_windows import windows_of


def answer_of(context, windows, outputs, max_answer_length, n_best_size):
    [answer] = find_answers([context], windows, outputs, max_answer_length, n_best_size)
    return answer


def make_windows(num_pieces, room, doc_stride, offset):
    """A text of words of two letters, each one piece, and windows of it."""
    words = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(num_pieces)]
    places = np.arange(num_pieces, dtype=np.int32) * 3
    paragraph = Paragraph(np.arange(num_pieces), np.maximum(places - 1, 0), places + 1)
    found = windows_of(num_pieces, room, doc_stride)
    windows = [Window(0, paragraph, first, last, offset, best) for first, last, best in found]
    return " ".join(words), words, windows


def all_spans(words, windows, outputs, max_answer_length):
    """Scores of all valid spans, as text, by definition."""
    found = {}
    for window, output in zip(windows, outputs):
        for first in range(window.first, window.last):
            if not window.is_max_context[first - window.first]:
                continue
            for last in range(first, min(window.last, first + max_answer_length)):
                start = output["start_logits"][window.offset + first - window.first]
                end = output["end_logits"][window.offset + last - window.first]
                found[" ".join(words[first : last + 1])] = float(start) + float(end)
    return sorted(found.items(), key=lambda item: -item[1])


@pytest.mark.parametrize(("num_pieces", "room", "stride"), [(53, 17, 6), (11, 17, 6), (1, 17, 6)])
@pytest.mark.parametrize(("max_answer_length", "n_best_size"), [(4, 7), (30, 13)])
def test_the_best_of_all_spans(num_pieces, room, stride, max_answer_length, n_best_size):
    rng = np.random.default_rng(num_pieces + n_best_size)
    context, words, windows = make_windows(num_pieces, room, stride, offset=5)
    outputs = []
    for number, window in enumerate(windows):
        # What lies outside of the text, and behind it, is never an answer, however good.
        logits = np.full([2, 29], 9.0, np.float32)
        length = window.last - window.first
        logits[:, 5 : 5 + length] = rng.normal(size=[2, length])
        logits[0, 0] = 2.5 - number
        outputs.append(dict(zip(("start_logits", "end_logits"), logits)))
    answer = answer_of(context, windows, outputs, max_answer_length, n_best_size)
    expected = all_spans(words, windows, outputs, max_answer_length)
    assert answer.candidates == expected[:n_best_size]
    assert answer.text == expected[0][0]
    null = 2.5 - (len(windows) - 1) + 9.0
    assert answer.null_odds == pytest.approx(null - expected[0][1])


def test_texts_that_differ_in_a_space_are_one():
    paragraph = Paragraph([7, 8, 9], np.array([0, 3, 4]), np.array([2, 3, 6]))
    window = Window(0, paragraph, 0, 3, 2, np.ones(3, bool))
    scores = np.array([[0, 0, 1, 5, 4, 0], [0, 0, 1, 6, 5, 0]], np.float32)
    logits = dict(zip(("start_logits", "end_logits"), scores))
    answer = answer_of("fox dog", [window], [logits], 30, 20)
    # "▁" alone says nothing; "▁ dog" and "dog" are one text, with the better score.
    assert answer.candidates == [("dog", 10.0), ("fox", 7.0), ("fox dog", 6.0)]


def test_a_text_without_pieces_or_scores_has_no_answer():
    nothing = np.zeros(0, int)
    window = Window(0, Paragraph([], nothing, nothing), 0, 0, 3, np.zeros(0, bool))
    logits = {name: np.ones(7, np.float32) for name in ("start_logits", "end_logits")}
    answer = answer_of("", [window], [logits], 30, 20)
    assert answer.candidates == [] and answer.text == "" and answer.null_odds > 1e6
    context, _, windows = make_windows(9, 17, 6, offset=5)
    logits = {name: np.full(29, np.nan, np.float32) for name in logits}
    assert answer_of(context, windows, [logits], 4, 7).text == ""
    output = beams([(3, 0.0)], [[(4, 0.0)]], cls_logits=-2.0)  # no span of the text
    answer = answer_of(context, windows, [output], 30, 20)
    assert answer.candidates == [] and answer.text == "" and answer.null_odds == -2.0


def beams(starts, ends, cls_logits):
    """Outputs of (position, score) of starts and, of each, of its ends."""
    return {
        "start_top_index": np.array([p for p, _ in starts], np.int32),
        "start_top_log_probs": np.array([s for _, s in starts], np.float32),
        "end_top_index": np.array([p for row in ends for p, _ in row], np.int32),
        "end_top_log_probs": np.array([s for row in ends for _, s in row], np.float32),
        "cls_logits": np.float32(cls_logits),
    }


def test_beams():
    context, words, [window] = make_windows(9, 17, 6, offset=5)
    ends = [
        # The second is before, the third too long, the fourth not of the text.
        [(8, -0.25), (6, -0.125), (11, -0.5), (14, -0.125)],
        [(9, -0.125), (0, -0.125), (5, -0.125), (13, -0.125)],  # start at [CLS]
        [(13, -2.0), (14, -0.125), (12, -0.125), (0, 0.0)],
    ]
    output = beams([(7, -0.5), (0, -0.25), (13, -1.0)], ends, cls_logits=1.5)
    answer = answer_of(context, [window], [output], max_answer_length=4, n_best_size=20)
    assert answer.candidates == [(f"{words[2]} {words[3]}", -0.75), (words[8], -3.0)]
    assert answer.null_odds == 1.5
    longer = answer_of(context, [window], [output], max_answer_length=5, n_best_size=2)
    assert longer.candidates[1] == (" ".join(words[2:7]), -1.0)
    # Of several windows the one with a word's maximum context answers.
    context, words, windows = make_windows(23, 17, 6, offset=5)
    assert len(windows) == 2
    # Word 6 is in both windows and has its maximum context in the first.
    assert windows[0].is_max_context[6] and not windows[1].is_max_context[0]
    first = beams([(5 + 6, -3.0)], [[(5 + 7, -1.0)]], cls_logits=0.5)
    second = beams([(5 + 0, -1.0)], [[(5 + 1, -1.0)]], cls_logits=-0.25)
    answer = answer_of(context, windows, [first, second], 30, 20)
    assert answer.candidates == [(f"{words[6]} {words[7]}", -4.0)]
    assert answer.null_odds == -0.25
