"""Reports how well a vocabulary fits a text: unknown characters, pieces per word."""

import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

import sentencepiece

from albert_tf.text.settings import loses_marks, remove_marks
from albert_tf.text.words import SCRIPTS_WITHOUT_SPACES, split_words

# Fraction of words that lose a mark for a hint. At most 0.3 % of the words of English novels and of
# Wikipedia lose one (Bébée, Beyoncé), but 7 % of German and Russian, 12 % of French words.
_MIN_LOST_SHARE = 0.01


def report(
    processor: sentencepiece.SentencePieceProcessor, lines: Sequence[str], where: str
) -> str:
    """Returns a short report of how well a vocabulary fits a text.

    Pieces are counted per word, or per character if most letters are of scripts without spaces.
    `lines` must be normalised text. `where` describes their origin in the report.
    """
    num_pieces, num_words = 0, 0
    characters: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for text in lines:
        ids = processor.encode(text)
        num_pieces += len(ids)
        num_words += len(text.split())
        characters.update(unicodedata.normalize("NFKC", text))  # as in SentencePiece
        if processor.unk_id() in ids:
            pieces = processor.encode(text, out_type=str)
            unknown.update(p for p, i in zip(pieces, ids) if i == processor.unk_id())
    letters = Counter({c: count for c, count in characters.items() if c.isalpha()})
    without_spaces = sum(
        count
        for c, count in letters.items()
        if unicodedata.name(c, "").startswith(SCRIPTS_WITHOUT_SPACES)
    )
    if 2 * without_spaces > sum(letters.values()):
        unit, count = "character", sum(n for c, n in characters.items() if not c.isspace())
    else:
        unit, count = "word", num_words
    result = [
        f"{processor.vocab_size():,} pieces; on {len(lines):,} lines {where}: "
        f"{num_pieces / max(count, 1):.2f} pieces per {unit}, "
        f"{100 * sum(unknown.values()) / max(num_pieces, 1):.4f} % <unk>"
    ]
    if unknown:
        most = ", ".join(f"{piece!r} {count:,}" for piece, count in unknown.most_common(8))
        result.append(f"most frequent among <unk>: {most}")
    if digits := sorted({c for piece in unknown for c in piece} & set(string.digits)):
        result.append(
            f"hint: the digits {' '.join(digits)} are unknown to this vocabulary: raise "
            "--character_coverage"
        )
    return "\n".join(result)


def lost_marks(texts: Sequence[str]) -> list[str]:
    """Returns a hint if many words of raw texts lose accents or other marks, else an empty list.

    In scripts without spaces, each character with its marks is a word (see words.split_words).
    """
    words: Counter[str] = Counter()
    for text in texts:
        parts = (text[start:limit] for start, limit in split_words(text).tolist())
        words.update(part for part in parts if any(map(str.isalpha, part)))
    lost = Counter({word: count for word, count in words.items() if loses_marks(word)})
    share = sum(lost.values()) / max(sum(words.values()), 1)
    if share < _MIN_LOST_SHARE:
        return []
    examples = ", ".join(
        f"{word} -> {unicodedata.normalize('NFKC', remove_marks(word))} {count:,}"
        for word, count in lost.most_common(5)
    )
    return [
        f"hint: {100 * share:.0f} % of the words lose accents or other marks ({examples}): to keep "
        "them, train with --keep_accents"
    ]
