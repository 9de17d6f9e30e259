"""Scores sentences by masked-LM pseudo-log-likelihood, fills [MASK], and computes embeddings."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.answering.sentences import POOLINGS, mask_pieces, pooled, unit_length, word_numbers
from albert_tf.models import AlbertForEmbedding, AlbertForPreTraining
from albert_tf.storage.errors import UserError
from albert_tf.text.in_graph import on_host
from albert_tf.text.masks import tokenize_around_masks
from albert_tf.text.packing import rounded_up
from albert_tf.text.tokenization import MASK, AlbertTokenizer, as_texts

# Maximum number of pieces in a batch, including padding. With a large vocabulary, batches that
# predict pieces are smaller.
PIECES_PER_BATCH = 16_384
MASKINGS = ("word", "piece")
MASKING_HELP = (
    "word: mask the predicted piece and later pieces of its word. piece: mask only that piece."
)


class SentenceScore(NamedTuple):
    """The score of one sentence.

    Attributes:
      log_likelihood: sum of the pieces' log probabilities, in nats. NaN for a text without pieces,
        because 0 would be the best possible score.
      num_pieces: number of pieces of the sentence.
      num_words: number of words. Each punctuation mark counts as a word.
    """

    log_likelihood: float
    num_pieces: int
    num_words: int


class MaskedPiece(NamedTuple):
    """A piece that a model predicts at a [MASK], such as `▁open`, and its probability."""

    piece: str
    probability: float


class SentenceScorer:
    """Scores sentences by masking each piece in turn and predicting it from the other pieces.

    Example: `SentenceScorer(model, tokenizer)(["The cats sleep.", "The cats sleeps."])`.

    Args:
      model: a model whose variables have been created.
      tokenizer: the model's tokenizer.
      masks_rest_of_word: If True, also masks the later pieces of the same word, which would reveal
        a rare word of several pieces.

    Raises a UserError if the model has no trained masked LM, or fewer pieces than the tokenizer.

    Source: Salazar et al. 2020, section 2; masks_rest_of_word: Kauf and Ivanova 2023, PLL-word-l2r.
    """

    def __init__(
        self,
        model: AlbertForPreTraining,
        tokenizer: AlbertTokenizer,
        masks_rest_of_word: bool = True,
    ):
        _check_masked_lm(model, tokenizer)
        self._model, self._tokenizer = model, tokenizer
        self._masks_rest_of_word = masks_rest_of_word
        self._word_starts = tokenizer.word_starts()
        ids, row = (tf.TensorSpec([None] * rank, tf.int32) for rank in (2, 1))
        self._log_probs = tf.function(
            self._compute, autograph=False, input_signature=[ids, ids, row]
        )

    def __call__(self, texts: Sequence[str]) -> list[SentenceScore]:
        """Returns the score of each text.

        Raises a UserError if a text is too long for the model, or `texts` is a single string.
        """
        return self.score_pieces(self.encode(texts))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the piece ids of each text, int32. Raises a UserError as a call does."""
        texts = as_texts(texts)
        encoded = _encode(self._tokenizer, texts)
        _check_lengths(texts, encoded, self._model.config.max_position_embeddings - 2)
        return encoded

    def score_pieces(
        self, encoded: Sequence[np.ndarray], on_batch: Callable[[int], None] = lambda _: None
    ) -> list[SentenceScore]:
        """Same as a call, for texts that are tokenized already (see `encode`).

        `on_batch` is called after each batch with the number of pieces scored so far.
        """
        rows = (
            (place, ids, position)
            for place, ids in _sequences(encoded, self._tokenizer)
            for position in range(1, len(ids) - 1)
        )
        totals, done = np.array([0.0 if len(ids) else np.nan for ids in encoded]), 0
        longest = self._model.config.max_position_embeddings
        for places, sequences, positions in _batches(rows, longest, _most_rows(self._model)):
            batch = _padded(sequences, self._tokenizer.pad_id, longest)
            found = self._log_probs(*batch, np.array(positions, np.int32))
            np.add.at(totals, list(places), found.numpy())
            on_batch(done := done + len(positions))
        return [
            SentenceScore(
                float(total), len(ids), len(ids[:1]) + int(self._word_starts[ids[1:]].sum())
            )
            for total, ids in zip(totals, encoded)
        ]

    def _compute(self, ids, mask, positions):
        """Returns the log probability (nats) of each row's piece at its position, float32 [b]."""
        words = word_numbers(ids, mask, self._word_starts) if self._masks_rest_of_word else None
        masked = mask_pieces(ids, positions, self._tokenizer.mask_id, words)
        logits = _masked_lm_logits(self._model, masked, mask, positions[:, tf.newaxis])[:, 0]
        pieces = tf.gather(ids, positions, batch_dims=1)
        return tf.gather(tf.nn.log_softmax(logits), pieces, batch_dims=1)


