"""Prepares text for WordPiece, and tokenizes it in the TensorFlow graph.

Python and the graph prepare text with the same character table. tensorflow-text's FastBertTokenizer
is not used, because it folds case (ß becomes ss), according to its source code (not tested).
"""

from __future__ import annotations

import functools
import sys
import unicodedata

import tensorflow as tf

from albert_tf.text.characters import AlignedPieces, WrittenCharacters
from albert_tf.text.in_graph import import_tensorflow_text
from albert_tf.text.words import row_ids

CONTINUATION = "##"  # prefix of pieces that continue a word
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 100  # characters; longer words become [UNK]
LONGEST_PIECE = 256  # bytes; tensorflow-text's limit
# Replaces words longer than LONGEST_WORD in the graph. Prepared text never contains this string.
_NO_WORD = "\ufffd\ufffd"

# Ranges of Chinese characters. Each character is treated as a word.
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def _prepare(code: int, do_lower_case: bool) -> str:
    """Returns the replacement text of a character.

    White space becomes a space. Control characters are removed. Spaces are added around punctuation
    and Chinese characters. If `do_lower_case`, text is lower-cased and accents are removed.
    """
    character = chr(code)
    category = unicodedata.category(character)
    if character in "\t\n\r" or category[0] == "Z":
        return " "
    if code == 0xFFFD or category in ("Cc", "Cf", "Co", "Cs"):
        return ""
    text = character
    if do_lower_case:
        parts = unicodedata.normalize("NFD", character)
        text = "".join(c.lower() for c in parts if unicodedata.category(c) != "Mn")
    text = "".join(f" {c} " if _stands_alone(c) else c for c in text)
    is_chinese = any(low <= code <= high for low, high in _CHINESE)
    return f" {text} " if is_chinese else text


class _Prepared(dict):
    """Table for str.translate that maps character codes to replacements. Filled on demand."""

    def __init__(self, do_lower_case: bool):
        self._do_lower_case = do_lower_case

    def __missing__(self, code: int) -> str:
        self[code] = text = _prepare(code, self._do_lower_case)
        return text


def _stands_alone(character: str) -> bool:
    code = ord(character)
    is_ascii_sign = code < 0x80 and not character.isalnum() and 0x20 < code < 0x7F
    return is_ascii_sign or unicodedata.category(character)[0] == "P"


prepared = functools.cache(_Prepared)


@functools.cache
def _changes(do_lower_case: bool) -> dict[int, list[int]]:
    """Returns a dict that maps each replaced character code to the codes of its replacement."""
    texts = ((code, _prepare(code, do_lower_case)) for code in range(sys.maxunicode + 1))
    return {
        code: [*map(ord, text)]
        for code, text in texts
        if text != chr(code) and not 0xD800 <= code < 0xE000
    }


