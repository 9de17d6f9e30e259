"""What in_graph.py uses of tensorflow-text, run eagerly in Python where it is not installed.

If segmentations of a text have equal scores, the pieces may differ; see SentencePieceVocabulary.
"""

import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal

import sentencepiece
import tensorflow as tf


def strings(texts: tf.Tensor | Sequence[str]) -> list[str]:
    """Returns the elements of texts, string [batch] of valid UTF-8."""
    return [text.decode() for text in tf.constant(texts, tf.string).numpy()]


def ragged(rows: Iterable[Sequence[int]]) -> tf.RaggedTensor:
    """Returns rows as int32 [batch, (numbers)]."""
    rows = list(rows)
    flat = tf.constant([*itertools.chain.from_iterable(rows)], tf.int32)
    return tf.RaggedTensor.from_row_lengths(flat, tf.constant([*map(len, rows)], tf.int64))


def normalize_utf8(texts: tf.Tensor, form: Literal["NFD", "NFKD"]) -> tf.Tensor:
    """Returns texts, string [batch], in Unicode's normal form `form`."""
    normalized = [unicodedata.normalize(form, text) for text in strings(texts)]
    return tf.constant(normalized, tf.string, texts.shape)


class SentencepieceTokenizer:
    """tensorflow-text's class of this name, with the methods in use."""

    def __init__(self, model: bytes, **_):
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model, num_threads=1)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the pieces of texts, int32 [batch, (pieces)]."""
        return ragged(self._processor.encode(strings(texts)))

    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Returns pieces, and the offsets in bytes of their starts and ends, all int32."""
        texts = strings(texts)
        found = self._processor.encode(texts, return_type="offset_mapping", return_bytes=True)
        offsets = ([[offset[i] for offset in row["offsets"]] for row in found] for i in (0, 1))
        return ragged(row["ids"] for row in found), *map(ragged, offsets)
