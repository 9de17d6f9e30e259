"""SentencePiece and WordPiece tokenizers, in Python and as TensorFlow ops."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import json
import math
import operator
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece
import tensorflow as tf

from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text import wordpiece
from albert_tf.text.in_graph import WORD_BOUNDARY, InGraphTokenizer, on_host
from albert_tf.text.limits import chars_of_sequence
from albert_tf.text.packing import NUM_SPECIAL_PIECES, Packer, model_inputs
from albert_tf.text.words import SCRIPTS_WITHOUT_SPACES

# The first pieces of every ALBERT vocabulary. Text never produces the last three (control pieces).
PAD, UNK, CLS, SEP, MASK = "<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"

VOCABULARY_FILE = "spiece.model"
WORDPIECE_FILE = "vocab.txt"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"

# For longer words (in characters) or texts (in pieces), segmentations may have equal scores,
# because float32 sums of many scores are rounded. One of 600 texts of 1,000 words had such a tie.
_LONGEST_WORD = 64
_LONGEST_TEXT = 512


def preprocess(text: str, do_lower_case: bool) -> str:
    """Prepares text for SentencePiece: normalizes spaces, removes accents, may lower-case it.

    Source: the reference's tokenization.preprocess_text.
    """
    text = " ".join(text.split())
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = "".join(c for c in text if not unicodedata.combining(c))
    return text.lower() if do_lower_case else text


def check_texts(texts: Sequence[str], name: str = "texts") -> None:
    """Raises a UserError if `texts` is not a list of strings."""
    if isinstance(texts, str):
        raise UserError(f"expected a list of {name}, got one string: put it into a list")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"{name}[{place}]: expected a string, got {text!r}")


class AlbertTokenizer:
    """SentencePiece tokenizer of ALBERT.

    `encode` returns piece ids without special pieces. Calling the tokenizer returns model inputs.

    Pieces that end in a digit and a comma are split again (`▁2010,` becomes `▁2010` `,`), as in the
    training of the published models.

    Source: the reference's tokenization.FullTokenizer and encode_pieces.
    Deviation: `3.0,` becomes `▁3 . 0 ,`. In Python 3, the reference leaves a stray boundary
    mark (`▁3 . ▁0 ,`), because it compares a string with bytes.

    Args:
      spm_model_file: path of a SentencePiece model with ALBERT's control pieces, or of a WordPiece
        vocabulary (a .txt file), which creates a WordPieceTokenizer.
      do_lower_case: If True, lower-cases the text, as for the published English models.

    Raises a UserError if the file is not a valid vocabulary.
    """

    vocabulary_name = VOCABULARY_FILE  # file name in a model directory

    def __new__(cls, spm_model_file: str, do_lower_case: bool = True):  # noqa: ARG004  for __init__
        """Creates a WordPieceTokenizer if the file name ends in .txt."""
        if cls is AlbertTokenizer and os.fspath(spm_model_file).endswith(".txt"):
            cls = WordPieceTokenizer
        return super().__new__(cls)

    def __init__(self, spm_model_file: str, do_lower_case: bool = True):
        self._read(spm_model_file, do_lower_case)
        self._processor = sentencepiece.SentencePieceProcessor()
        pieces: list[str] = []
        with contextlib.suppress(RuntimeError, UnicodeDecodeError):
            self._processor.LoadFromSerializedProto(self.model_bytes)
            pieces = [self._processor.id_to_piece(i) for i in range(self._processor.vocab_size())]
        if not pieces:
            raise UserError(
                f"{spm_model_file!r} is not a SentencePiece model: expected the .model file that "
                "pipelines.train_vocab writes (not its .vocab)"
            )
        hint = "use pipelines.train_vocab, or SentencePiece with these as control symbols"
        self._set_pieces(pieces, (PAD, UNK, CLS, SEP, MASK), spm_model_file, hint)

    def _set_pieces(self, pieces: list[str], special: Sequence[str], path: str, hint: str) -> None:
        missing = [piece for piece in special if piece not in pieces]
        if missing:
            raise UserError(f"the vocabulary {path!r} lacks {', '.join(missing)}: {hint}")
        self.pieces, self.vocab_size = pieces, len(pieces)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(
            pieces.index, special
        )

    def _read(self, path: str, do_lower_case: bool) -> None:
        if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
            raise UserError(
                f"no vocabulary at {path!r}: expected a SentencePiece model, as "
                "pipelines.train_vocab makes, or WordPiece's vocab.txt"
            )
        with tf.io.gfile.GFile(path, "rb") as file:
            self.model_bytes = file.read()
        self.sha256 = hashlib.sha256(self.model_bytes).hexdigest()
        self.do_lower_case = do_lower_case

    @classmethod
    def load(cls, directory: str) -> AlbertTokenizer:
        """Loads the tokenizer from a model directory.

        If there is no tokenizer_config.json, text is lower-cased, as for the published models.

        Raises a UserError if a file is missing, malformed or has unsupported settings.
        """
        return cls(find_vocabulary(directory), read_do_lower_case(directory))

    def save(self, directory: str) -> None:
        """Saves the vocabulary and tokenizer_config.json to a model directory."""
        settings = json.dumps({"do_lower_case": self.do_lower_case}) + "\n"
        files.write_atomically(os.path.join(directory, self.vocabulary_name), self.model_bytes)
        files.write_atomically(os.path.join(directory, TOKENIZER_CONFIG_FILE), settings)

    def preprocess(self, text: str) -> str:
        """Prepares text for SentencePiece; see the function `preprocess`."""
        return preprocess(text, self.do_lower_case)

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
          multiple of 16, but at most `max_length`.

        Raises:
          UserError: if `texts` is a single string, or `text_pairs` has a different length.
        """
        parts = {"texts": texts}
        if text_pairs is not None:
            parts["text_pairs"] = text_pairs
        for name, part in parts.items():
            check_texts(part, name)
            if len(part) != len(texts):
                raise UserError(f"{len(texts):,} texts, but {len(part):,} text_pairs")
        if max_length < NUM_SPECIAL_PIECES:
            raise UserError(f"max_length={max_length}: expected {NUM_SPECIAL_PIECES} or more")
        with on_host():
            strings = [tf.constant(list(part), tf.string, [len(part)]) for part in parts.values()]
            pieces = [self.in_graph()(chars_of_sequence(part, max_length)) for part in strings]
            return model_inputs(Packer(self, max_length).truncate_and_pack(*pieces))

    def encode(self, text: str) -> list[int]:
        """Returns the piece ids of a text, without special pieces."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the piece ids of several texts. Faster than calling `encode` in a loop."""
        texts = [self.preprocess(text) for text in texts]
        # One thread, because jobs that tokenize many texts run one process per core.
        encoded = self._processor.encode(texts, num_threads=1)
        ties = [i for i, text in enumerate(texts) if self._may_tie(text, encoded[i])]
        if ties:
            for i, ids in zip(ties, self.in_graph().segment([texts[i] for i in ties]).to_list()):
                encoded[i] = ids
        splits = self.digit_comma_splits
        return [
            ids
            if splits.keys().isdisjoint(ids)
            else [part for i in ids for part in splits.get(i, (i,))]
            for ids in encoded
        ]

    def _may_tie(self, text: str, ids: list[int]) -> bool:
        """Returns whether segmentations with equal scores may exist (`e ee`, `ee e` for `eee`).

        SentencePiece releases break ties differently, and tensorflow-text contains an older release
        than the Python package. So text with possible ties is tokenized by tensorflow-text. Such
        text is rare. It has repeated strings, words of over 64 characters, or over 512 pieces.
        """
        if len(ids) > _LONGEST_TEXT:
            return True
        if len(text) > _LONGEST_WORD and max(map(len, text.split(" "))) > _LONGEST_WORD:
            return True
        roots = [self._repeated_roots[i] for i in ids]
        return any(map(operator.eq, roots, roots[1:]))

    @functools.cached_property
    def _repeated_roots(self) -> list[float]:
        """A number per piece for its root, the string that it repeats (`e` for `e` and `ee`).

        Two adjacent pieces can be swapped if they have the same root. A piece with a unique root
        gets NaN, which is not equal to any number.
        """
        roots = [piece[: (piece + piece).find(piece, 1)] for piece in self.pieces]
        counts = collections.Counter(roots)
        numbers = {root: float(number) for number, root in enumerate(counts)}
        return [numbers[root] if counts[root] > 1 else math.nan for root in roots]

    def id_to_piece(self, piece_id: int) -> str:
        """Returns the text of a piece."""
        return self.pieces[piece_id]

    def decode(self, ids: Iterable[int]) -> str:
        """Converts piece ids to readable text. Boundary marks become spaces."""
        return "".join(self.pieces[i] for i in ids).replace(WORD_BOUNDARY, " ").strip()

    @functools.cached_property
    def digit_comma_splits(self) -> dict[int, list[int]]:
        """Maps the id of each piece that ends in a digit and a comma to the ids of its parts."""
        splits = {}
        for piece_id, piece in enumerate(self.pieces):
            if not re.search(r"\d,$", piece):
                continue
            parts = self._processor.encode(piece[:-1].replace(WORD_BOUNDARY, ""), out_type=str)
            if not piece.startswith(WORD_BOUNDARY) and parts[0].startswith(WORD_BOUNDARY):
                parts = [parts[0][1:], *parts[1:]] if len(parts[0]) > 1 else parts[1:]
            splits[piece_id] = [self._processor.piece_to_id(part) for part in [*parts, ","]]
        return splits

    def word_starts(self) -> np.ndarray:
        """Returns whether each piece starts a word, bool [vocab_size], for whole-word masking.

        A piece starts a word if it begins with the boundary mark, contains no letter, mark or
        digit, or belongs to a script without spaces. A byte piece starts a word if it starts a
        UTF-8 character. All other pieces continue the preceding word.

        Deviation: in the reference, a piece starts a word if it contains a character other than
        A-Z, a-z and common punctuation, so numbers and other scripts have no whole words.
        Punctuation of several characters (`...`) continues a word in the reference.
        """
        processor = self._processor

        def begins(piece_id: int, piece: str) -> bool:
            if processor.is_byte(piece_id):
                return not 0x80 <= int(piece[1:-1], 16) < 0xC0  # no continuation byte
            is_special = processor.is_control(piece_id) or processor.is_unknown(piece_id)
            if is_special or piece.startswith(WORD_BOUNDARY):
                return True
            # Letters, marks and numbers of any script.
            wordlike = any(unicodedata.category(c)[0] in "LMN" for c in piece)
            return not wordlike or unicodedata.name(piece[0], "").startswith(SCRIPTS_WITHOUT_SPACES)

        return np.array([begins(i, piece) for i, piece in enumerate(self.pieces)])

    def replacement_ids(self) -> np.ndarray:
        """Returns ids that may replace a masked piece, int32 [n]. No control or byte pieces."""
        processor = self._processor
        tests = (processor.is_control, processor.is_unknown, processor.is_unused, processor.is_byte)
        ids = [i for i in range(self.vocab_size) if not any(test(i) for test in tests)]
        return np.array([i for i in ids if i != self.pad_id], np.int32)

    @functools.cached_property
    def textless_ids(self) -> list[int]:
        """Ids of pieces that represent no text: [CLS], [SEP], padding and a boundary mark alone.

        Example: `我` becomes `▁ <unk>`. If `▁` counted as text, only half of `我` would be unknown.
        """
        marks = [i for i, piece in enumerate(self.pieces) if piece == WORD_BOUNDARY]
        return [self.pad_id, self.cls_id, self.sep_id, *marks]

    def unknown_shares(self, pieces: np.ndarray, row_splits: np.ndarray) -> np.ndarray:
        """Returns the fraction of `<unk>` among the text pieces of each row, float32 [rows].

        A row without text pieces gets 1.

        Args:
          pieces: int32 [all pieces].
          row_splits: int64 [rows + 1]: row i is pieces[row_splits[i]:row_splits[i + 1]].
        """
        is_text = ~np.isin(pieces, self.textless_ids)
        counts = [
            np.diff(np.concatenate([[0], np.cumsum(which)])[row_splits]).astype(np.float32)
            for which in (pieces == self.unk_id, is_text)
        ]
        return np.where(counts[1] > 0, counts[0] / np.maximum(counts[1], 1), np.float32(1))

    def in_graph(self) -> InGraphTokenizer:
        """Returns this tokenizer as TensorFlow ops, for use in a graph or with many texts."""
        with tf.init_scope(), on_host():
            try:
                self._in_graph.segment([""])
            except tf.errors.NotFoundError:
                # tf.random.set_seed clears TensorFlow's kernel cache, which contains the model.
                del self._in_graph
            return self._in_graph

    @functools.cached_property
    def _in_graph(self) -> InGraphTokenizer:
        return InGraphTokenizer(self)