class InGraphWordPiece(tf.Module):
    """WordPieceTokenizer.encode as TensorFlow ops. A SavedModel includes the vocabulary."""

    def __init__(self, tokenizer):
        super().__init__(name="tokenizer")
        self._wordpiece = import_tensorflow_text().FastWordpieceTokenizer(
            vocab=tokenizer.pieces,
            token_out_type=tf.int32,
            max_bytes_per_word=4 * LONGEST_WORD,  # a character has at most 4 bytes
            no_pretokenization=True,
        )
        self._unk_id = tokenizer.unk_id
        # Lengths in characters, including the ## of pieces that continue a word.
        lengths = [len(piece) for piece in tokenizer.pieces]
        self._lengths = tf.constant(lengths, tf.int64)
        changes = _changes(tokenizer.do_lower_case)
        # Row 0 represents unchanged characters.
        self._changed = tf.constant([0, *changes], tf.int32)
        self._rows = tf.ragged.constant(
            [[0], *changes.values()], dtype=tf.int32, row_splits_dtype=tf.int64
        )

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes texts. See InGraphTokenizer."""
        return self._tokenize(texts)[0]

    def preprocess(self, texts: tf.Tensor) -> tf.Tensor:
        """Same as WordPieceTokenizer.preprocess, for string [batch]."""
        codes, _ = self._prepare(texts)
        return tf.strings.unicode_encode(codes, "UTF-8")

    def _prepare(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Returns the codes of prepared characters and the indices of their original characters.

        Codes are int32 [batch, (characters)]. Indices are int64 [all characters + 1], counted
        across all texts. The last index is the number of original characters.
        """
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        flat = codes.flat_values
        place = tf.searchsorted(self._changed, flat, side="right") - 1
        is_changed = tf.equal(tf.gather(self._changed, place), flat)
        rows = tf.gather(self._rows, tf.where(is_changed, place, 0))
        origins = row_ids(rows)
        end = [tf.size(flat, tf.int64)]
        is_kept = tf.logical_not(tf.gather(is_changed, origins))
        prepared = tf.where(is_kept, tf.gather(flat, origins), rows.flat_values)
        row_splits = tf.gather(rows.row_splits, codes.row_splits)
        prepared = tf.RaggedTensor.from_row_splits(prepared, row_splits)
        return prepared, tf.concat([origins, end], axis=0)

    def _tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Returns pieces, int32 [batch, (pieces)], and indices of their first and last characters.

        Indices are int64 [all pieces], counted across all texts.
        """
        codes, origins = self._prepare(texts)
        flat, text_of_char = codes.flat_values, row_ids(codes)
        is_letter = tf.not_equal(flat, ord(" "))
        # The first character of a text starts a word, regardless of the previous text.
        is_other_text = tf.not_equal(text_of_char[1:], text_of_char[:-1])
        follows = tf.concat([[False], is_letter[:-1] & ~is_other_text], axis=0)[: tf.size(flat)]
        is_start = is_letter & ~follows
        starts = tf.where(is_start)[:, 0]
        word_of_char = tf.cumsum(tf.cast(is_start, tf.int64)) - 1
        letters = tf.RaggedTensor.from_value_rowids(
            tf.boolean_mask(flat, is_letter),
            tf.boolean_mask(word_of_char, is_letter),
            nrows=tf.size(starts, tf.int64),
        )
        sizes = letters.row_lengths()
        words = tf.strings.unicode_encode(letters, "UTF-8")
        words = tf.where(sizes > LONGEST_WORD, _NO_WORD, words)
        pieces = self._wordpiece.tokenize(words)

        word_of_piece = row_ids(pieces)
        is_first = tf.equal(tf.ragged.range(pieces.row_lengths()).flat_values, 0)
        is_unknown = tf.equal(pieces.flat_values, self._unk_id)
        length = tf.gather(self._lengths, pieces.flat_values)
        length = tf.where(is_first, length, length - len(CONTINUATION))
        length = tf.where(is_unknown, tf.gather(sizes, word_of_piece), length)
        before = tf.cumsum(length, exclusive=True)
        before_word = tf.gather(before, pieces.row_starts())
        begins = before - tf.gather(before_word, word_of_piece)
        begins += tf.gather(starts, word_of_piece)
        counts = tf.math.unsorted_segment_sum(
            pieces.row_lengths(), tf.gather(text_of_char, starts), codes.nrows()
        )
        limits = begins + length
        # Dropped marks after a piece belong to the piece.
        last = tf.maximum(tf.gather(origins, limits) - 1, tf.gather(origins, limits - 1))
        pieces = tf.RaggedTensor.from_row_lengths(pieces.flat_values, counts)
        return pieces, tf.gather(origins, begins), last

    def align(self, texts: tf.Tensor) -> AlignedPieces:
        """Tokenizes texts, string [batch] of valid UTF-8, and aligns the pieces with them."""
        pieces, first, last = self._tokenize(texts)
        written = WrittenCharacters(texts)
        # If the end of a text was dropped, the next kept character is in the next text. The last
        # piece must not extend into that text.
        last_of_text = tf.gather(written.chars.row_limits() - 1, row_ids(pieces))
        return written.align(pieces, first, tf.minimum(last, last_of_text))
