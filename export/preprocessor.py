"""The preprocessor of an export, with TF-Hub's API for text: maps strings to encoder inputs.

It is a separate SavedModel, because it runs in an input pipeline and is never trained.

Source: TF-Hub's "Common SavedModel APIs for Text Tasks"; the names of the encoder's inputs come
from Model Garden.
"""

from __future__ import annotations

import os

import tensorflow as tf

from albert_tf.text.limits import chars_of_sequence
from albert_tf.text.packing import Packer, model_inputs
from albert_tf.text.tokenization import AlbertTokenizer

# Path in a version's directory. TF Serving ignores assets.extra.
PREPROCESSOR_DIR = os.path.join("assets.extra", "preprocessor")

_PIECES = tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1, row_splits_dtype=tf.int64)


class _Tokenize(tf.train.Checkpoint):
    """Maps texts to pieces, without special pieces."""

    def __init__(self, tokenizer: AlbertTokenizer, longest: int):
        super().__init__()
        self.tokenizer = tokenizer.in_graph()
        self._longest = longest

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, text):
        """Returns int32 [batch, (pieces)] of texts, string [batch]."""
        return self.tokenizer(chars_of_sequence(text, self._longest))


class _BertPackInputs(tf.train.Checkpoint):
    """Packs the pieces of one or two texts into encoder inputs."""

    def __init__(self, tokenizer: AlbertTokenizer, seq_length: int):
        super().__init__()
        self._tokenizer = tokenizer
        self._seq_length = seq_length

    @tf.function
    def __call__(self, inputs, seq_length=None):
        """Packs `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, truncated to seq_length.

        Takes a list of one or two int32 [batch, (pieces)]. `seq_length`, int32 [], defaults to the
        export's max_seq_length. Returns int32 [batch, seq_length] model_inputs.
        """
        seq_length = self._seq_length if seq_length is None else seq_length
        packer = Packer(self._tokenizer, tf.cast(seq_length, tf.int64))
        return model_inputs(packer.pad_to_longest(packer.truncate_and_pack(*inputs)))


class Preprocessor(tf.train.Checkpoint):
    """Maps texts to encoder inputs; `tokenize` and `bert_pack_inputs` do it in two steps.

    Sequences have `seq_length` pieces; bert_pack_inputs accepts other lengths, at most `longest`.
    """

    def __init__(self, tokenizer: AlbertTokenizer, seq_length: int, longest: int):
        super().__init__()
        self.tokenize = _Tokenize(tokenizer, longest)
        self.bert_pack_inputs = _BertPackInputs(tokenizer, seq_length)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, text):
        """Tokenizes single texts, string [batch], and packs them; see bert_pack_inputs."""
        return self.bert_pack_inputs([self.tokenize(text)])

    def save(self, directory: str) -> None:
        """Writes the SavedModel."""
        # Trace bert_pack_inputs for one and two texts, with and without a given length.
        for inputs in ([_PIECES], [_PIECES, _PIECES]):
            for length in ({}, {"seq_length": tf.TensorSpec([], tf.int32)}):
                self.bert_pack_inputs.__call__.get_concrete_function(inputs, **length)
        tf.saved_model.save(self, directory)
