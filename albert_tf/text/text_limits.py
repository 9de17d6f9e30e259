"""How much of a text is read for a sequence: the same in fine-tuning and in an export.

Tokenizing costs time for each character. A sequence has a fixed length, so what cannot matter to it
is cut off before.
"""

from __future__ import annotations

import unicodedata

# Characters that are read for each piece that the model can take. Pieces of published vocabularies
# have at most 16 characters, and words of real text some 4. So a text has too few pieces in them
# only if it is nearly all white space, combining marks or characters that the vocabulary lacks.
CHARS_PER_PIECE = 64

# What Unicode's NFKD makes of one character: 18 of U+FDFA, 3 of a Korean syllable.
MOST_OF_ONE_CHAR, MANY_OF_ONE_CHAR = 18, 3


def first_chars(text: str, number: int) -> str:
    """Returns the first characters of a text, as export.text.limits.first_chars does in the graph.

    They are fewer where preparing would make more than three of each.
    """
    text = text[:number]
    return text[: number // MOST_OF_ONE_CHAR] if _grows(text, number) else text


def last_chars(text: str, number: int) -> str:
    """Returns the last characters of a text, as export.text.limits.last_chars does in the graph.

    White space at the end is dropped first. They are fewer where preparing would make more than
    three of each.
    """
    text = text.rstrip()[-number:]
    return text[-(number // MOST_OF_ONE_CHAR) :] if _grows(text, number) else text


def _grows(text: str, number: int) -> bool:
    return not text.isascii() and (
        len(unicodedata.normalize("NFKD", text)) > MANY_OF_ONE_CHAR * number
    )
