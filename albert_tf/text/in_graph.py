"""SentencePiece tokenization as TensorFlow operations, and the door to tensorflow-text."""

from __future__ import annotations

import functools
import sys
import unicodedata
import warnings

import tensorflow as tf


def import_tensorflow_text():
    """Returns the package, whose library of operations is large: most jobs do without it."""
    with warnings.catch_warnings():
        # It imports TensorFlow Hub, which imports pkg_resources, which announces its end.
        warnings.filterwarnings("ignore", message=".*pkg_resources", category=UserWarning)
        import tensorflow_text

    return tensorflow_text


class InGraphTokenizer(tf.Module):
    """AlbertTokenizer.encode as TensorFlow operations; a SavedModel holds the vocabulary.

    Deviation: TensorFlow's tables and Python's are of different versions of Unicode. Some rare
    characters of versions 13 to 16 keep their case or form on one side only: 275 with Python 3.11
    and TensorFlow 2.15; 96 with Python 3.13 and TensorFlow 2.21, 56 of them unknown to Python.
    """

    def __init__(self, tokenizer):
        super().__init__(name="tokenizer")
        self._normalize_utf8 = import_tensorflow_text().normalize_utf8
        self._sentencepiece = tokenizer._sentencepiece_in_graph
        self._do_lower_case = tokenizer.do_lower_case
        self._splits = None
        if tokenizer.digit_comma_splits:
            rows = [tokenizer.digit_comma_splits.get(i, [i]) for i in range(tokenizer.vocab_size)]
            self._splits = tf.ragged.constant(rows, dtype=tf.int32, row_splits_dtype=tf.int64)

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Tokenizes texts.

        Args:
          texts: string [batch], UTF-8; bytes that are none become U+FFFD.

        Returns:
          int32 [batch, (pieces)], special pieces not included.
        """
        pieces = self._sentencepiece.tokenize(self.preprocess(texts))
        if self._splits is None:
            return pieces
        # Every piece becomes a row of one or more; rows then belong to their piece's text.
        rows = tf.gather(self._splits, pieces.flat_values)
        row_splits = tf.gather(rows.row_splits, pieces.row_splits)
        return tf.RaggedTensor.from_row_splits(rows.flat_values, row_splits)

    def preprocess(self, texts: tf.Tensor) -> tf.Tensor:
        """AlbertTokenizer.preprocess in the graph: string [batch] to string [batch]."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        texts = tf.strings.regex_replace(texts, character_class(str.isspace) + "+", " ")
        texts = tf.strings.strip(texts)
        texts = self._normalize_utf8(texts, "NFKD")
        texts = tf.strings.regex_replace(texts, character_class(unicodedata.combining), "")
        if self._do_lower_case:
            # tf.strings.lower ends a text at its first NUL: a line feed, which no longer occurs
            # here, replaces it meanwhile.
            texts = tf.strings.regex_replace(texts, "\\x{0}", "\n")
            texts = tf.strings.lower(texts, encoding="utf-8")
            texts = tf.strings.regex_replace(texts, "\n", "\0")
        return texts


@functools.cache
def character_class(test) -> str:
    """Returns the regular expression of one character for which `test` holds in Python.

    RE2's own classes differ: \\p{Mn} is not combining() != 0, \\s is ASCII.
    """
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if test(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "[" + "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges) + "]"
