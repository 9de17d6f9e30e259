"""Vocabularies of WordPiece, in Python and in the TensorFlow graph, with one character table.

tensorflow-text's FastBertTokenizer is not used: by its source, it folds case (ß becomes ss).
"""

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.storage.errors import UserError
from albert_tf.text.characters import AlignedPieces, WrittenCharacters
from albert_tf.text.in_graph import import_tensorflow_text, on_host
from albert_tf.text.settings import TextSettings
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.text.words import SCRIPTS_WITHOUT_SPACES, row_ids

CONTINUATION = "##"  # prefix of pieces that continue a word
LONGEST_WORD = 100  # characters; longer words become [UNK]
LONGEST_PIECE = 256  # bytes; tensorflow-text's limit
# Replaces words longer than LONGEST_WORD in the graph. Prepared text never contains this string.
_NO_WORD = "\ufffd\ufffd"

# Chinese characters. Each character is treated as a word.
_CHINESE = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b920-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


def _prepare(code: int, settings: TextSettings) -> str:
    """Returns the replacement text of a character.

    White space becomes a space. Control characters are removed. Punctuation and Chinese characters
    get spaces around. Then case and accents are removed as the settings say.
    """
    character = chr(code)
    category = unicodedata.category(character)
    if character in "\t\n\r" or category[0] == "Z":
        return " "
    if code == 0xFFFD or category in ("Cc", "Cf", "Co", "Cs"):
        return ""
    text = character
    if not settings.keep_accents:
        parts = unicodedata.normalize("NFD", character)
        text = "".join(c for c in parts if unicodedata.category(c) != "Mn")
    if settings.do_lower_case:
        text = "".join(c.lower() for c in text)
    text = "".join(f" {c} " if _stands_alone(c) else c for c in text)
    return f" {text} " if _CHINESE.match(character) else text


class _Prepared(dict):
    """Table for str.translate that maps character codes to replacements. Filled on demand."""

    def __init__(self, settings: TextSettings):
        self._settings = settings

    def __missing__(self, code: int) -> str:
        self[code] = text = _prepare(code, self._settings)
        return text


def _stands_alone(character: str) -> bool:
    code = ord(character)
    is_ascii_sign = code < 0x80 and not character.isalnum() and 0x20 < code < 0x7F
    return is_ascii_sign or unicodedata.category(character)[0] == "P"


prepared = functools.cache(_Prepared)


@functools.cache
def _changes(settings: TextSettings) -> dict[int, str]:
    """Returns a dict that maps each replaced character code to its replacement."""
    # Unassigned characters (Cn) take most of the time, and surrogates (Cs) are in no text.
    assigned = (
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(character) not in ("Cn", "Cs") or _CHINESE.match(character)
    )
    texts = ((character, _prepare(ord(character), settings)) for character in assigned)
    return {ord(character): text for character, text in texts if text != character}


