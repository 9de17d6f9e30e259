"""SentencePiece tokenization as TensorFlow ops, based on tensorflow-text."""

import contextlib
import functools
import unicodedata
import warnings
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from albert_tf.text.characters import AlignedPieces, WrittenCharacters, character_class, matches
from albert_tf.text.words import row_ids

_LATEX_QUOTES = "``|''"
WORD_BOUNDARY = "\u2581"  # SentencePiece's symbol for a space


def import_tensorflow_text():
    """Imports tensorflow-text, which registers the ops of SavedModels. Lazy: it is large."""
    with warnings.catch_warnings():
        # tensorflow-text imports tensorflow_hub, which imports the deprecated pkg_resources.
        warnings.filterwarnings("ignore", message=".*pkg_resources", category=UserWarning)
        import tensorflow_text

    return tensorflow_text


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Runs ops on the CPU of this machine, even if the default is a GPU or the host of a TPU."""
    # None clears the devices of enclosing scopes, which may be on another host.
    with tf.device(None), tf.device("CPU:0"):
        yield


class InGraphTokenizer(tf.Module):
    """SentencePieceVocabulary.encode_batch as TensorFlow ops. A SavedModel includes the vocabulary.

    Deviation: TensorFlow and Python use different Unicode versions. Some rare characters of Unicode
    13 to 16 are lower-cased or decomposed by only one of them: 275 with Python 3.11 and TensorFlow
    2.15, 96 with Python 3.13 and TensorFlow 2.21.
    """

    def __init__(self, vocabulary):
        super().__init__(name="tokenizer")
        tensorflow_text = import_tensorflow_text()
        self._normalize_utf8 = tensorflow_text.normalize_utf8
        self._sentencepiece = tensorflow_text.SentencepieceTokenizer(
            model=vocabulary.model_bytes, out_type=tf.int32
        )
        self._vocabulary = vocabulary
        self._splits = None
        if splits := vocabulary.digit_comma_splits:
            rows = [splits.get(i, [i]) for i in range(len(vocabulary.pieces))]
            self._splits = tf.ragged.constant(rows, dtype=tf.int32, row_splits_dtype=tf.int64)

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the pieces of texts, int32 [batch, (pieces)], without special pieces.

        Texts are string [batch], UTF-8. Invalid bytes are replaced by U+FFFD.
        """
        pieces = self.segment(self.preprocess(texts))
        if self._splits is None:
            return pieces
        # Replace each piece with a row of one or more pieces, then join the rows of each text.
        rows = tf.gather(self._splits, pieces.flat_values)
        row_splits = tf.gather(rows.row_splits, pieces.row_splits)
        return tf.RaggedTensor.from_row_splits(rows.flat_values, row_splits, validate=False)

    def segment(self, prepared: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes preprocessed texts with SentencePiece, without digit-comma splits."""
        return self._sentencepiece.tokenize(prepared)

    def preprocess(self, texts: tf.Tensor) -> tf.Tensor:
        """Same as settings.preprocess, for string [batch]."""
        settings = self._vocabulary.prepares
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        texts = tf.strings.regex_replace(texts, character_class(str.isspace) + "+", " ")
        texts = tf.strings.strip(texts)
        if settings.latex_quotes:
            texts = tf.strings.regex_replace(texts, _LATEX_QUOTES, '"')
        if not settings.keep_accents:
            texts = self._normalize_utf8(texts, "NFKD")
            texts = tf.strings.regex_replace(texts, character_class(unicodedata.combining), "")
        elif self._vocabulary.composes:
            texts = self._normalize_utf8(texts, "NFD")
        if settings.do_lower_case:
            # tf.strings.lower truncates a text at its first NUL. Replace NUL by a line feed, which
            # does not occur here, during the call.
            texts = tf.strings.regex_replace(texts, "\\x{0}", "\n")
            texts = tf.strings.lower(texts, encoding="utf-8")
            texts = tf.strings.regex_replace(texts, "\n", "\0")
        return texts

    def align(self, texts: tf.Tensor) -> AlignedPieces:
        """Tokenizes texts, string [batch] of valid UTF-8, and aligns the pieces with them.

        A text has three forms: original, preprocessed, and normalized by SentencePiece, which
        returns offsets in the preprocessed form. Except for white space, each original character is
        preprocessed separately, so the lengths of the results determine each character's place.

        Deviation: the reference aligns pieces and text by their longest common subsequence. This
        takes quadratic time, cannot align changed characters, and drops questions whose text does
        not align. Known errors of our method: parts of a piece that is split at digit and comma are
        located by their lengths, so an invisible control character in the piece shifts them. Where
        marks are kept, SentencePiece splits ﬁ, and a piece such as `of` of `oﬁ` excludes the ﬁ.
        """
        prepared = self.preprocess(texts)
        # Places are byte offsets in the prepared texts, concatenated with one byte between them.
        sizes = tf.cast(tf.strings.length(prepared), tf.int64)
        bases = tf.cumsum(sizes + 1, exclusive=True)
        pieces, begins, limits = self._tokenize_with_offsets(prepared, bases)
        chars, offsets = tf.strings.unicode_split_with_offsets(prepared, "UTF-8")
        places = offsets.flat_values + tf.gather(bases, row_ids(chars))

        written = WrittenCharacters(texts)
        # For each prepared character, the index of the original character.
        origins = written.find(places, self._prepared_sizes(written, texts), bases)

        # If invisible characters follow a piece's space, the piece starts at the last of them.
        first = tf.searchsorted(places, begins, out_type=tf.int64)
        is_visible = ~matches(chars.flat_values, self._vocabulary.swallowed)
        visible = tf.concat([tf.where(is_visible)[:, 0], [tf.size(places, tf.int64)]], axis=0)
        next_visible = tf.gather(visible, tf.searchsorted(visible, first))
        # SentencePiece assigns ﬁ to the last of its pieces. The others get at least one character.
        ends = bases + sizes
        char_limits = tf.concat([places[1:], ends[-1:]], axis=0)
        char_limits = tf.minimum(char_limits, tf.gather(ends, row_ids(chars)))
        text_limits = tf.gather(tf.concat([char_limits, [0]], axis=0), next_visible)
        has_text = tf.gather(self._tables[2], pieces.flat_values) > 0
        limits = tf.where(has_text, tf.maximum(limits, text_limits), limits)
        following = tf.searchsorted(places, limits, out_type=tf.int64)
        begins_word = tf.gather(self._tables[0], pieces.flat_values)
        start = tf.where(
            begins_word, tf.maximum(tf.minimum(next_visible, following) - 1, first), first
        )
        starts = tf.gather(origins, start)

        # A piece extends to the start of the next piece, to include dropped marks. If several
        # pieces share an original character, the character belongs to each of them.
        last = tf.gather(origins, tf.maximum(following - 1, first))
        is_end = tf.equal(limits, tf.gather(ends, row_ids(pieces)))
        origins = tf.concat([origins, [0]], axis=0)
        next_start = tf.where(
            is_end, tf.gather(written.ends(), row_ids(pieces)), tf.gather(origins, following)
        )
        return written.align(pieces, starts, tf.maximum(next_start - 1, last))

    def _prepared_sizes(self, written: WrittenCharacters, texts: tf.Tensor) -> tf.Tensor:
        """Returns the bytes that each original character becomes, int32 [all characters]."""
        chars = written.chars.flat_values
        different, which = tf.unique(chars)
        sizes = tf.gather(tf.strings.length(self.preprocess(different)), which)
        # `preprocess` keeps the length of noncharacters, which may be U+FFFD here.
        is_replaced = tf.equal(chars, "\ufffd")
        sizes = tf.where(is_replaced, written.limits - written.offsets, sizes)
        if self._vocabulary.prepares.latex_quotes:
            # The first character of `` or '' becomes ", the second one is dropped.
            doubled = tf.strings.regex_replace(texts, _LATEX_QUOTES, '""')
            doubled = tf.strings.unicode_split(doubled, "UTF-8").flat_values
            is_quote = tf.cast(doubled != chars, tf.int32)
            sizes -= is_quote * (1 - tf.cumsum(is_quote) % 2)
        return sizes

    def _tokenize_with_offsets(self, prepared, bases):
        """Returns ragged pieces and the places where each starts and ends, int64 [all pieces]."""
        _, is_byte, lengths = self._tables
        pieces, begins, limits = self._sentencepiece.tokenize_with_offsets(prepared)
        ids, bases = pieces.flat_values, tf.gather(bases, row_ids(pieces))
        begins = tf.cast(begins.flat_values, tf.int64) + bases
        limits = tf.cast(limits.flat_values, tf.int64) + bases
        # SentencePiece assigns a character to the last of its byte pieces and an empty span to the
        # others. Extend the empty spans to the end of the character.
        ends = tf.concat(
            [tf.where((limits > begins) | ~tf.gather(is_byte, ids))[:, 0], [0]], axis=0
        )
        indices = tf.range(tf.size(ids, tf.int64))
        limits = tf.gather(limits, tf.gather(ends, tf.searchsorted(ends[:-1], indices)))
        if self._splits is None:
            return pieces, begins, limits
        parts = tf.gather(self._splits, ids)
        # Count a part's bytes from the piece's end, because a space may precede the piece.
        num_bytes = tf.gather(lengths, parts.flat_values)
        before = tf.concat([[0], tf.cumsum(num_bytes)], axis=0)
        piece_of_part = row_ids(parts)
        behind = tf.gather(tf.gather(before, parts.row_limits()), piece_of_part) - before[1:]
        part_limits = tf.gather(limits, piece_of_part) - behind
        is_first = tf.equal(tf.ragged.range(parts.row_lengths()).flat_values, 0)
        part_begins = tf.where(is_first, tf.gather(begins, piece_of_part), part_limits - num_bytes)
        row_splits = tf.gather(parts.row_splits, pieces.row_splits)
        pieces = tf.RaggedTensor.from_row_splits(parts.flat_values, row_splits, validate=False)
        return pieces, part_begins, part_limits

    @functools.cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arrays over all pieces: starts a word (bool), is a byte piece (bool), length in bytes."""
        pieces = self._vocabulary.pieces
        return (
            np.array([piece.startswith(WORD_BOUNDARY) for piece in pieces]),
            np.array([*map(self._vocabulary.is_byte, range(len(pieces)))]),
            np.array([len(piece.replace(WORD_BOUNDARY, "").encode()) for piece in pieces]),
        )
