"""SQuAD 1.1 and 2.0: answers are spans of a text. In 2.0 a question may have no answer."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf
from scipy import special

from albert_tf import losses
from albert_tf.kinds import SQUAD_DEFAULTS as _DEFAULTS
from albert_tf.storage import files
from albert_tf.storage.errors import UserError
from albert_tf.text.packing import NUM_SPECIAL_PIECES
from albert_tf.text.tokenization import AlbertTokenizer
from .reading.examples import id_and_label, required
from .reading.sequences import Encoder, Packed, Sequences
from .reading.split_report import describe_texts
from .reading.squad_files import Question, check_answers, is_squad_file, read_questions
from .reading.squad_windows import Window, read_paragraphs
from .reading.tables import Row, column_names, read_rows
from .scoring.squad_answers import find_answers
from .scoring.squad_metrics import score_v1, score_v2
from .task import Answers, Description, Files, Outputs, Task

# SquadTask arguments in task.json. _OF_MODEL affects the weights, _OF_DECODING only the answers.
_OF_MODEL = ("may_be_impossible", "has_answerability_head", "doc_stride", "max_query_length")
_OF_DECODING = ("max_answer_length", "n_best_size", "null_threshold")


@dataclasses.dataclass(eq=False)
class SquadTask(Task):
    """Extracts the answers to questions from texts. Lengths are numbers of pieces.

    Attributes:
      paths: JSON files in the official format; see `files` of Task.
      may_be_impossible: whether questions may be unanswerable (SQuAD 2.0).
      has_answerability_head: if True, the model has the reference's head for SQuAD 2.0. If False,
        it has BERT's head, where a span at [CLS] means "no answer".
      doc_stride: distance between the starts of two windows of a long text.
      max_query_length, max_answer_length: maxima. Longer questions are truncated.
      n_best_size: number of answers per question in the n-best file.
      null_threshold: "no answer" is predicted if the null odds exceed this threshold.
    """

    paths: dataclasses.InitVar[Files]
    may_be_impossible: bool = _DEFAULTS["may_be_impossible"]
    has_answerability_head: bool = _DEFAULTS["has_answerability_head"]
    doc_stride: int = _DEFAULTS["doc_stride"]
    max_query_length: int = _DEFAULTS["max_query_length"]
    max_answer_length: int = _DEFAULTS["max_answer_length"]
    n_best_size: int = _DEFAULTS["n_best_size"]
    null_threshold: float = _DEFAULTS["null_threshold"]

    best_metric = "f1"

    def __post_init__(self, paths: Files):
        super().__init__("squad_v2" if self.may_be_impossible else "squad_v1", paths)
        # For prediction, the reference's head searches beams instead of computing all logits.
        self.has_dev_loss = not self.has_answerability_head

    @classmethod
    def restore(cls, description: dict, columns: Mapping[str, str], quoting: str | None) -> Task:
        if columns:
            raise UserError(
                f"--{next(iter(columns))}_column does not apply to a model that answers questions: "
                "tables have the columns question and context"
            )
        names = (*_OF_MODEL, *_OF_DECODING)
        return cls({}, **{name: description[name] for name in names if name in description})

    def read(self, split: str) -> list[Question] | None:
        """See Task.read. If a question of the test split has an answer, all others need one."""
        if split not in self.files:
            return None
        found = {path: read_questions(path) for path in self.files[split]}
        is_answered = any(question.is_answered for of in found.values() for question in of)
        questions: dict[str, Question] = {}
        for path, of_path in found.items():
            if split != "test" or is_answered:
                check_answers(path, of_path, self.may_be_impossible, split == "train")
            for question in of_path:
                if questions.setdefault(question.id, question) is not question:
                    raise UserError(f"{path}: a second question has the id {question.id!r}")
        return list(questions.values())

    def encode(
        self, examples: list, tokenizer: AlbertTokenizer, max_seq_length: int, training: bool
    ) -> tuple[Sequences, list]:
        """See Task.encode. In training, also counts the answers that do not fit into a window."""
        sequences, windows = super().encode(examples, tokenizer, max_seq_length, training)
        if not training:
            return sequences, windows
        labels = sequences.labels["is_impossible"]
        found = {window.example for window, is_lost in zip(windows, labels) if not is_lost}
        with_answers = sum(not question.is_impossible for question in examples)
        return dataclasses.replace(sequences, lost_answers=with_answers - len(found)), windows

    def pack(self, examples: list[Question], first: int, encoder: Encoder) -> Packed:
        """Returns one sequence per window of each question's context. Features are the windows.

        A question is truncated to max_query_length pieces, or to fewer if no room would be left for
        the context.
        """
        texts = list(dict.fromkeys(question.context for question in examples))
        paragraph_of = dict(zip(texts, read_paragraphs(texts, encoder.tokenizer)))
        paragraphs = [paragraph_of[question.context] for question in examples]
        queries, full_lengths = encoder.tokenize([question.text for question in examples])
        pieces = [paragraph.pieces for paragraph in paragraphs]
        contexts = tf.RaggedTensor.from_row_lengths(np.concatenate(pieces), [*map(len, pieces)])
        tokens, cut, offsets = encoder.pack_windows(
            queries, contexts, self.max_query_length, self.doc_stride
        )
        # Convert indices into the pieces of all texts to indices into the pieces of one text.
        firsts = cut.first - tf.gather(contexts.row_starts(), cut.text)
        lengths = cut.pieces.row_lengths().numpy()
        columns = (x.numpy().tolist() for x in (cut.text, firsts, firsts + lengths, offsets))
        is_max_context = np.split(cut.is_max_context.numpy(), np.cumsum(lengths)[:-1])
        windows = [
            Window(first + place, paragraphs[place], begin, end, offset, is_max)
            for place, begin, end, offset, is_max in zip(*columns, is_max_context)
        ]
        full_lengths = full_lengths[cut.text.numpy()] + lengths + NUM_SPECIAL_PIECES
        return tokens, full_lengths, windows

    def targets(self, examples: list, features: list, max_seq_length: int) -> dict[str, np.ndarray]:
        """Returns `start_positions`, `end_positions` and `is_impossible`, int32 [windows].

        If a window does not contain the whole answer, both positions are 0 ([CLS]) and
        is_impossible is 1.
        """
        labels = []
        for window in features:
            question, paragraph = examples[window.example], window.paragraph
            has_answer = question.answers and not question.is_impossible and len(paragraph.pieces)
            labels.append(window.find(*question.answers[0]) if has_answer else (0, 0, 1))
        names = ("start_positions", "end_positions", "is_impossible")
        return dict(zip(names, np.array(labels, np.int32).T))

    def summarise(self, examples: list[Question]) -> list[str]:
        answered = sum(bool(question.answers) for question in examples)
        impossible = sum(question.is_impossible for question in examples)
        contexts = len({question.context for question in examples})
        return [
            f"{answered:,} with answers, {impossible:,} impossible; {contexts:,} contexts",
            *describe_texts(examples),
        ]

    def owners(self, features: list[Window]) -> list[int]:
        return [window.example for window in features]

    def description(self) -> Description:
        return Description(
            {"kind": "question_answering", **{name: getattr(self, name) for name in _OF_MODEL}},
            {name: getattr(self, name) for name in _OF_DECODING},
            {},
        )

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        ends = (batch["start_positions"], batch["end_positions"])
        if self.has_answerability_head:
            return losses.answerable_span_loss(outputs, *ends, batch["is_impossible"])
        return losses.span_loss(outputs, *ends)

    def read_file(self, path: str, first: int = 0, needs_answers: bool = False) -> Iterator:
        """See Task.read_file.

        If the top level of a .json file is an object, the file is in SQuAD's format, where all or
        no questions have answers. Other files are tables without answers, with the columns
        `question`, `context` and optionally `id`.
        """
        if is_squad_file(path):
            questions = read_questions(path)
            if any(question.is_answered for question in questions):
                check_answers(path, questions, self.may_be_impossible, False)
            yield from questions
            return
        has_id = "id" in column_names(path)
        columns = {"question": "question", "context": "context", "id": "id" if has_id else None}
        yield from self.examples(read_rows(path, first, False, columns))

    def examples(self, rows: Iterable[Row]) -> Iterator[Question]:
        """See Task.examples. The rows have the columns of a table without answers."""
        for row in rows:
            yield Question(row.id, row.text("question"), row.text("context"), (), False)

    def answers(self, examples: list, features: list | None, outputs: Outputs) -> Answers:
        """See Task.answers. Columns: text ("" for no answer), score, and null odds (2.0 only)."""
        columns = id_and_label(examples, lambda question: [text for text, _ in question.answers])
        contexts = [question.context for question in examples]
        limits = (self.max_answer_length, self.n_best_size)
        found = [*find_answers(contexts, required(features), outputs, *limits)]
        threshold = self.null_threshold if self.may_be_impossible else np.inf
        texts = ["" if answer.null_odds > threshold else answer.text for answer in found]
        columns.update(prediction=texts, score=[answer.score for answer in found])
        if self.may_be_impossible:
            columns["null_odds"] = [answer.null_odds for answer in found]
        return Answers(columns, {"candidates": [answer.candidates for answer in found]})

    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """Computes squad_metrics.score_v1, or score_v2 at null_threshold, in per cent.

        The best thresholds need rows with candidates.
        """
        truths, texts, null_odds = [], [], []
        for row in rows:
            if "label" not in row:
                return {}
            truths.append(row["label"])
            texts.append(row["prediction"])
            # score_v2 applies the threshold itself, so it needs the best text of every question.
            if self.may_be_impossible and "candidates" in row:
                texts[-1] = row["candidates"][0][0] if row["candidates"] else ""
                null_odds.append(row["null_odds"])
        if not self.may_be_impossible:
            return score_v1(truths, texts)
        if not null_odds:
            return score_v2(truths, texts)
        metrics = score_v2(truths, texts, null_odds, self.null_threshold)
        return {**metrics, "null_threshold": self.null_threshold}

    def write(self, directory: str, split: str, examples: list, answers: Answers) -> list[str]:
        """Writes JSON files that map question ids to values.

        SPLIT_predictions.json contains the answers ("" for no answer) in the format of SQuAD's
        scripts and website. SPLIT_nbest_predictions.json contains the best texts in descending
        order of `score`, with `probability` as a softmax over these scores. SPLIT_null_odds.json
        contains the null odds (SQuAD 2.0 only).
        """
        contents = {
            "predictions": answers.columns["prediction"],
            "nbest_predictions": map(_with_probabilities, answers.exact["candidates"]),
        }
        if self.may_be_impossible:
            contents["null_odds"] = answers.columns["null_odds"]
        paths = []
        for name, values in contents.items():
            paths.append(os.path.join(directory, f"{split}_{name}.json"))
            files.write_json(paths[-1], dict(zip(answers.columns["id"], values)))
        return paths


def _with_probabilities(candidates: list[tuple[str, float]]) -> list[dict[str, float | str]]:
    if not candidates:
        return []
    probabilities = special.softmax([score for _, score in candidates])
    return [
        {"text": text, "probability": float(probability), "score": score}
        for (text, score), probability in zip(candidates, probabilities)
    ]
