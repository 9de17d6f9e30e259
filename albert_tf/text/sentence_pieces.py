"""Vocabularies of SentencePiece."""

import collections
import contextlib
import functools
import math
import operator
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece
import tensorflow as tf

from albert_tf.storage.errors import UserError
from albert_tf.text import model_normalizer, sentencepiece_proto
from albert_tf.text.in_graph import WORD_BOUNDARY, InGraphTokenizer, on_host
from albert_tf.text.settings import TextSettings, preprocess
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.text.words import SCRIPTS_WITHOUT_SPACES

# For longer words (in characters) or texts (in pieces), segmentations may have equal scores,
# because float32 sums of many scores are rounded.
_LONGEST_WORD = 64
_LONGEST_TEXT = 512


class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model with ALBERT's special pieces.

    Pieces that end in a digit and a comma are split again (`▁2010,` becomes `▁2010` `,`), as in the
    training of the published models.

    Source: the reference's tokenization.FullTokenizer and encode_pieces.
    Deviation: `3.0,` becomes `▁3 . 0 ,`. In Python 3, the reference leaves a stray boundary mark
    (`▁3 . ▁0 ,`), because it compares a string with bytes.
    """

    file_name = "spiece.model"
    special = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    hint = "use pipelines.train_vocab, or SentencePiece with these as control symbols"

    def _read(self) -> list[str]:
        self._processor = processor = sentencepiece.SentencePieceProcessor()
        pieces: list[str] = []
        with contextlib.suppress(RuntimeError, UnicodeDecodeError):
            processor.LoadFromSerializedProto(self.model_bytes)
            pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
        if not pieces:
            raise UserError(
                f"{self.path!r} is not a SentencePiece model: expected the .model file that "
                "pipelines.train_vocab writes (not its .vocab)"
            )
        model = sentencepiece_proto.read(self.model_bytes)
        if model.trainer_spec.treat_whitespace_as_suffix:
            raise UserError(
                f"{self.path!r} was trained with treat_whitespace_as_suffix: expected a vocabulary "
                "with the boundary mark at the beginning of words; train it without this option"
            )
        self._marks_first_word = model.normalizer_spec.add_dummy_prefix
        self._normalizes = model.normalizer_spec.name == model_normalizer.NAME
        if in_text := [
            piece
            for i, piece in enumerate(pieces)
            if piece in self.special and not (processor.is_control(i) or processor.is_unknown(i))
        ]:
            raise UserError(
                f"{self.path!r}: {', '.join(in_text)} are user-defined symbols, so a text that "
                "contains them would make special pieces: train the vocabulary with "
                "--control_symbols instead, as pipelines.train_vocab does"
            )
        return pieces

    def preprocess(self, text: str) -> str:
        """Prepares text for SentencePiece; see settings.preprocess."""
        return preprocess(text, self.prepares, self.composes)

    @property
    def prepares(self) -> TextSettings:
        """How text is prepared before SentencePiece. A model's own table leaves only the quotes."""
        if not self._normalizes:
            return self.settings
        return self.settings._replace(do_lower_case=False, keep_accents=True)

    @functools.cached_property
    def composes(self) -> bool:
        """Whether SentencePiece composes a letter and its marks only if all marks are separate."""
        return not self._normalizes and self.normalize("e\u0301").endswith("\u00e9")

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
        for place, ids in enumerate(encoded):
            if not splits.keys().isdisjoint(ids):
                encoded[place] = [part for i in ids for part in splits.get(i, (i,))]
        return encoded

    def _may_tie(self, text: str, ids: list[int]) -> bool:
        """Returns whether segmentations with equal scores may exist (`e ee`, `ee e` for `eee`).

        SentencePiece releases break ties differently, so such text is tokenized by tensorflow-text,
        which contains an older release than the Python package. It is rare: repeated strings, words
        of over 64 characters, or over 512 pieces.
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

        Adjacent pieces of one root can be swapped. A unique root has NaN, which equals no number.
        """
        roots = [piece[: (piece + piece).find(piece, 1)] for piece in self.pieces]
        counts = collections.Counter(roots)
        numbers = {root: float(number) for number, root in enumerate(counts)}
        return [numbers[root] if counts[root] > 1 else math.nan for root in roots]

    def decode(self, ids: Iterable[int]) -> str:
        """Converts piece ids to readable text. Boundary marks become spaces."""
        data = b"".join(map(self._bytes_of, ids))
        return data.decode("utf-8", "replace").replace(WORD_BOUNDARY, " ").strip()

    def _bytes_of(self, piece_id: int) -> bytes:
        piece = self.pieces[piece_id]
        return bytes([int(piece[1:-1], 16)]) if self.is_byte(piece_id) else piece.encode()

    def is_byte(self, piece_id: int) -> bool:
        """Returns whether a piece is one byte of an unknown character (<0xE6>)."""
        return self._processor.is_byte(int(piece_id))

    def normalize(self, text: str) -> str:
        """Returns what SentencePiece makes of prepared text before it looks for pieces."""
        return self._processor.normalize(text)

    @functools.cached_property
    def swallowed(self) -> str:
        """Regular expression for characters that SentencePiece drops or replaces with a space."""
        codes = [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]  # without surrogates
        swallowed = []
        # One call per character takes seconds, so whole blocks are tested first.
        for start in range(0, len(codes), 256):
            block = [chr(code) for code in codes[start : start + 256]]
            joined = self.normalize("".join(f"a{char}b " for char in block))
            if "ab" in joined.replace(WORD_BOUNDARY, ""):
                for char in block:
                    if self.normalize(f"a{char}b").replace(WORD_BOUNDARY, "") == "ab":
                        swallowed.append(rf"\x{{{ord(char):x}}}")
        return "[" + "".join(swallowed) + "]"

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
        digit, or belongs to a script without spaces. A byte piece starts a word if it is the first
        byte of a character.

        Deviation: in the reference, a piece starts a word if it contains a character other than
        A-Z, a-z and common punctuation, so numbers and other scripts have no whole words.
        Punctuation of several characters (`...`) continues a word in the reference.

        Raises a UserError if the vocabulary was trained without add_dummy_prefix or
        split_by_whitespace: words could not be told apart.
        """
        if not self._marks_first_word:
            raise UserError(
                f"{self.path!r} was trained with add_dummy_prefix=false, so the first word of a "
                "sentence looks like a part of the word before: expected a vocabulary that is "
                "trained without this option"
            )
        for piece in self.pieces:
            if WORD_BOUNDARY in piece.lstrip(WORD_BOUNDARY):
                raise UserError(
                    f"{self.path!r} has a piece with parts of several words, {piece!r}: expected a "
                    "vocabulary that is trained without split_by_whitespace=false"
                )
        processor = self._processor

        def begins(piece_id: int, piece: str) -> bool:
            if self.is_byte(piece_id):
                return not 0x80 <= int(piece[1:-1], 16) < 0xC0  # no continuation byte
            if processor.is_control(piece_id) or processor.is_unknown(piece_id):
                return True
            if piece.startswith(WORD_BOUNDARY):
                return True
            # Letters, marks and numbers of any script.
            wordlike = any(unicodedata.category(c)[0] in "LMN" for c in piece)
            return not wordlike or unicodedata.name(piece[0], "").startswith(SCRIPTS_WITHOUT_SPACES)

        return np.array([begins(i, piece) for i, piece in enumerate(self.pieces)])

    def replacement_ids(self) -> np.ndarray:
        """Returns ids that may replace a masked piece, int32 [n]. No control or byte pieces."""
        processor = self._processor
        tests = (processor.is_control, processor.is_unknown, processor.is_unused, processor.is_byte)
        ids = [i for i in range(len(self.pieces)) if not any(test(i) for test in tests)]
        return np.array(ids, np.int32)

    def in_graph(self) -> InGraphTokenizer:
        """Returns this vocabulary as TensorFlow ops, for use in a graph or with many texts."""
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