class InGraphWordPiece(tf.Module):
    """WordPieceVocabulary.encode_batch as TensorFlow ops. A SavedModel includes the vocabulary."""

    def __init__(self, vocabulary: "WordPieceVocabulary"):
        super().__init__(name="tokenizer")
        self._wordpiece = import_tensorflow_text().FastWordpieceTokenizer(
            vocab=vocabulary.pieces,
            token_out_type=tf.int32,
            max_bytes_per_word=4 * LONGEST_WORD,  # a character has at most 4 bytes
            no_pretokenization=True,
        )
        self._unk_id = vocabulary.special_ids[1]
        # Lengths in characters, including the ## of pieces that continue a word.
        lengths = [len(piece) for piece in vocabulary.pieces]
        self._lengths = tf.constant(lengths, tf.int64)
        changes = _changes(vocabulary.settings)
        # Row 0 represents unchanged characters.
        self._changed = tf.constant([0, *changes], tf.int32)
        texts = ["\0", *changes.values()]
        # tf.ragged.constant takes a second for these 240,000 rows.
        self._rows = tf.RaggedTensor.from_row_lengths(
            np.frombuffer("".join(texts).encode("utf-32-le"), np.int32),
            np.fromiter(map(len, texts), np.int64),
        )

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes texts. See InGraphTokenizer."""
        return self._tokenize(texts)[0]

    def preprocess(self, texts: tf.Tensor) -> tf.Tensor:
        """Same as WordPieceVocabulary.preprocess, for string [batch]."""
        codes, _ = self._prepare(texts)
        return tf.strings.unicode_encode(codes, "UTF-8")

    def _prepare(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Returns the codes of prepared characters, and the indices of their original characters.

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


class WordPieceVocabulary(Vocabulary):
    """A WordPiece vocabulary of BERT, which greedily splits words into the longest pieces.

    Words that cannot be split into known pieces become [UNK]. `[MASK]` in a text is plain text. The
    file has one piece per line, including [PAD], [UNK], [CLS], [SEP] and [MASK].

    Source: BERT's tokenization.FullTokenizer; Hugging Face's tokenizers (BertNormalizer).
    Deviation: as in Hugging Face's code, accents are removed first, and then each letter is
    lower-cased. BERT's code lower-cases whole words, which changes a Greek sigma at a word's end.
    Hugging Face's Unicode tables are older than Python's, so about 500 rare characters differ.
    """

    file_name = "vocab.txt"
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    hint = "expected a WordPiece vocabulary, a piece a line"

    def __init__(self, path: str, model_bytes: bytes, settings: TextSettings):
        # Accents are removed from lower-cased text alone, and quotes never change.
        keeps = settings.keep_accents or not settings.do_lower_case
        super().__init__(path, model_bytes, TextSettings(settings.do_lower_case, keeps))
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        self._unk_id = self.special_ids[1]
        self._table = prepared(self.settings)
        self._word_ids = functools.lru_cache(1 << 16)(self._split_word)

    def _read(self) -> list[str]:
        try:
            lines = self.model_bytes.decode("utf-8").replace("\r\n", "\n").split("\n")
        except UnicodeDecodeError:
            raise UserError(f"{self.path!r} is not UTF-8: expected a piece a line") from None
        pieces: dict[str, None] = {}
        for number, piece in enumerate(lines if lines[-1] else lines[:-1], start=1):
            place = f"{self.path}:{number}"
            if not piece or piece in pieces:
                what = f"{piece!r} again" if piece else "an empty piece"
                raise UserError(f"{place}: {what}; expected a WordPiece vocabulary, a piece a line")
            num_bytes = len(piece.removeprefix(CONTINUATION).encode())
            if num_bytes > LONGEST_PIECE:
                raise UserError(
                    f"{place}: a piece of {num_bytes:,} bytes, expected at most {LONGEST_PIECE}"
                )
            pieces[piece] = None
        return list(pieces)

    def preprocess(self, text: str) -> str:
        """Prepares text for WordPiece. Spaces separate the words that are split into pieces."""
        return " ".join(text.translate(self._table).split(" "))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the piece ids of several texts."""
        return [
            [i for word in text.translate(self._table).split(" ") for i in self._word_ids(word)]
            for text in texts
        ]

    def _split_word(self, word: str) -> tuple[int, ...]:
        if len(word) > LONGEST_WORD:
            return (self._unk_id,)
        ids, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = word[start:end] if not start else CONTINUATION + word[start:end]
                if piece in self._ids:
                    ids.append(self._ids[piece])
                    start = end
                    break
            else:
                return (self._unk_id,)
        return tuple(ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Converts piece ids to readable text, with spaces between words."""
        text = " ".join(self.pieces[i] for i in ids)
        return text.replace(f" {CONTINUATION}", "")

    def word_starts(self) -> np.ndarray:
        """Returns whether each piece starts a word, bool [vocab_size], for whole-word masking.

        Pieces without ## do, and so do all pieces of scripts without spaces, such as Chinese.
        """

        def begins(piece: str) -> bool:
            if not piece.startswith(CONTINUATION) or piece == CONTINUATION:
                return True
            return unicodedata.name(piece[2], "").startswith(SCRIPTS_WITHOUT_SPACES)

        return np.array([begins(piece) for piece in self.pieces])

    def replacement_ids(self) -> np.ndarray:
        """Returns ids that may replace a masked piece, int32 [n]. No special or unused pieces."""
        ids = [
            i
            for i, piece in enumerate(self.pieces)
            if piece not in self.special and not piece.startswith("[unused")
        ]
        return np.array(ids, np.int32)

    def in_graph(self) -> InGraphWordPiece:
        """Returns this vocabulary as TensorFlow ops, for use in a graph or with many texts."""
        with tf.init_scope(), on_host():
            return self._in_graph

    @functools.cached_property
    def _in_graph(self) -> InGraphWordPiece:
        return InGraphWordPiece(self)
