"""WordPiece tokenization, as of BERT and of ALBERT's Chinese models: in Python and in the graph.

One table of characters prepares the text on both sides. tensorflow-text's FastBertTokenizer was not
used because it folds case (ß becomes ss). That was read in its source, not run.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.tokenization import WORDPIECE_FILE, AlbertTokenizer, import_tensorflow_text
from albert_tf.words import SCRIPTS_WITHOUT_SPACES, row_ids

CONTINUATION = "##"  # before a piece that continues a word
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LONGEST_WORD = 100  # characters; a longer one is unknown as a whole
_LONGEST_PIECE = 256  # bytes, of tensorflow-text
# Stands for such a word in the graph. No text has it after preparation.
_NO_WORD = "\ufffd\ufffd"

# Of these each is a word.
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
    """Returns what becomes of a character.

    White space becomes a space, control characters nothing; punctuation and Chinese characters
    stand between spaces. In lower case accents are dropped, too.
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
    """What becomes of each character, by its code: for str.translate; filled when asked."""

    def __init__(self, do_lower_case: bool):
        self._do_lower_case = do_lower_case

    def __missing__(self, code: int) -> str:
        self[code] = text = _prepare(code, self._do_lower_case)
        return text


def _stands_alone(character: str) -> bool:
    code = ord(character)
    is_ascii_sign = code < 0x80 and not character.isalnum() and 0x20 < code < 0x7F
    return is_ascii_sign or unicodedata.category(character)[0] == "P"


_prepared = functools.cache(_Prepared)


@functools.cache
def _changes(do_lower_case: bool) -> dict[int, list[int]]:
    """Returns the characters that become something else, and what, by their codes."""
    texts = ((code, _prepare(code, do_lower_case)) for code in range(sys.maxunicode + 1))
    return {
        code: [*map(ord, text)]
        for code, text in texts
        if text != chr(code) and not 0xD800 <= code < 0xE000
    }


class WordPieceTokenizer(AlbertTokenizer):
    """Text to piece ids by the longest pieces of a vocabulary, word by word.

    A word that pieces cannot spell is [UNK]. Special pieces in text (`[MASK]`) are text.

    Source: BERT's tokenization.FullTokenizer; Hugging Face's tokenizers (BertNormalizer).
    Deviation: accents are dropped before letters are lower-cased, one by one, as Hugging Face does
    it; BERT's code lower-cases words (a Greek sigma at their end becomes another letter). Some 500
    rare characters are signs or marks in one version of Unicode only: Hugging Face's tables are
    older than Python's.

    Args:
      vocabulary_file: a piece a line, [PAD], [UNK], [CLS], [SEP] and [MASK] among them.
      do_lower_case: lower-case the text and drop accents.

    Raises:
      UserError: if the file is no such vocabulary.
    """

    vocabulary_name = WORDPIECE_FILE

    def __init__(self, vocabulary_file: str, do_lower_case: bool = True):
        if not tf.io.gfile.exists(vocabulary_file) or tf.io.gfile.isdir(vocabulary_file):
            raise UserError(f"no WordPiece vocabulary at {vocabulary_file!r}")
        with tf.io.gfile.GFile(vocabulary_file, "rb") as file:
            self.model_bytes = file.read()
        self.do_lower_case = do_lower_case
        try:
            lines = self.model_bytes.decode("utf-8").replace("\r\n", "\n").split("\n")
        except UnicodeDecodeError:
            raise UserError(f"{vocabulary_file!r} is not UTF-8: expected a piece a line") from None
        self._pieces = lines[:-1] if not lines[-1] else lines
        self.vocab_size = len(self._pieces)
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        missing = [piece for piece in _SPECIAL if piece not in self._ids]
        if missing:
            raise UserError(
                f"the vocabulary {vocabulary_file!r} lacks {', '.join(missing)}: expected a "
                "WordPiece vocabulary, a piece a line"
            )
        seen: set[str] = set()
        for number, piece in enumerate(self._pieces, start=1):
            if not piece or piece in seen:
                what = f"{piece!r} again" if piece else "an empty piece"
                raise UserError(f"{vocabulary_file}:{number}: {what}; expected a piece a line")
            if (num_bytes := len(piece.removeprefix(CONTINUATION).encode())) > _LONGEST_PIECE:
                raise UserError(
                    f"{vocabulary_file}:{number}: a piece of {num_bytes:,} bytes, expected at most "
                    f"{_LONGEST_PIECE}"
                )
            seen.add(piece)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(
            self._ids.__getitem__, _SPECIAL
        )
        self.sha256 = hashlib.sha256(self.model_bytes).hexdigest()
        self._word_ids = functools.lru_cache(1 << 16)(self._split_word)

    def preprocess(self, text: str) -> str:
        """Returns the text whose words are split into pieces: they stand between spaces."""
        return " ".join(text.translate(_prepared(self.do_lower_case)).split(" "))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the piece ids of several texts."""
        table = _prepared(self.do_lower_case)
        return [
            [i for word in text.translate(table).split(" ") if word for i in self._word_ids(word)]
            for text in texts
        ]

    def _split_word(self, word: str) -> tuple[int, ...]:
        if len(word) > _LONGEST_WORD:
            return (self.unk_id,)
        ids, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = word[start:end] if not start else CONTINUATION + word[start:end]
                if piece in self._ids:
                    ids.append(self._ids[piece])
                    start = end
                    break
            else:
                return (self.unk_id,)
        return tuple(ids)

    def align(self, text: str) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Returns pieces and where they stand in the text, as of squad_windows.Paragraph.

        Returns:
          Piece ids; int32 [pieces] each one's first character; int32 [pieces] its last, marks that
          were dropped behind it included.
        """
        table = _prepared(self.do_lower_case)
        parts = [table[ord(character)] for character in text]
        origins = np.repeat(np.arange(len(text) + 1), [*map(len, parts), 1])
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        position = 0
        for word in "".join(parts).split(" "):
            pieces = self._word_ids(word) if word else ()
            for place, i in enumerate(pieces):
                length = len(word) if i == self.unk_id else len(self._pieces[i]) - 2 * (place > 0)
                starts.append(origins[position])
                position += length
                ends.append(max(origins[position] - 1, origins[position - 1]))
            ids.extend(pieces)
            position += 1
        return ids, np.array(starts, np.int32), np.array(ends, np.int32)

    def decode(self, ids) -> str:
        """Returns text for reading: words between spaces."""
        text = " ".join(self._pieces[i] for i in ids)
        return text.replace(f" {CONTINUATION}", "")

    @property
    def digit_comma_splits(self) -> dict[int, list[int]]:
        """None: pieces that end in a digit and a comma are SentencePiece's."""
        return {}

    def word_starts(self) -> np.ndarray:
        """Tells which pieces begin a word, for masking whole words: bool [vocab_size].

        Those without ##. In scripts without spaces every piece does, so every Chinese character.
        """

        def begins(piece: str) -> bool:
            if not piece.startswith(CONTINUATION) or piece == CONTINUATION:
                return True
            return unicodedata.name(piece[2], "").startswith(SCRIPTS_WITHOUT_SPACES)

        return np.array([begins(piece) for piece in self._pieces])

    def replacement_ids(self) -> np.ndarray:
        """Returns the pieces that may stand in for a masked one: int32, no special or unused."""
        ids = [
            i
            for i, piece in enumerate(self._pieces)
            if piece not in _SPECIAL and not piece.startswith("[unused")
        ]
        return np.array(ids, np.int32)

    def in_graph(self) -> InGraphWordPiece:
        """Returns the same tokenizer as a part of a TensorFlow graph."""
        return InGraphWordPiece(self)


