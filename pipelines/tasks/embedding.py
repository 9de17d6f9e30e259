"""Embeddings: trains an encoder so that close texts have vectors with a high cosine."""

import array
import copy
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from ..training.strategy import is_tpu
from .embedding_losses import ranking_losses, score_losses
from .reading.examples import AnyExample, id_and_label, required
from .reading.sequences import Encoder, Packed, Sequences
from .reading.split_report import describe_texts
from .reading.tables import Row, as_number, column_names
from .scoring.embeddings import OF_RANKS, OF_SCORES, cosines, ranks, vectors_of_words
from .scoring.figures import draw_cosines
from .scoring.metrics import intervals_of_rows
from .task import Answers, Columns, Description, Files, Outputs, Task, read_files

TEMPERATURE = 0.05  # of SimCSE, CoSENT and sentence-transformers


@dataclasses.dataclass(frozen=True)
class EmbeddingExample(AnyExample):
    """A text, or a pair of texts.

    `text_pair` is None if the text is only to be embedded. `label` is the score of a pair, higher
    for closer texts, or None. `negative` is a text that does not belong to `text`, or None.
    """

    id: str
    text: str
    text_pair: str | None = None
    label: float | None = None
    negative: str | None = None

    @property
    def separated(self) -> tuple[str, ...]:
        """See AnyExample: the second text; with a score, each text."""
        if self.text_pair is None:
            return (self.text,)
        return (self.text_pair,) if self.label is None else (self.text, self.text_pair)

    def inputs(self) -> dict[str, str]:
        texts = {"text": self.text, "text_pair": self.text_pair, "negative": self.negative}
        return {name: text for name, text in texts.items() if text is not None}


