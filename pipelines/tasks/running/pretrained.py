"""A pre-trained model that scores or embeds the texts of a file, for pipelines.predict."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from albert_tf.checkpoints import pretrained
from albert_tf.scoring import SentenceScorer, TextEmbedder
from albert_tf.storage.errors import UserError
from ..classification import ClassificationTask, Columns, Example

ANSWERS = ("score", "mean_embedding", "cls_embedding")
# Weights that a model may lack, by the names of other code.
_UNUSED = {"score": r"seq_relationship|sop_classifier|pooler"}
is_pretrained = pretrained.is_pretrained


class TextTask(ClassificationTask):
    """Reads the texts of files, which have no answers."""

    def score_rows(self, rows: Iterable[dict]) -> dict[str, float]:
        """See Task.score_rows; takes the rows, which are written as they are taken."""
        collections.deque(rows, maxlen=0)
        return {}


def text_task(columns: Mapping[str, str], quoting: str | None) -> TextTask:
    """Returns the task that reads files for a pre-trained model; as of fine_tuned.task_of.

    Raises:
      UserError: if a column does not apply to a pre-trained model.
    """
    for name in columns:
        if name not in ("text", "id"):
            raise UserError(f"--{name}_column does not apply to a pre-trained model: omit the flag")
    named = {"text": "text", **columns}
    return TextTask("texts", {}, Columns(label=None, **named), quoting=quoting or "csv")


class PretrainedModel:
    """An AnsweringModel without a task.

    Args:
      path: whatever pretrained.read reads.
      answers: one of ANSWERS.
      batch_size: sequences of the longest text that are computed at a time.

    Raises:
      UserError: if the path holds no such model, or it lacks the head that answers.
    """

    def __init__(self, path: str, answers: str, batch_size: int):
        allowed = _UNUSED.get(answers, pretrained.HEADS + "|pooler")
        model, directory, _ = pretrained.read(path, allow_missing=allowed)
        self._tokenizer = pretrained.read_tokenizer(directory)
        self._room = model.config.max_position_embeddings - 2
        digest = hashlib.sha256()
        for variable in model.variables:
            digest.update(np.ascontiguousarray(variable.numpy()))
        self.identity = {"weights": digest.hexdigest()[:16], "answers": answers}
        pieces = batch_size * model.config.max_position_embeddings
        if answers == "score":
            self._score = SentenceScorer(model, self._tokenizer, pieces_per_batch=pieces)
        else:
            pooling = answers.partition("_")[0]
            self._embed = TextEmbedder(model, self._tokenizer, pooling, pieces_per_batch=pieces)

    def prepare(self, examples: list[Example]) -> list[list[int]]:
        """See AnsweringModel. Returns the pieces of the texts."""
        return self._tokenizer.encode_batch([example.text for example in examples])

    def answer(self, examples: list[Example], prepared: list[list[int]]) -> dict[str, list]:
        """See AnsweringModel."""
        texts = [example.text for example in examples]
        columns = {"id": [example.id for example in examples]}
        lengths = [len(ids) for ids in prepared]
        if self.identity["answers"] == "score":
            if max(lengths) > self._room:
                place = int(np.argmax(lengths))
                raise UserError(
                    f"row {examples[place].id}: a text of {lengths[place]:,} pieces, but the model "
                    f"reads {self._room}: divide the text"
                )
            scores = self._score(texts)
            columns["log_likelihood"] = [round(s.log_likelihood, 4) for s in scores]
            for name in ("num_pieces", "num_words"):
                columns[name] = [getattr(s, name) for s in scores]
        else:
            columns["embedding"] = [
                [round(float(value), 6) for value in row] for row in self._embed(texts)
            ]
        pieces = np.array([piece for ids in prepared for piece in ids], np.int32)
        row_splits = np.cumsum([0, *lengths])
        shares = self._tokenizer.unknown_shares(pieces, row_splits)
        return {**columns, "unknown_share": [round(float(share), 6) for share in shares]}
