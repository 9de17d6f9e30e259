"""A pre-trained model that scores texts, for pipelines.predict."""

import hashlib
from collections.abc import Mapping

import numpy as np

from albert_tf.checkpoints import pretrained
from albert_tf.checkpoints.opening import OpenModel
from albert_tf.scoring import SentenceScorer
from albert_tf.storage.errors import UserError
from ..classification import ClassificationTask, Example


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
    """An AnsweringModel without a task, of any format."""

    # A text of n pieces is scored in n rows, so a part that takes minutes has few texts.
    rows_per_part = 256

    def __init__(self, opened: OpenModel):
        allowed = f"{pretrained.HEADS}|pooler"
        model, self._tokenizer, notes, _ = pretrained.load(opened, allow_missing=allowed)
        if model.masked_lm.is_drawn_afresh:
            raise UserError(
                f"{opened.path!r} has no masked LM, which gives the scores: take another model, or "
                "albert_tf.TextEmbedder for vectors"
            )
        for note in notes:
            print(f"note     {note}")
        self._room = model.config.max_position_embeddings - 2
        digest = hashlib.sha256()
        for part in (model.encoder, model.masked_lm):
            for weights in part.get_weights():
                digest.update(np.ascontiguousarray(weights).data)
        self.identity = {"weights": digest.hexdigest()[:16]}
        self._scorer = SentenceScorer(model, self._tokenizer)

    def prepare(self, examples: list[Example]) -> list[np.ndarray]:
        """See AnsweringModel. Returns the piece ids of each text."""
        texts = [example.text for example in examples]
        return [np.array(ids, np.int32) for ids in self._tokenizer.encode_batch(texts)]

    def answer(self, examples: list[Example], prepared: list[np.ndarray]) -> dict[str, list]:
        """See AnsweringModel."""
        columns: dict[str, list] = {"id": [example.id for example in examples]}
        lengths = [len(ids) for ids in prepared]
        fitting = [ids for ids in prepared if 0 < len(ids) <= self._room]
        scores = iter(self._scorer.score_pieces(fitting))
        # Empty texts and texts that are too long get no score, so that the job does not fail.
        found = [next(scores) if 0 < n <= self._room else None for n in lengths]
        columns["log_likelihood"] = [s and round(s.log_likelihood, 4) for s in found]
        columns["num_pieces"] = lengths
        columns["num_words"] = [s and s.num_words for s in found]
        row_splits = np.cumsum([0, *lengths])
        shares = self._tokenizer.unknown_shares(np.concatenate(prepared), row_splits).numpy()
        return {**columns, "unknown_share": [round(float(share), 6) for share in shares]}
