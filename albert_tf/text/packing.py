"""Packs texts of any length into model inputs, `[CLS] A [SEP] B [SEP]`, in the graph."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from albert_tf.text.windows import Windows, cut

# All batches are padded to a multiple of this length, to limit the number of shapes: the
# element-wise passes of training are compiled once per length, in 0.15 s.
LENGTH_STEP = 8

NUM_SPECIAL_PIECES = 3  # [CLS] and two [SEP]

# Tensor names of packed sequences: in records (as in the reference) and as model inputs.
FEATURES = ("input_ids", "input_mask", "segment_ids")
_OF_MODEL = ("input_word_ids", "input_mask", "input_type_ids")


def model_inputs(tokens: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the FEATURES of `tokens`, renamed to the names of the model's inputs."""
    return {name: tokens[feature] for name, feature in zip(_OF_MODEL, FEATURES)}


def lay_out(
    pieces: tf.Tensor,
    parts: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor],
    seq_len: int | tf.Tensor,
    special_ids: tuple[int, int],
    pad_id: int = 0,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Builds rows of the form `[CLS] A [SEP] B [SEP]` or `[CLS] A [SEP]`.

    Example: pieces `a b c d e`, parts (0, 3, 3, 2) and seq_len 9 give the ids
    `[CLS] a b c [SEP] d e [SEP] [PAD]`, mask `1 1 1 1 1 1 1 1 0`, types `0 0 0 0 0 1 1 1 0`.

    Args:
      pieces: int32 [n], n > 0, the pieces of all texts.
      parts: index of A's first piece, length of A, index of B's first piece and length of B, int32
        [rows] each. If the length of B is -1, the row has no B and no second [SEP].
      seq_len: length of the rows, at least the longest row without padding.
      special_ids: ids of [CLS] and [SEP].
      pad_id: id that fills each row after its last [SEP].

    Returns int32 [rows, seq_len] piece ids, mask (1 = real) and type ids (1 = B and its [SEP]).
    """
    begin_a, len_a, begin_b, len_b = (column[:, tf.newaxis] for column in parts)
    cls_id, sep_id = special_ids
    position = tf.range(seq_len)[tf.newaxis, :]
    first_sep = 1 + len_a
    last_sep = first_sep + len_b + 1
    in_a = (position >= 1) & (position < first_sep)
    in_b = (position > first_sep) & (position < last_sep)
    source = tf.where(in_a, begin_a + position - 1, begin_b + position - first_sep - 1)
    ids = tf.gather(pieces, tf.where(in_a | in_b, source, 0))
    is_sep = (position == first_sep) | (position == last_sep)
    ids = tf.where(in_a | in_b, ids, tf.where(is_sep, sep_id, pad_id))
    ids = tf.where(position == 0, cls_id, ids)
    is_real = position <= last_sep
    is_second = (position > first_sep) & is_real
    return ids, tf.cast(is_real, tf.int32), tf.cast(is_second, tf.int32)


class Packer:
    """Adds [CLS] and [SEP] to sequences of pieces and pads them.

    `tokenizer` is an AlbertTokenizer (whose module imports this one); `max_seq_length` counts
    pieces, special ones included.
    """

    def __init__(self, tokenizer, max_seq_length: int | tf.Tensor):
        self.max_seq_length = max_seq_length
        self._cls_id, self._sep_id = tokenizer.cls_id, tokenizer.sep_id
        self._pad_id, self._unk_id = tokenizer.pad_id, tokenizer.unk_id

    def truncate_and_pack(
        self,
        first: tf.RaggedTensor,
        second: tf.RaggedTensor | None = None,
        has_second: tf.Tensor | bool = True,
    ) -> dict[str, tf.Tensor]:
        """Truncates texts to max_seq_length and packs them. See `pack`.

        Pieces are removed one by one from the end of the longer part, or of the second part if both
        have the same length.
        Source: the reference's _truncate_seq_pair, in closed form.
        """
        first_length = first.row_lengths()
        if second is None:
            return self.pack(first, first_length=tf.minimum(first_length, self.max_seq_length - 2))
        second_length = second.row_lengths()
        room = self.max_seq_length - 2 - tf.cast(has_second, tf.int64)
        # A part gets the room that the other part leaves, at least half (the first: rounded up).
        first_length = tf.minimum(first_length, tf.maximum(room - second_length, (room + 1) // 2))
        second_length = tf.minimum(second_length, room - first_length)
        return self.pack(first, second, first_length, tf.where(has_second, second_length, -1))

    def pack(
        self,
        first: tf.RaggedTensor,
        second: tf.RaggedTensor | None = None,
        first_length: tf.Tensor | None = None,
        second_length: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Packs `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`.

        All rows have the length of the longest row, rounded up to a multiple of LENGTH_STEP, but at
        most max_seq_length.

        Args:
          first: int32 [rows, (pieces)].
          second: int32 [rows, (pieces)]. None if no row has a second part.
          first_length: int64 [rows], number of pieces to use of each row. Default: all, which fit.
          second_length: int64 [rows], the same for `second`. -1 if the row has no second part.

        Returns:
          dict of int32 [rows, seq_len] `input_ids`, `input_mask`, `segment_ids`.
        """
        first_length = first.row_lengths() if first_length is None else first_length
        if second is None:
            second, second_length = first, tf.fill([first.nrows()], tf.constant(-1, tf.int64))
        second_length = second.row_lengths() if second_length is None else second_length
        second_begin = second.row_starts() + tf.size(first.flat_values, tf.int64)
        parts = (first.row_starts(), first_length, second_begin, second_length)
        # Even an empty batch needs a positive length, because ops on shape [0, 0] fail.
        longest = tf.reduce_max(first_length + second_length) + NUM_SPECIAL_PIECES
        longest = tf.cast(tf.maximum(longest, 2), tf.int32)
        seq_len = tf.minimum(rounded_up(longest), tf.cast(self.max_seq_length, tf.int32))
        laid_out = lay_out(
            # One extra piece, because tf.gather fails on an empty tensor.
            tf.concat([first.flat_values, second.flat_values, [self._pad_id]], axis=0),
            tuple(tf.cast(column, tf.int32) for column in parts),
            seq_len,
            (self._cls_id, self._sep_id),
            self._pad_id,
        )
        return dict(zip(FEATURES, laid_out))

    def pack_choices(
        self, contexts: tf.RaggedTensor, answers: tf.RaggedTensor, max_qa_length: int
    ) -> dict[str, tf.Tensor]:
        """Packs contexts and answers (a question with an option), both int32 [rows, (pieces)].

        Each answer is truncated to its last max_qa_length pieces, each context to the first pieces
        that fit beside it.
        Source: the reference's race_utils.convert_single_example.
        """
        room = self.max_seq_length - NUM_SPECIAL_PIECES
        answers = answers[:, -min(max_qa_length, room) :]
        lengths = tf.minimum(contexts.row_lengths(), room - answers.row_lengths())
        return self.pack(contexts, answers, lengths)

    def pack_windows(
        self,
        queries: tf.RaggedTensor,
        contexts: tf.RaggedTensor,
        max_query_length: int,
        doc_stride: int,
    ) -> tuple[dict[str, tf.Tensor], Windows, tf.Tensor]:
        """Packs each query with each window of its context, both int32 [batch, (pieces)].

        Queries are truncated to max_query_length pieces, or fewer if there is no room for the
        context. Returns the packed sequences, their Windows, and the position of the first context
        piece in each window, int64 [windows].
        """
        longest = self.max_seq_length - NUM_SPECIAL_PIECES - 1
        queries = queries[:, : min(max_query_length, longest)]
        room = self.max_seq_length - NUM_SPECIAL_PIECES - queries.row_lengths()
        windows = cut(contexts, room, doc_stride)
        shown = tf.gather(contexts.flat_values, windows.pieces.flat_values)
        queries = tf.gather(queries, windows.text)
        tokens = self.pack(queries, windows.pieces.with_flat_values(shown))
        return tokens, windows, queries.row_lengths() + 2

    def pack_words(
        self, tokenizer: Callable, words: tf.RaggedTensor, doc_stride: int
    ) -> tuple[dict[str, tf.Tensor], Windows]:
        """Packs windows of texts, string [batch, (words)]. Each word is tokenized separately.

        Words are numbered from 1 across all texts. The packed windows also contain `word`, int32
        [windows, seq_len]: the number of a word at its first piece, in the window with the most
        context around this piece, and 0 elsewhere.
        """
        different, which = tf.unique(words.flat_values)
        pieces = tokenizer(different)
        # A word without pieces (such as a single combining mark) becomes the unknown piece.
        lengths = tf.cast(tf.equal(pieces.row_lengths(), 0), tf.int64)
        unknown = tf.fill([tf.reduce_sum(lengths)], self._unk_id)
        pieces = tf.concat([pieces, tf.RaggedTensor.from_row_lengths(unknown, lengths)], axis=1)
        pieces = tf.gather(pieces, which)
        texts = tf.RaggedTensor.from_row_splits(
            pieces.flat_values, tf.gather(pieces.row_splits, words.row_splits), validate=False
        )
        is_first = tf.equal(tf.ragged.range(pieces.row_lengths()).flat_values, 0)
        number = tf.where(is_first, tf.cumsum(tf.cast(is_first, tf.int32)), 0)

        room = tf.fill([texts.nrows()], tf.constant(self.max_seq_length, tf.int64))
        windows = cut(texts, room - 2, doc_stride)  # room for [CLS] and [SEP]
        piece = windows.pieces.flat_values
        tokens = self.pack(windows.pieces.with_flat_values(tf.gather(texts.flat_values, piece)))
        number = tf.where(windows.is_max_context, tf.gather(number, piece), 0)
        number = windows.pieces.with_flat_values(number)
        seq_len = tf.shape(tokens["input_ids"], tf.int64)[1]
        number = number.to_tensor(shape=tf.stack([-1, seq_len - 1]))
        tokens["word"] = tf.pad(number, [[0, 0], [1, 0]])  # 0 at [CLS]
        return tokens, windows

    def pad_to_longest(self, tokens: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Pads the output of `pack` to length max_seq_length."""
        seq_len = tf.cast(self.max_seq_length, tf.int32)
        missing = seq_len - tf.shape(tokens["input_ids"])[1]
        shape = [None, tf.get_static_value(seq_len)]
        padded = {}
        for name, padding in zip(FEATURES, (self._pad_id, 0, 0)):
            rows = tf.pad(tokens[name], [[0, 0], [0, missing]], constant_values=padding)
            padded[name] = tf.ensure_shape(rows, shape)
        return padded


def rounded_up(length: Any) -> Any:
    """Rounds a length, or a tensor of lengths, up to a multiple of LENGTH_STEP."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP
