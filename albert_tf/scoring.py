"""How likely a masked LM finds a sentence: pseudo-log-likelihoods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.models import AlbertForPreTraining
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer

_LENGTH_STEP = 8  # lengths of batches are multiples of it


class SentenceScore(NamedTuple):
    """The score of one sentence.

    Attributes:
      log_likelihood: sum of the pieces' log probabilities, in nats; 0 without a piece.
      num_pieces: pieces of the sentence.
      num_words: words of the sentence; a punctuation mark is one.
    """

    log_likelihood: float
    num_pieces: int
    num_words: int


class SentenceScorer:
    """Scores sentences; one piece after the other is masked and predicted from all others.

    Example: `SentenceScorer(model, tokenizer)(["The cats sleep.", "The cats sleeps."])`.

    Args:
      model: its variables exist.
      tokenizer: of the model's vocabulary.
      masks_rest_of_word: whether the later pieces of the masked piece's word are masked too. They
        would give a rare word of several pieces away.
      pieces_per_batch: computed at once, padding included.

    Raises:
      UserError: if the model has no masked LM, or another vocabulary.

    Source: Salazar et al. 2020, section 2; masks_rest_of_word: Kauf and Ivanova 2023, PLL-word-l2r.
    """

    def __init__(
        self,
        model: AlbertForPreTraining,
        tokenizer: AlbertTokenizer,
        masks_rest_of_word: bool = True,
        pieces_per_batch: int = 16_384,
    ):
        if not isinstance(model, AlbertForPreTraining):
            raise UserError(
                f"expected an AlbertForPreTraining, got {type(model).__name__}: a fine-tuned model "
                "and an encoder have no masked LM"
            )
        if model.config.vocab_size != tokenizer.vocab_size:
            raise UserError(
                f"the model has {model.config.vocab_size} pieces, the tokenizer "
                f"{tokenizer.vocab_size}: they belong to different models"
            )
        self._model, self._tokenizer = model, tokenizer
        self._masks_rest_of_word = masks_rest_of_word
        self._pieces_per_batch = pieces_per_batch
        self._word_starts = tokenizer.word_starts()
        ids, row = (tf.TensorSpec([None] * rank, tf.int32) for rank in (2, 1))
        self._log_probs = tf.function(self._compute, input_signature=[ids, ids, row, row])

    def __call__(
        self, texts: Sequence[str], on_batch: Callable[[int], None] = lambda _: None
    ) -> list[SentenceScore]:
        """Returns the score of each text.

        Args:
          texts: a sentence each.
          on_batch: called with the number of pieces that each batch has scored.

        Raises:
          UserError: if a text has more pieces than the model reads, or `texts` is one string.
        """
        if isinstance(texts, str):
            raise UserError("expected a list of sentences, got one string: put it into a list")
        encoded = [np.asarray(ids, np.int32) for ids in self._tokenizer.encode_batch(texts)]
        room = self._model.config.max_position_embeddings - 2
        for text, ids in zip(texts, encoded):
            if len(ids) > room:
                raise UserError(
                    f"{text[:60]!r}... has {len(ids):,} pieces, but the model reads {room} of a "
                    "text: divide it"
                )
        totals = np.zeros(len(texts))
        for places, *rows in self._batches(encoded):
            np.add.at(totals, places, self._log_probs(*map(tf.constant, rows)).numpy())
            on_batch(len(places))
        words = (len(np.unique(self._words(ids))) for ids in encoded)
        return [
            SentenceScore(float(total), len(ids), number)
            for total, ids, number in zip(totals, encoded, words)
        ]

    def _words(self, ids: np.ndarray) -> np.ndarray:
        """Returns for each piece the number of its word."""
        return np.cumsum(self._word_starts[ids])

    def _batches(self, encoded: list[np.ndarray]) -> Iterator[tuple[np.ndarray, ...]]:
        """Yields batches of rows, each a sentence with one piece to predict.

        Yields:
          The place of each row's text, and int32 ids [b, L], mask [b, L] (1 = real), the position
          of the piece to predict [b] and the piece [b]. Texts of one length are together.
        """
        rows: list[tuple[int, np.ndarray, int, int]] = []
        for place in sorted(range(len(encoded)), key=lambda place: len(encoded[place])):
            length = len(encoded[place]) + 2
            for row in self._rows(place, encoded[place]):
                if (len(rows) + 1) * length > self._pieces_per_batch and rows:
                    yield self._batch(rows)
                    rows = []
                rows.append(row)
        if rows:
            yield self._batch(rows)

    def _rows(self, place: int, ids: np.ndarray) -> Iterator[tuple[int, np.ndarray, int, int]]:
        tokenizer, words = self._tokenizer, self._words(ids)
        for i, piece in enumerate(ids):
            row = np.concatenate([[tokenizer.cls_id], ids, [tokenizer.sep_id]])
            masked = slice(i + 1, i + 2)
            if self._masks_rest_of_word:
                masked = slice(i + 1, np.searchsorted(words, words[i], side="right") + 1)
            row[masked] = tokenizer.mask_id
            yield place, row, i + 1, piece

    def _batch(self, rows: list[tuple[int, np.ndarray, int, int]]) -> tuple[np.ndarray, ...]:
        length = max(len(row) for _, row, _, _ in rows)
        length = -(-length // _LENGTH_STEP) * _LENGTH_STEP
        length = min(length, self._model.config.max_position_embeddings)
        ids = np.full([len(rows), length], self._tokenizer.pad_id, np.int32)
        mask = np.zeros([len(rows), length], np.int32)
        for i, (_, row, _, _) in enumerate(rows):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        places, _, positions, pieces = zip(*rows)
        return (
            np.array(places),
            ids,
            mask,
            np.array(positions, np.int32),
            np.array(pieces, np.int32),
        )

    def _compute(self, ids, mask, positions, pieces):
        """Returns float32 [b], the log probability of each row's piece."""
        inputs = {
            "input_word_ids": ids,
            "input_mask": mask,
            "input_type_ids": tf.zeros_like(ids),
            "masked_lm_positions": positions[:, tf.newaxis],
        }
        logits = self._model(inputs)["masked_lm_logits"][:, 0]
        return tf.gather(tf.nn.log_softmax(logits), pieces, batch_dims=1)