class MaskFiller:
    """Predicts the pieces at each [MASK] of a text, as the signature `fill_mask` of an export does.

    Example: `MaskFiller(model, tokenizer)(["The file is [MASK]."])`.

    For the arguments and errors see SentenceScorer.
    """

    def __init__(self, model: AlbertForPreTraining, tokenizer: AlbertTokenizer):
        _check_masked_lm(model, tokenizer)
        self._model, self._tokenizer = model, tokenizer
        ids, k = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int32)
        self._best = tf.function(self._compute, autograph=False, input_signature=[ids, ids, ids, k])

    def __call__(self, texts: Sequence[str], top_k: int = 5) -> list[list[list[MaskedPiece]]]:
        """Returns the `top_k` most probable pieces, best first, for each [MASK] of each text.

        Raises a UserError if a text has no [MASK] or is too long for the model, if `texts` is a
        single string, or if `top_k` is not valid.
        """
        texts, tokenizer = as_texts(texts), self._tokenizer
        most = self._model.config.vocab_size
        if not (isinstance(top_k, (int, np.integer)) and 1 <= top_k <= most):
            raise UserError(f"top_k {top_k}: expected a whole number, 1 to {most}")
        for place, text in enumerate(texts):
            if MASK not in text:
                raise UserError(f"texts[{place}]: {text[:60]!r} has no {MASK}")
        with on_host():
            pieces = tokenize_around_masks(
                tf.constant(texts, tf.string), tokenizer, tokenizer.in_graph()
            )
        encoded = [row.numpy() for row in pieces]
        longest = self._model.config.max_position_embeddings
        _check_lengths(texts, encoded, longest - 2)
        rows = _sequences(encoded, tokenizer)
        masks = {place: np.flatnonzero(ids == tokenizer.mask_id) for place, ids in rows}
        most_masks = max(map(len, masks.values()), default=1)
        most_rows = _most_rows(self._model, most_masks)
        found: list[list[list[MaskedPiece]]] = [[] for _ in rows]
        for places, sequences in _batches(rows, longest, most_rows):
            positions = tf.keras.utils.pad_sequences([masks[p] for p in places], padding="post")
            batch = _padded(sequences, tokenizer.pad_id, longest)
            best = (values.numpy() for values in self._best(*batch, positions, top_k))
            for place, ids, probabilities in zip(places, *best):
                found[place] = [
                    [MaskedPiece(tokenizer.id_to_piece(i), float(p)) for i, p in zip(*of_mask)]
                    for of_mask, _ in zip(zip(ids, probabilities), masks[place])
                ]
        return found

    def _compute(self, ids, mask, positions, top_k):
        """Returns ids and probabilities of the best pieces at `positions`, both [b, P, top_k]."""
        logits = _masked_lm_logits(self._model, ids, mask, positions)
        best = tf.math.top_k(tf.nn.softmax(logits), top_k)
        return best.indices, best.values


