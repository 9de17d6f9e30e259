"""Scores sentences by masked-LM pseudo-log-likelihood, and computes embeddings."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.answering.sentences import POOLINGS, pooled, unit_length
from albert_tf.models import AlbertForEmbedding, AlbertForPreTraining
from albert_tf.storage.errors import UserError
from albert_tf.text.packing import rounded_up
from albert_tf.text.tokenization import AlbertTokenizer, as_texts

# Maximum number of pieces in a batch, including padding. With a large vocabulary, batches that
# predict pieces are smaller.
PIECES_PER_BATCH = 16_384


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


class SentenceScorer:
    """Scores sentences by masking each piece in turn and predicting it from the other pieces.

    The later pieces of its word are masked too, because they would reveal a rare word.

    Example: `SentenceScorer(model, tokenizer)(["The cats sleep.", "The cats sleeps."])`.

    Args:
      model: a model whose variables have been created.
      tokenizer: the model's tokenizer.

    Raises a UserError if the model has no trained masked LM, or fewer pieces than the tokenizer.

    Source: Kauf and Ivanova 2023, PLL-word-l2r.
    """

    def __init__(self, model: AlbertForPreTraining, tokenizer: AlbertTokenizer):
        if not isinstance(model, AlbertForPreTraining):
            raise UserError(
                f"expected an AlbertForPreTraining, got {type(model).__name__}: a fine-tuned model "
                "and an encoder have no masked LM"
            )
        if model.masked_lm.is_drawn_afresh:
            raise UserError(
                "the model's masked LM has random weights, because the model's files lack it: use "
                "the model directory of the run"
            )
        _check_vocabulary(model.config.vocab_size, tokenizer)
        self._model, self._tokenizer = model, tokenizer
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
        room = self._model.config.max_position_embeddings - 2
        for place, (text, ids) in enumerate(zip(texts, encoded)):
            if len(ids) > room:
                raise UserError(
                    f"texts[{place}]: {text[:60]!r}... has {len(ids):,} pieces, but the model "
                    f"reads {room} of a text: divide it"
                )
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
        config = self._model.config
        longest = config.max_position_embeddings
        # The logits need no more memory than the widest layer.
        most_rows = max(1, PIECES_PER_BATCH * config.intermediate_size // config.vocab_size)
        for places, sequences, positions in _batches(rows, longest, most_rows):
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
        places, position = positions[:, tf.newaxis], tf.range(tf.shape(ids)[1])
        word = tf.cumsum(tf.cast(tf.gather(self._word_starts, ids), tf.int32), axis=1)
        is_masked = (position >= places) & tf.equal(word, tf.gather(word, places, batch_dims=1))
        is_masked &= position <= tf.reduce_sum(mask, axis=1, keepdims=True) - 2  # before [SEP]
        inputs = {
            "input_word_ids": tf.where(is_masked, self._tokenizer.mask_id, ids),
            "input_mask": mask,
            "masked_lm_positions": places,
        }
        logits = self._model(inputs)["masked_lm_logits"][:, 0]
        pieces = tf.gather(ids, positions, batch_dims=1)
        return tf.gather(tf.nn.log_softmax(logits), pieces, batch_dims=1)


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


def _check_vocabulary(vocab_size: int, tokenizer: AlbertTokenizer) -> None:
    if vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"the model has {vocab_size} pieces, the tokenizer {tokenizer.vocab_size}: they belong "
            "to different models"
        )


def _encode(tokenizer: AlbertTokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.asarray(ids, np.int32) for ids in tokenizer.encode_batch(texts)]


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