class WordPieceTokenizer(AlbertTokenizer):
    """WordPiece tokenizer of BERT, which greedily splits words into the longest pieces.

    Words that cannot be split into known pieces become [UNK]. `[MASK]` in a text is plain text.

    Source: BERT's tokenization.FullTokenizer; Hugging Face's tokenizers (BertNormalizer).
    Deviation: as in Hugging Face's code, accents are removed first, and then each letter is
    lower-cased. BERT's code lower-cases whole words, which changes a Greek sigma at a word's end.
    Hugging Face's Unicode tables are older than Python's. About 500 rare characters are punctuation
    or marks in only one of the two versions.

    Args:
      vocabulary_file: one piece per line, including [PAD], [UNK], [CLS], [SEP] and [MASK].
      do_lower_case: If True, lower-cases the text and removes accents.

    Raises a UserError if the file is not a WordPiece vocabulary.
    """

    vocabulary_name = WORDPIECE_FILE

    def __init__(self, vocabulary_file: str, do_lower_case: bool = True):
        self._read(vocabulary_file, do_lower_case)
        try:
            lines = self.model_bytes.decode("utf-8").replace("\r\n", "\n").split("\n")
        except UnicodeDecodeError:
            raise UserError(f"{vocabulary_file!r} is not UTF-8: expected a piece a line") from None
        pieces = lines[:-1] if not lines[-1] else lines
        hint = "expected a WordPiece vocabulary, a piece a line"
        self._set_pieces(pieces, wordpiece.SPECIAL, vocabulary_file, hint)
        self._ids: dict[str, int] = {}
        for i, piece in enumerate(pieces):
            place = f"{vocabulary_file}:{i + 1}"
            if not piece or piece in self._ids:
                what = f"{piece!r} again" if piece else "an empty piece"
                raise UserError(f"{place}: {what}; expected a piece a line")
            num_bytes = len(piece.removeprefix(wordpiece.CONTINUATION).encode())
            if num_bytes > wordpiece.LONGEST_PIECE:
                raise UserError(
                    f"{place}: a piece of {num_bytes:,} bytes, expected at most "
                    f"{wordpiece.LONGEST_PIECE}"
                )
            self._ids[piece] = i
        self._word_ids = functools.lru_cache(1 << 16)(self._split_word)

    def preprocess(self, text: str) -> str:
        """Prepares text for WordPiece. Spaces separate the words that are split into pieces."""
        return " ".join(text.translate(wordpiece.prepared(self.do_lower_case)).split(" "))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the piece ids of several texts."""
        table = wordpiece.prepared(self.do_lower_case)
        return [
            [i for word in text.translate(table).split(" ") if word for i in self._word_ids(word)]
            for text in texts
        ]

    def _split_word(self, word: str) -> tuple[int, ...]:
        if len(word) > wordpiece.LONGEST_WORD:
            return (self.unk_id,)
        ids, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = word[start:end] if not start else wordpiece.CONTINUATION + word[start:end]
                if piece in self._ids:
                    ids.append(self._ids[piece])
                    start = end
                    break
            else:
                return (self.unk_id,)
        return tuple(ids)

    def decode(self, ids) -> str:
        """Converts piece ids to readable text, with spaces between words."""
        text = " ".join(self.pieces[i] for i in ids)
        return text.replace(f" {wordpiece.CONTINUATION}", "")

    @property
    def digit_comma_splits(self) -> dict[int, list[int]]:
        """Returns an empty dict, because only SentencePiece pieces are split at digit and comma."""
        return {}

    def word_starts(self) -> np.ndarray:
        """Returns whether each piece starts a word, bool [vocab_size], for whole-word masking.

        Pieces without ## start a word, and so do all pieces of scripts without spaces, such as
        Chinese.
        """

        def begins(piece: str) -> bool:
            if not piece.startswith(wordpiece.CONTINUATION) or piece == wordpiece.CONTINUATION:
                return True
            return unicodedata.name(piece[2], "").startswith(SCRIPTS_WITHOUT_SPACES)

        return np.array([begins(piece) for piece in self.pieces])

    def replacement_ids(self) -> np.ndarray:
        """Returns ids that may replace a masked piece, int32 [n]. No special or unused pieces."""
        ids = [
            i
            for i, piece in enumerate(self.pieces)
            if piece not in wordpiece.SPECIAL and not piece.startswith("[unused")
        ]
        return np.array(ids, np.int32)

    def in_graph(self) -> wordpiece.InGraphWordPiece:
        """Returns this tokenizer as TensorFlow ops, for use in a graph or with many texts."""
        with tf.init_scope(), on_host():
            return self._in_graph

    @functools.cached_property
    def _in_graph(self) -> wordpiece.InGraphWordPiece:
        return wordpiece.InGraphWordPiece(self)


def find_vocabulary(directory: str) -> str:
    """Returns the path of a directory's spiece.model, or of vocab.txt if only that exists."""
    path = os.path.join(directory, VOCABULARY_FILE)
    wordpiece = os.path.join(directory, WORDPIECE_FILE)
    return wordpiece if tf.io.gfile.exists(wordpiece) and not tf.io.gfile.exists(path) else path


def read_do_lower_case(directory: str) -> bool:
    """Returns do_lower_case from a directory's tokenizer_config.json. Default: True.

    Raises a UserError if the file has settings of transformers' tokenizers that would give other
    pieces than the tokenizers of this module.
    """
    path = os.path.join(directory, TOKENIZER_CONFIG_FILE)
    found = files.read_json_if_exists(path)
    lower_case = found.get("do_lower_case", True)
    if not isinstance(lower_case, bool):
        raise UserError(f"{path}: do_lower_case is {lower_case!r}, expected true or false")
    supported = {
        "keep_accents": False,
        "remove_space": True,
        "strip_accents": lower_case,
        "tokenize_chinese_chars": True,
        "do_basic_tokenize": True,
    }
    for name, value in supported.items():
        if found.get(name) not in (None, value):
            raise UserError(
                f"{path}: {name} is {json.dumps(found[name])}, but the tokenizers of this project "
                f"do as with {json.dumps(value)}, so the model would get pieces that it was not "
                "trained on. To accept this, change the value in the file"
            )
    return lower_case