class PreparedWords(NamedTuple):
    """Texts as they are split into pieces.

    Attributes:
      pieces: int32 [batch, (pieces)].
      starts: int64 [all pieces], the first prepared character of each, through all texts.
      limits: int64 [all pieces], the one after its last.
      origins: int64 [all prepared characters + 1], which character of all texts each comes from.
    """

    pieces: tf.RaggedTensor
    starts: tf.Tensor
    limits: tf.Tensor
    origins: tf.Tensor


class InGraphWordPiece(tf.Module):
    """WordPieceTokenizer.encode as TensorFlow operations; a SavedModel holds the vocabulary."""

    def __init__(self, tokenizer: WordPieceTokenizer):
        super().__init__(name="tokenizer")
        self._wordpiece = import_tensorflow_text().FastWordpieceTokenizer(
            vocab=tokenizer._pieces,
            token_out_type=tf.int32,
            max_bytes_per_word=4 * _LONGEST_WORD,
            no_pretokenization=True,
        )
        self._unk_id = tokenizer.unk_id
        # Piece 0 of a word has all of its characters, others have ## before them.
        lengths = [len(piece) for piece in tokenizer._pieces]
        self._lengths = tf.constant(lengths, tf.int64)
        changes = _changes(tokenizer.do_lower_case)
        # Row 0 is a place for the character itself.
        self._changed = tf.constant([0, *changes], tf.int32)
        self._rows = tf.ragged.constant(
            [[0], *changes.values()], dtype=tf.int32, row_splits_dtype=tf.int64
        )

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes texts; see InGraphTokenizer."""
        return self.tokenize(texts).pieces

    def preprocess(self, texts: tf.Tensor) -> tf.Tensor:
        """WordPieceTokenizer.preprocess in the graph: string [batch] to string [batch]."""
        codes, _ = self._prepare(texts)
        return tf.strings.unicode_encode(codes, "UTF-8")

    def _prepare(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Returns prepared characters, int32 [batch, (characters)], and PreparedWords.origins."""
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

    def tokenize(self, texts: tf.Tensor) -> PreparedWords:
        """Tokenizes texts, string [batch], and says where the pieces stand."""
        codes, origins = self._prepare(texts)
        flat, text_of_char = codes.flat_values, row_ids(codes)
        is_letter = tf.not_equal(flat, ord(" "))
        # A text's first character begins a word whatever is before it.
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
        words = tf.where(sizes > _LONGEST_WORD, _NO_WORD, words)
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
        return PreparedWords(
            tf.RaggedTensor.from_row_lengths(pieces.flat_values, counts),
            begins,
            begins + length,
            origins,
        )