class TextEmbedder:
    """Computes an embedding vector for each text.

    Example: `TextEmbedder(model, tokenizer)(["The cats sleep.", "The cats sleeps."])`.

    `model` has an attribute `encoder`. The vectors of an AlbertForEmbedding have length 1, so a dot
    product is a cosine. Vectors of other models were never trained to be compared. Texts that are
    too long are truncated, for an AlbertForEmbedding to its trained length. For `pooling` see
    AlbertForEmbedding; by default it is the model's own, else "mean". Raises a UserError if it is
    invalid, or the model has fewer pieces than the tokenizer.
    """

    def __init__(
        self, model: tf.keras.Model, tokenizer: AlbertTokenizer, pooling: str | None = None
    ):
        if not hasattr(model, "encoder"):
            raise UserError(f"expected a model with an encoder, got {type(model).__name__}")
        self._is_trained = isinstance(model, AlbertForEmbedding)
        known = (model.pooling,) if self._is_trained else POOLINGS
        if pooling not in (None, *known):
            raise UserError(f"pooling {pooling!r}: expected one of {', '.join(known)}")
        _check_vocabulary(model.config.vocab_size, tokenizer)
        self._encoder, self._tokenizer = model.encoder, tokenizer
        self._pooling = pooling or known[0]
        trained_length = model.trained_length if self._is_trained else None
        self._longest = trained_length or model.config.max_position_embeddings
        ids = tf.TensorSpec([None, None], tf.int32)
        self._embed = tf.function(self._compute, autograph=False, input_signature=[ids, ids])

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Returns float32 [texts, H]. Raises a UserError if `texts` is not a list of strings."""
        encoded, longest = _encode(self._tokenizer, texts), self._longest
        rows = _sequences([ids[: longest - 2] for ids in encoded], self._tokenizer)
        found = np.zeros([len(rows), self._encoder.config.hidden_size], np.float32)
        for places, sequences in _batches(rows, longest):
            found[[*places]] = self._embed(*_padded(sequences, self._tokenizer.pad_id, longest))
        return found

    def _compute(self, ids, mask):
        inputs = {"input_word_ids": ids, "input_mask": mask}
        vectors = pooled(self._encoder(inputs)["sequence_output"], mask, self._pooling)
        return unit_length(vectors)["embedding"] if self._is_trained else vectors


def _check_masked_lm(model, tokenizer: AlbertTokenizer) -> None:
    if not isinstance(model, AlbertForPreTraining):
        raise UserError(
            f"expected an AlbertForPreTraining, got {type(model).__name__}: a fine-tuned model "
            "and an encoder have no masked LM"
        )
    if model.masked_lm.is_drawn_afresh:
        raise UserError(
            "the model's masked LM has random weights, because the files of the model lack it: use "
            "the model directory of the run, or the signatures `score` and `fill_mask` of an export"
        )
    _check_vocabulary(model.config.vocab_size, tokenizer)


def _check_vocabulary(vocab_size: int, tokenizer: AlbertTokenizer) -> None:
    if vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"the model has {vocab_size} pieces, the tokenizer {tokenizer.vocab_size}: they belong "
            "to different models"
        )


def _check_lengths(texts: Sequence[str], encoded: Sequence[np.ndarray], room: int) -> None:
    for place, (text, ids) in enumerate(zip(texts, encoded)):
        if len(ids) > room:
            raise UserError(
                f"texts[{place}]: {text[:60]!r}... has {len(ids):,} pieces, but the model "
                f"reads {room} of a text: divide it"
            )


def _encode(tokenizer: AlbertTokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.asarray(ids, np.int32) for ids in tokenizer.encode_batch(texts)]


def _masked_lm_logits(model: AlbertForPreTraining, ids, mask, positions) -> tf.Tensor:
    inputs = {"input_word_ids": ids, "input_mask": mask, "masked_lm_positions": positions}
    return model(inputs)["masked_lm_logits"]


def _most_rows(model: AlbertForPreTraining, num_masks: int = 1) -> int:
    """Returns the number of rows whose logits need no more memory than the widest layer."""
    config = model.config
    return max(1, PIECES_PER_BATCH * config.intermediate_size // (config.vocab_size * num_masks))


def _sequences(
    encoded: Iterable[Sequence[int] | np.ndarray], tokenizer: AlbertTokenizer
) -> list[tuple[int, np.ndarray]]:
    """Adds [CLS] and [SEP]. Returns (place, ids) sorted by length, so that batches pad little."""
    rows = (np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32) for ids in encoded)
    return sorted(enumerate(rows), key=lambda row: len(row[1]))


def _batches(
    rows: Iterable[tuple], longest: int, rows_per_batch: float = math.inf
) -> Iterator[Iterable[tuple]]:
    """Groups rows, which are sorted by len(row[1]), into batches. Yields each batch's columns."""
    batch: list[tuple] = []
    for row in rows:
        most = min(PIECES_PER_BATCH // _padded_length(len(row[1]), longest), rows_per_batch)
        if batch and len(batch) + 1 > most:
            yield zip(*batch)
            batch = []
        batch.append(row)
    if batch:
        yield zip(*batch)


def _padded_length(length: int, longest: int) -> int:
    return min(rounded_up(length), longest)


def _padded(rows: Sequence[np.ndarray], pad_id: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns padded ids and a mask (1 = real), both int32 [rows, L], where L <= longest."""
    width = _padded_length(max(map(len, rows)), longest)
    ids = tf.keras.utils.pad_sequences(rows, width, padding="post", value=pad_id)
    lengths = [[len(row)] for row in rows]
    return ids, (np.arange(width) < lengths).astype(np.int32)