class EmbeddingTask(Task):
    """Trains embeddings on one of three forms of data, which the columns of the file determine.

    1. Pairs with scores (there is a column of labels): score_losses.
    2. Pairs that belong together (no labels), with an optional column of hard negatives:
       ranking_losses.
    3. Single texts (no column of second texts): ranking_losses of each text with itself, which
       dropout encodes in two ways (SimCSE). A dev set must have pairs.

    Dev may have another form than train.

    Args:
      pooling: see AlbertForEmbedding.
      similarity_temperature: see the losses.
      quoting: see Task.quoting.

    Attributes:
      has_whole_splits: whether `encode` and `answers` get all examples of a split at once, as in
        fine-tuning. Then second texts are ranked, and each different text is encoded once.
    """

    fields: ClassVar = {
        "text": "text",
        "text_pair": None,
        "label": "label",
        "negative": None,
        "id": None,
    }
    stored: ClassVar[tuple[str, ...]] = ("pooling", "similarity_temperature", "quoting")
    block_size = 4000
    has_dev_loss = False
    starts_trained = True

    def __init__(
        self,
        name: str,
        files: Files,
        columns: Columns | None = None,
        pooling: str = "mean",
        similarity_temperature: float = TEMPERATURE,
        quoting: str = "csv",
    ):
        super().__init__(name, files, columns)
        self.pooling, self.similarity_temperature = pooling, similarity_temperature
        self.quoting = quoting
        self.has_whole_splits = True

    @classmethod
    def restore(cls, description: dict, columns: Mapping[str, str], quoting: str | None) -> Task:
        """See Task.restore. Rows are single texts, unless --text_pair_column is given."""
        task = super().restore(description, columns, quoting)
        assert isinstance(task, cls)
        task.has_whole_splits = False
        if not task.columns["text_pair"]:
            task.columns["label"] = None
        return task

    @property
    def best_metric(self) -> str:
        [path, *_] = self.files.get("dev") or self.files["train"]
        is_scored = self.columns["label"] in column_names(path, self.quoting)
        return next(iter(OF_SCORES if is_scored else OF_RANKS))

    @property
    def hidden_dropout_prob(self) -> float | None:
        """See Task: 0.1 for single texts."""
        return None if "text_pair" in self._columns_of("train") else 0.1

    def _columns_of(self, split: str) -> dict[str, str]:
        """Returns the columns to read of a split. Those that are not optional may be missing."""
        names = column_names(self.files[split][0], self.quoting)
        columns = {field: column for field, column in self.columns.items() if column}
        optional = {"label"} if split == "train" else {"label", "negative"}
        # Single texts may be evaluated on pairs.
        optional |= {"text_pair"} if split == "train" and "dev" in self.files else set()
        return {f: name for f, name in columns.items() if name in names or f not in optional}

    def read(self, split: str) -> list | None:
        """See Task.read."""
        if split not in self.files:
            return None
        task, columns = copy.copy(self), self._columns_of(split)
        if split != "train" and "text_pair" not in columns:
            raise UserError(
                f"--{split}_file: name the column of the second texts (--text_pair_column), which "
                "figures need; --train_file may lack it"
            )
        self._require_labels()
        task.columns = {**dict.fromkeys(self.columns), **columns}
        examples = list(read_files(task, self.files[split]))
        if "text_pair" in columns:
            return examples
        return [dataclasses.replace(example, text_pair=example.text) for example in examples]

    def _require_labels(self) -> None:
        """Raises a UserError if no file has the column that --label_column names."""
        label, paths = self.columns["label"], [paths[0] for paths in self.files.values()]
        is_there = any(label in column_names(path, self.quoting) for path in paths)
        if label != self.fields["label"] and not is_there:
            raise UserError(f"--label_column: no column {label!r} in {', '.join(paths)}")

    def read_file(self, path: str, first: int = 0, needs_answers: bool = False) -> Iterator:
        """See Task.read_file. Labels are optional in all files."""
        return super().read_file(path, first, needs_answers=False)

    def examples(self, rows: Iterable[Row]) -> Iterator[EmbeddingExample]:
        for row in rows:
            texts = {f: row.text(f) for f in ("text", "text_pair", "negative") if f in row.cells}
            label = None
            if "label" in row.cells:
                label = as_number(row.cells["label"], row.columns["label"], row.where)
            yield EmbeddingExample(row.id, label=label, **texts)

    def objection(self, config: AlbertConfig, settings: Any, strategy: Any) -> str:
        """See Task.objection."""
        if settings.gradient_accumulation_steps > 1:
            return (
                "--gradient_accumulation_steps: the loss of embeddings compares all texts of a "
                "batch: remove the flag, or use a smaller --global_batch_size"
            )
        if settings.freeze_encoder:
            return "--freeze_encoder: embeddings add no layer to train: remove the flag"
        if settings.global_batch_size < 2:
            return "--global_batch_size: the loss of embeddings compares two rows or more"
        if settings.jit_compile or is_tpu(strategy):
            return (
                "--jit_compile, --strategy=tpu: embeddings are trained without padding, which XLA "
                "cannot compile: train on CPUs or GPUs without the flag"
            )
        if self.hidden_dropout_prob and not config.hidden_dropout_prob:
            return (
                "--hidden_dropout_prob=0: without dropout a text has one embedding, so single "
                "texts cannot be trained: use 0.1"
            )
        return ""

    def weighted(self, examples: list[EmbeddingExample]) -> Task:
        """See Task.weighted. Only checks that the training rows differ."""
        for field, of_what in (("label", "score"), ("text", "first text"), ("text_pair", "second")):
            values = {getattr(example, field) for example in examples}
            if len(values) == 1 and values != {None} and len(examples) > 1:
                raise UserError(
                    f"{self.column(field)!r}: the {of_what} is the same in all {len(examples):,} "
                    "training rows: there is nothing to learn; expected different values"
                )
        return self

    def encode(
        self, examples: list, tokenizer: AlbertTokenizer, max_seq_length: int, training: bool
    ) -> tuple[Sequences, list]:
        """See Task.encode. The features of `has_whole_splits` are the different texts."""
        if self.has_whole_splits and not training:
            texts = dict.fromkeys(text for example in examples for text in example.texts())
            examples = [EmbeddingExample("", text) for text in texts]
        return super().encode(examples, tokenizer, max_seq_length, training)

    def pack(self, examples: list, first: int, encoder: Encoder) -> Packed:
        """See Task.pack. Each text is one sequence. The features are the examples."""
        pieces, full_lengths = encoder.tokenize(
            [t for example in examples for t in example.texts()]
        )
        return encoder.truncate_and_pack(pieces), full_lengths + 2, examples

    def targets(self, examples: list, features: list, max_seq_length: int) -> dict[str, np.ndarray]:
        """See Task.targets. Returns `scores`, float32 [n], or `texts` of ranking_losses."""
        if examples[0].is_answered:
            return {"scores": np.array([example.label for example in examples], np.float32)}
        numbers: dict[str, int] = {}
        rows = [[numbers.setdefault(t, len(numbers)) for t in e.texts()] for e in examples]
        return {"texts": np.array(rows, np.int32)}

    def summarise(self, examples: list[EmbeddingExample]) -> list[str]:
        notes = describe_texts(examples)
        equal = sum(example.text == example.text_pair for example in examples)
        is_plain = equal == len(examples)
        if is_plain:
            notes.insert(0, "single texts, each with itself under another dropout mask")
        elif examples[0].is_answered:
            scores = [required(example.label) for example in examples]
            notes.insert(0, f"pairs with scores from {min(scores):.4g} to {max(scores):.4g}")
        else:
            of_second = len({example.text_pair for example in examples})
            negatives = " and a hard negative" * (examples[0].negative is not None)
            different = f"{of_second:,} different second texts"
            notes.insert(0, f"pairs that belong together{negatives}, {different}")
        if equal and not is_plain:
            notes.append(f"warning: {equal:,} pairs of equal texts: there is nothing to learn")
        empty = sum(any(not t.strip() for t in example.texts()) for example in examples)
        if empty:
            notes.append(f"warning: {empty:,} rows with an empty text")
        return notes

    def description(self) -> Description:
        model = {
            "kind": "embedder",
            "pooling": self.pooling,
            "similarity_temperature": self.similarity_temperature,
            "has_pairs": False,
        }
        # A finished model reads single texts.
        columns = {name: self.columns[name] for name in ("text", "id")}
        return Description(model, {}, {"columns": columns, "quoting": self.quoting})

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        vectors, temperature = outputs["embedding"], self.similarity_temperature
        if "scores" in batch:
            return score_losses(vectors, batch["scores"], temperature)
        return ranking_losses(vectors, batch["texts"], temperature)

    def answers(self, examples: list, features: list | None, outputs: Outputs) -> Answers:
        """See Task.answers. Columns: id and embedding. For pairs: id, label, cosine and rank."""
        vectors = np.stack([output["embedding"] for output in outputs])
        if self.has_whole_splits:
            places = {feature.text: place for place, feature in enumerate(features or ())}
            places_of = [[places[text] for text in pair] for pair in _pairs(examples)]
            vectors = vectors[np.array(places_of)]
        if vectors.ndim == 2:
            columns = {"id": [example.id for example in examples]}
            columns["embedding"] = [[round(float(x), 6) for x in row] for row in vectors]
            return Answers(columns, {})
        return self._compared(examples, vectors[:, 0], vectors[:, 1])

    def _compared(self, examples: list[EmbeddingExample], first: Any, second: Any) -> Answers:
        """Returns the answers to pairs, given vectors of their texts; see scoring.embeddings."""
        columns = id_and_label(examples, lambda example: example.label)
        # Use the shortest decimal number that rounds to the same float32.
        columns["prediction"] = [float(str(x)) for x in cosines(first, second).astype(np.float32)]
        if self.has_whole_splits and "label" not in columns:
            columns["rank"] = ranks(first, second, _pairs(examples)).tolist()
        others = np.roll(np.arange(len(examples)), 1)
        return Answers(columns, {"cosine_of_others": cosines(first, second[others]).tolist()})

    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        """See Task.score. Correlations for pairs with scores, or figures of ranks."""
        columns, metrics = _to_score(rows)
        return {name: float(metric(*columns)) for name, metric in metrics.items()}

    def intervals(self, rows: Iterable[dict]) -> dict[str, list[float]]:
        """See Task.intervals. By bootstrap of the rows."""
        columns, metrics = _to_score(rows)
        return intervals_of_rows(columns, metrics) if columns else {}

    def details(self, examples: list, answers: Answers) -> dict:
        return {"intervals": self.intervals(answers.rows())}

    def baselines(self, train: list, dev: list) -> dict[str, Iterable[dict]]:
        """See Task.baselines. Cosines of vectors of words."""
        vectors = vectors_of_words(_pairs(dev))
        return {name: self._compared(dev, *of).rows() for name, of in vectors.items()}

    def write(self, directory: str, split: str, examples: list, answers: Answers) -> list[str]:
        """Writes SPLIT_predictions.tsv, and SPLIT_cosines.png with cosines of random pairs."""
        path = os.path.join(directory, f"{split}_cosines.png")
        draw_cosines(path, answers.columns["prediction"], answers.exact["cosine_of_others"])
        return [*super().write(directory, split, examples, answers), path]


def _pairs(examples: Iterable[EmbeddingExample]) -> list[tuple[str, str]]:
    return [(example.text, required(example.text_pair)) for example in examples]


def _to_score(rows: Iterable[dict]) -> tuple[list[np.ndarray], Mapping[str, Any]]:
    """Returns columns of the rows, and the metrics that apply to them."""
    metrics: Mapping[str, Any] = {}
    columns: dict[str, array.array] = {}
    for row in rows:
        if not columns:
            metrics = OF_RANKS if "rank" in row else OF_SCORES
            names = ("rank",) if "rank" in row else ("label", "prediction")
            columns = {name: array.array("d") for name in names}
        if not columns.keys() <= row.keys():
            return [], {}
        for name, column in columns.items():
            column.append(row[name])
    return [*map(np.array, columns.values())], metrics
