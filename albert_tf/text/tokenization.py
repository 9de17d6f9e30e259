"""The tokenizer of a model: from text to piece ids and model inputs, in Python and TensorFlow."""

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text import huggingface_files, settings
from albert_tf.text.huggingface_files import TOKENIZER_CONFIG_FILE
from albert_tf.text.in_graph import WORD_BOUNDARY, InGraphTokenizer, on_host
from albert_tf.text.limits import chars_of_sequence
from albert_tf.text.packing import NUM_SPECIAL_PIECES, Packer, model_inputs
from albert_tf.text.sentence_pieces import SentencePieceVocabulary
from albert_tf.text.settings import TextSettings
from albert_tf.text.wordpiece import InGraphWordPiece, WordPieceVocabulary

# The first pieces of every ALBERT vocabulary. Text never produces the last three (control pieces).
PAD, UNK, CLS, SEP, MASK = SentencePieceVocabulary.special
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can encode a lone one


def as_list(items: Iterable[Any], name: str) -> list[Any]:
    """Returns `items` as a list. Raises a UserError for a table, a dict, a set or one string."""
    if isinstance(items, (str, bytes)):
        raise UserError(f"expected a list of {name}, got one string: put it into a list")
    expected = f"expected a list of {name}, got {type(items).__name__}"
    if isinstance(items, Mapping) or hasattr(items, "columns"):  # these iterate over column names
        rows = ", or a list of its rows, table.to_dict('records')" * (name == "rows")
        raise UserError(f"{expected}: pass a column of the table, list(table['text']){rows}")
    if isinstance(items, Set) or not isinstance(items, Iterable):
        raise UserError(expected)
    return list(items)


def as_texts(texts: Iterable[str], name: str = "texts") -> list[str]:
    """Returns `texts` as a list. Lone surrogates, which UTF-8 cannot encode, become U+FFFD.

    Raises a UserError if `texts` are not an iterable of strings.
    """
    if tf.is_tensor(texts):
        raise UserError(
            f"expected a list of {name}, got a tensor: in a graph or tf.data, give it to "
            "in_graph() of the tokenizer, which returns pieces without [CLS] and [SEP]"
        )
    texts = as_list(texts, name)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            # How pandas marks an empty cell.
            is_missing = str(text) in ("None", "nan", "<NA>", "NaT")
            found = f'{text}: series.fillna("") replaces it' if is_missing else type(text).__name__
            raise UserError(f"{name}[{place}]: expected a string, got {found}")
        texts[place] = text if text.isascii() else _SURROGATE.sub("\ufffd", text)
    return texts


