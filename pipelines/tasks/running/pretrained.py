"""A pre-trained model that scores or embeds texts, for pipelines.predict."""

import hashlib
from collections.abc import Mapping

import numpy as np

from albert_tf.checkpoints import pretrained
from albert_tf.checkpoints.opening import OpenModel
from albert_tf.scoring import SentenceScorer, TextEmbedder
from albert_tf.storage.errors import UserError
from ..classification import ClassificationTask, Example
from .fine_tuned import ROWS_PER_PART

ANSWERS = ("score", "mean_embedding", "cls_embedding")
# A text of n pieces is scored in n rows, so a part that takes minutes has fewer texts.
SCORED_ROWS_PER_PART = 256


def text_task(columns: Mapping[str, str], quoting: str | None) -> ClassificationTask:
    """Creates the task that reads files for a pre-trained model; see fine_tuned.task_of."""
    for name in columns:
        if name not in ("text", "id"):
            raise UserError(f"--{name}_column does not apply to a pre-trained model: omit the flag")
    named = {"text": "text", **columns}
    if not named["text"]:
        raise UserError("--text_column=: a pre-trained model reads texts; name their column")
    # A regression task needs no list of labels.
    return ClassificationTask(
        "texts", {}, {"label": None, **named}, is_regression=True, quoting=quoting or "csv"
    )


class PretrainedModel:
    """An AnsweringModel without a task, of any format but an export."""

    def __init__(self, opened: OpenModel, answers: str, masking: str, batch_size: int):
        allowed = f"{pretrained.HEADS}|pooler"
        model, self._tokenizer, notes, _ = pretrained.load(opened, allow_missing=allowed)
        if answers == "score" and model.masked_lm.is_drawn_afresh:
            raise UserError(
                f"{opened.path!r} has no masked LM, which gives the scores: take "
                "--answers=mean_embedding, or another model"
            )
        for note in notes:
            print(f"note     {note}")
        self._room = model.config.max_position_embeddings - 2
        digest = hashlib.sha256()
        for part in (model.encoder, model.masked_lm)[: 1 + (answers == "score")]:
            for weights in part.get_weights():
                digest.update(np.ascontiguousarray(weights).data)
        self.identity = {"weights": digest.hexdigest()[:16], "answers": answers}
        pieces = batch_size * model.config.max_position_embeddings
        if answers == "score":
            self.rows_per_part = SCORED_ROWS_PER_PART
            self.identity["masking"] = masking
            self._scorer = SentenceScorer(model, self._tokenizer, masking == "word", pieces)
        else:
            self.rows_per_part = ROWS_PER_PART
            pooling = answers.partition("_")[0]
            self._embedder = TextEmbedder(model, self._tokenizer, pooling, pieces_per_batch=pieces)

    def prepare(self, examples: list[Example]) -> list[np.ndarray]:
        """See AnsweringModel. Returns the piece ids of each text."""
        texts = [example.text for example in examples]
        return [np.array(ids, np.int32) for ids in self._tokenizer.encode_batch(texts)]

    def answer(self, examples: list[Example], prepared: list[np.ndarray]) -> dict[str, list]:
        """See AnsweringModel."""
        columns: dict[str, list] = {"id": [example.id for example in examples]}
        lengths = [len(ids) for ids in prepared]
        if self.identity["answers"] == "score":
            fitting = [ids for ids in prepared if 0 < len(ids) <= self._room]
            scores = iter(self._scorer.score_pieces(fitting))
            # Empty texts and texts that are too long get no score, so that the job does not fail.
            found = [next(scores) if 0 < n <= self._room else None for n in lengths]
            columns["log_likelihood"] = [s and round(s.log_likelihood, 4) for s in found]
            columns["num_pieces"] = lengths
            columns["num_words"] = [s and s.num_words for s in found]
        else:
            vectors = self._embedder.embed_pieces(prepared)
            columns["embedding"] = [[round(float(x), 6) for x in row] for row in vectors]
        row_splits = np.cumsum([0, *lengths])
        shares = self._tokenizer.unknown_shares(np.concatenate(prepared), row_splits).numpy()
        return {**columns, "unknown_share": [round(float(share), 6) for share in shares]}
