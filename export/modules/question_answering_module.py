"""Serving module for question answering in texts of any length."""

import numpy as np
import tensorflow as tf

from albert_tf.answering.spans import NO_SPAN_SCORE, best_spans, null_odds
from albert_tf.text.characters import AlignedPieces, character_class
from albert_tf.text.packing import model_inputs
from albert_tf.text.windows import Windows
from ..batches import map_rows
from ..checks import first_chars_of_contexts
from .serving_module import ServingModule


class QuestionAnsweringModule(ServingModule):
    """Finds answers in texts. Supports both classes of question-answering models.

    Source: the reference's squad_utils, which follows BERT's run_squad.
    Deviation: a question is also truncated if it leaves no room for the context.
    """

    def serving_default(self, question, context) -> dict:
        context = first_chars_of_contexts(context, "context")
        aligned = self.tokenizer.align(context)
        task, pieces = self.served.task, self.pieces(question)
        tokens, windows, offsets = self.packer.pack_windows(
            pieces, aligned.pieces, task["max_query_length"], task["doc_stride"]
        )
        sequences = {**tokens, **self._at_positions(tokens, aligned, windows, offsets)}
        spans = map_rows(self.answer, sequences)

        # Select the best window per question. A column is added, because argmax needs at least one.
        scores = tf.RaggedTensor.from_row_lengths(spans["score"], windows.counts, validate=False)
        scores = tf.pad(scores.to_tensor(-np.inf), [[0, 0], [0, 1]], constant_values=-np.inf)
        best = tf.argmax(scores, axis=1) + tf.cumsum(windows.counts, exclusive=True)
        score = tf.gather(spans["score"], best)
        has_answer = score > -np.inf
        score = tf.where(has_answer, score, NO_SPAN_SCORE)
        no_answer_score = tf.math.unsorted_segment_min(
            spans["no_answer_score"], windows.text, tf.size(question)
        )
        no_answer_score = null_odds(no_answer_score, score, task["has_answerability_head"])
        if task["may_be_impossible"]:
            has_answer &= no_answer_score <= task["null_threshold"]

        # If there is no answer (or not a single piece), use the offsets 0 and 0, an empty text.
        in_paragraph = tf.gather(windows.first - offsets, best)
        start, limit = (
            tf.gather(
                tf.concat([[0], places], axis=0),
                tf.where(has_answer, in_paragraph + tf.gather(spans[name], best) + 1, 0),
            )
            for name, places in (("first", aligned.starts), ("last", aligned.limits))
        )
        answer = tf.strings.substr(context, start, limit - start)
        space = character_class(str.isspace)
        return {
            "answer": tf.strings.regex_replace(answer, f"^{space}+|{space}+$", ""),
            "score": tf.cast(score, tf.float32),
            "no_answer_score": tf.cast(no_answer_score, tf.float32),
            "unknown_share": self.share_of_unknown(sequences, windows.counts),
        }

    def _at_positions(
        self, tokens: dict, aligned: AlignedPieces, windows: Windows, offsets: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns additional inputs of `answer` for each position, [windows, seq_len].

        These are bool `may_start` and `may_end`, and int64 `visible_*` of AlignedPieces.
        """
        piece = windows.pieces.flat_values
        # Map positions in the sequences to columns of the windows. The last column is empty.
        column = tf.range(tf.shape(tokens["input_ids"])[1], dtype=tf.int64)
        column = column - offsets[:, tf.newaxis]
        num_columns = windows.pieces.bounding_shape(axis=1)
        column = tf.where((column >= 0) & (column < num_columns), column, num_columns)

        def at_positions(values):  # [pieces of all windows] -> [windows, seq_len]
            rows = windows.pieces.with_flat_values(values)
            rows = rows.to_tensor(shape=tf.stack([-1, num_columns + 1]))
            return tf.gather(rows, column, batch_dims=1)

        return {
            "may_start": at_positions(windows.is_max_context),
            "may_end": at_positions(tf.ones_like(windows.is_max_context)),
            "visible_before": at_positions(tf.gather(aligned.visible_before, piece)),
            "visible_through": at_positions(tf.gather(aligned.visible_through, piece)),
        }

    def answer(self, windows: dict) -> dict:
        """Finds the best span that is not blank in each window.

        Returns `score` (-inf if there is no valid span) and `no_answer_score`, float64 [windows],
        and the span's positions in the sequence, `first` and `last`, int64 [windows].
        """
        visible = (windows["visible_before"], windows["visible_through"])
        longest = self.served.task["max_answer_length"]
        of_window = self.model(model_inputs(windows)), windows["may_start"], windows["may_end"]
        spans = best_spans(*of_window, longest, 1, visible)
        return {name: tf.reshape(values, [-1]) for name, values in spans._asdict().items()}