class AlbertTokenizer:
    """The tokenizer of a model. `encode` returns piece ids, a call returns model inputs.

    It can be pickled and copied.

    Args:
      spm_model_file: path of a SentencePiece model with ALBERT's control pieces, or of a WordPiece
        vocabulary (a .txt file).
      do_lower_case, keep_accents, latex_quotes: see TextSettings. None: as recorded by
        pipelines.train_vocab or in tokenizer_config.json beside the vocabulary, else the default.

    Attributes:
      vocabulary: see SentencePieceVocabulary and WordPieceVocabulary.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special pieces.
      sha256: hash of the vocabulary file.

    Raises a UserError if the file is not a valid vocabulary, or a given setting differs from its
    training. Also if a setting is unknown and its default would keep many pieces from occurring, or
    the files beside the vocabulary name a tokenizer or tokens that are not supported.
    """

    def __init__(
        self,
        spm_model_file: str | os.PathLike,
        do_lower_case: bool | None = None,
        keep_accents: bool | None = None,
        latex_quotes: bool | None = None,
    ):
        path = files.as_path(spm_model_file)
        if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
            raise UserError(
                f"no vocabulary at {path!r}: expected a SentencePiece model, as "
                "pipelines.train_vocab makes, or WordPiece's vocab.txt"
            )
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
        given = do_lower_case, keep_accents, latex_quotes
        known = settings.resolve(path, dict(zip(TextSettings._fields, given)))
        opened = WordPieceVocabulary if path.endswith(".txt") else SentencePieceVocabulary
        self.vocabulary = opened(path, content, TextSettings(**known))
        huggingface_files.check_tokens(os.path.dirname(path), self.vocabulary.special)
        settings.check_reachable(path, self.pieces, self.vocabulary.prepares, known)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.vocabulary.special_ids
        )
        self.sha256 = hashlib.sha256(content).hexdigest()

    @property
    def settings(self) -> TextSettings:
        """How text is prepared."""
        return self.vocabulary.settings

    @property
    def pieces(self) -> list[str]:
        """The texts of all pieces, by id."""
        return self.vocabulary.pieces

    @property
    def vocab_size(self) -> int:
        """The number of pieces."""
        return len(self.pieces)

    @property
    def is_wordpiece(self) -> bool:
        """Whether the pieces are WordPiece's, which mark the continuation of a word by ##."""
        return isinstance(self.vocabulary, WordPieceVocabulary)

    @classmethod
    def load(cls, directory: str) -> "AlbertTokenizer":
        """Loads the tokenizer from a model directory. Raises the errors of the constructor."""
        return cls(find_vocabulary(directory))

    def save(self, directory: str) -> None:
        """Saves the vocabulary and tokenizer_config.json to a model directory."""
        recorded = json.dumps(self.settings._asdict()) + "\n"
        path = os.path.join(directory, self.vocabulary.file_name)
        files.write_atomically(path, self.vocabulary.model_bytes)
        files.write_atomically(os.path.join(directory, TOKENIZER_CONFIG_FILE), recorded)

    def preprocess(self, text: str) -> str:
        """Prepares text for the vocabulary."""
        return self.vocabulary.preprocess(text)

    def __call__(
        self, texts: Sequence[str], text_pairs: Sequence[str] | None = None, max_length: int = 512
    ) -> dict[str, tf.Tensor]:
        """Returns a batch of model inputs in the format of fine-tuning and exports.

        Example: `model.encoder(tokenizer(["The file is open."], max_length=64))`.

        Args:
          texts: each becomes `[CLS] text [SEP]`.
          text_pairs: as many second texts; a pair becomes `[CLS] text [SEP] second text [SEP]`.
          max_length: maximum number of pieces, including special pieces. Longer texts are
            truncated. Must not exceed the model's max_position_embeddings (not checked).

        Returns:
          dict of int32 [texts, L] `input_word_ids`, `input_mask` (1 = real) and `input_type_ids`
          (1 = second text and its [SEP]). In Hugging Face models, their names are input_ids,
          attention_mask and token_type_ids. L is the length of the longest row, rounded up to a
          multiple of 8, but at most `max_length`.

        Raises a UserError if `texts` are no list of strings, or `text_pairs` has a different
        length.
        """
        parts = [as_texts(texts)]
        if text_pairs is not None:
            parts.append(as_texts(text_pairs, "text_pairs"))
        if len(parts[0]) != len(parts[-1]):
            raise UserError(f"{len(parts[0]):,} texts, but {len(parts[-1]):,} text_pairs")
        if not isinstance(max_length, (int, np.integer)) or max_length < NUM_SPECIAL_PIECES:
            raise UserError(
                f"max_length={max_length}: expected a whole number, {NUM_SPECIAL_PIECES} or more"
            )
        with on_host():
            strings = [tf.constant(part, tf.string, [len(part)]) for part in parts]
            pieces = [self.in_graph()(chars_of_sequence(part, max_length)) for part in strings]
            return model_inputs(Packer(self, max_length).truncate_and_pack(*pieces))

    def encode(self, text: str) -> list[int]:
        """Returns the piece ids of a text, without special pieces."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the piece ids of several texts. Faster than calling `encode` in a loop."""
        return self.vocabulary.encode_batch(as_texts(texts))

    def id_to_piece(self, piece_id: int) -> str:
        """Returns the text of a piece."""
        return self.pieces[piece_id]

    def decode(self, ids: Iterable[int]) -> str:
        """Converts piece ids to readable text."""
        return self.vocabulary.decode(ids)

    def word_starts(self) -> np.ndarray:
        """Returns whether each piece starts a word, bool [vocab_size], for whole-word masking."""
        return self.vocabulary.word_starts()

    def replacement_ids(self) -> np.ndarray:
        """Returns ids that may replace a masked piece, int32 [n]: pieces of text alone."""
        return self.vocabulary.replacement_ids()

    def in_graph(self) -> InGraphTokenizer | InGraphWordPiece:
        """Returns this tokenizer as TensorFlow ops, for use in a graph or with many texts."""
        return self.vocabulary.in_graph()

    @functools.cached_property
    def textless_ids(self) -> list[int]:
        """Ids of pieces that represent no text: [CLS], [SEP], padding and a boundary mark alone."""
        # `我` becomes `▁ <unk>`. If `▁` counted as text, only half of `我` would be unknown.
        marks = [i for i, piece in enumerate(self.pieces) if piece == WORD_BOUNDARY]
        return [self.pad_id, self.cls_id, self.sep_id, *marks]

    def unknown_shares(
        self, pieces: tf.Tensor | np.ndarray, row_splits: tf.Tensor | np.ndarray
    ) -> tf.Tensor:
        """Returns the fraction of `<unk>` among the text pieces of each row, float32 [rows].

        Row i is pieces[row_splits[i]:row_splits[i + 1]]. A row without text pieces gets 1.
        """
        pieces = tf.convert_to_tensor(pieces)
        is_text = tf.reduce_all(tf.not_equal(pieces[:, tf.newaxis], self.textless_ids), axis=1)
        ends = (
            tf.gather(tf.concat([[0], tf.cumsum(tf.cast(which, tf.int32))], axis=0), row_splits)
            for which in (tf.equal(pieces, self.unk_id), is_text)
        )
        unknown, text = (tf.cast(of[1:] - of[:-1], tf.float32) for of in ends)
        return tf.where(text > 0, unknown / tf.maximum(text, 1), 1.0)


def find_vocabulary(directory: str) -> str:
    """Returns the path of a directory's spiece.model, or of vocab.txt if only that exists."""
    paths = [
        os.path.join(directory, kind.file_name)
        for kind in (SentencePieceVocabulary, WordPieceVocabulary)
    ]
    return next(filter(tf.io.gfile.exists, paths), paths[0])
