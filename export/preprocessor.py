"""Preprocessor of an export, which maps strings to encoder inputs as defined by TF-Hub's text API.

Source: TF-Hub's "Common SavedModel APIs for Text Tasks". The names of the encoder inputs come from
Model Garden.
"""

import os

import tensorflow as tf

from albert_tf.text.limits import chars_of_sequence
from albert_tf.text.packing import Packer, model_inputs
from albert_tf.text.tokenization import AlbertTokenizer

# Path relative to the directory of a version. TF Serving ignores assets.extra.
PREPROCESSOR_DIR = os.path.join("assets.extra", "preprocessor")

_PIECES = tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1, row_splits_dtype=tf.int64)


class _Tokenize(tf.train.Checkpoint):
    """Tokenizes texts without adding special pieces."""

    def __init__(self, tokenizer: AlbertTokenizer, longest: int):
        super().__init__()
        self.tokenizer = tokenizer.in_graph()
        self._longest = longest

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, text):
        """Maps texts, string [batch], to int32 [batch, (pieces)]."""
        return self.tokenizer(chars_of_sequence(text, self._longest))


class _BertPackInputs(tf.train.Checkpoint):
    """Packs the pieces of one or two texts into encoder inputs."""

    def __init__(self, tokenizer: AlbertTokenizer, seq_length: int):
        super().__init__()
        self._tokenizer = tokenizer
        self._seq_length = seq_length

    @tf.function(autograph=False)
    def __call__(self, inputs, seq_length=None):
        """Packs `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, truncated to seq_length.

        `inputs` is a list of one or two int32 [batch, (pieces)]. `seq_length`, int32 [], defaults
        to the export's max_seq_length. Returns model_inputs, int32 [batch, seq_length].
        """
        seq_length = self._seq_length if seq_length is None else seq_length
        packer = Packer(self._tokenizer, tf.cast(seq_length, tf.int64))
        return model_inputs(packer.pad_to_longest(packer.truncate_and_pack(*inputs)))


class Preprocessor(tf.train.Checkpoint):
    """Maps texts to encoder inputs of `seq_length` pieces, or up to `longest` in two steps."""

    def __init__(self, tokenizer: AlbertTokenizer, seq_length: int, longest: int):
        super().__init__()
        self.tokenize = _Tokenize(tokenizer, longest)
        self.bert_pack_inputs = _BertPackInputs(tokenizer, seq_length)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, text):
        """Tokenizes and packs single texts, string [batch]; see bert_pack_inputs."""
        return self.bert_pack_inputs([self.tokenize(text)])

    def save(self, directory: str) -> None:
        """Saves the preprocessor as a SavedModel."""
        # Trace bert_pack_inputs for one and two texts, with and without `seq_length`.
        for inputs in ([_PIECES], [_PIECES, _PIECES]):
            for length in ({}, {"seq_length": tf.TensorSpec([], tf.int32)}):
                self.bert_pack_inputs.__call__.get_concrete_function(inputs, **length)
        tf.saved_model.save(self, directory)
