"""Embeddings: trains an encoder so that close texts have vectors with a high cosine."""

import array
import collections
import copy
import dataclasses
import functools
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
from .scoring.embeddings import (
    OF_RANKS,
    OF_SCORES,
    cosines,
    intervals_of_rows,
    ranks,
    vectors_of_words,
)
from .scoring.figures import draw_cosines
from .task import Answers, Columns, Description, Files, Outputs, Task, read_files

TEXTS = ("text", "text_pair", "negative")


@dataclasses.dataclass(frozen=True)
class EmbeddingExample(AnyExample):
    """A text to embed, or a pair of texts.

    `label` is the score of a pair, higher for closer texts, or None. `negative` is a text that does
    not belong to `text`, or None.
    """

    id: str
    text: str
    text_pair: str | None = None
    negative: str | None = None
    label: float | None = None

    @property
    def separated(self) -> tuple[str, ...]:
        """See AnyExample: the last text of a pair; with a score, each text."""
        texts = self.text, required(self.text_pair)
        return texts[1:] if self.label is None else texts

    def inputs(self) -> dict[str, str]:
        return {name: text for name in TEXTS if (text := getattr(self, name)) is not None}


class EmbeddingTask(Task):
    """Trains embeddings on one of three forms of data, which the columns of the file determine.

    1. Pairs with scores (there is a column of labels): score_losses.
    2. Pairs that belong together (no labels), with an optional column of hard negatives:
       ranking_losses.
    3. Single texts (no column of second texts): ranking_losses of each text with itself, which
       dropout encodes in two ways (SimCSE). Dev must have pairs.

    Args:
      pooling: see AlbertForEmbedding.
      quoting: see Task.quoting.

    A task with `files` gets all examples of a split at once in `encode` and `answers`. It ranks
    second texts, and encodes each different text of dev once.
    """

    fields: ClassVar = {**dict.fromkeys((*TEXTS, "id")), "text": "text", "label": "label"}
    stored: ClassVar[tuple[str, ...]] = ("pooling", "quoting")
    block_size = 4000
    has_dev_loss = False
    starts_trained = True

    def __init__(
        self,
        name: str,
        files: Files,
        columns: Columns | None = None,
        pooling: str = "mean",
        quoting: str = "csv",
    ):
        super().__init__(name, files, columns)
        self.pooling, self.quoting = pooling, quoting

    @classmethod
    def restore(cls, description: dict, columns: Mapping[str, str], quoting: str | None) -> Task:
        """See Task.restore. Rows are single texts, unless --text_pair_column is given."""
        task = super().restore(description, columns, quoting)
        if not task.columns["text_pair"]:
            task.columns["label"] = None
        return task

    @property
    def best_metric(self) -> str:
        is_scored = "label" in self._columns["dev" if "dev" in self.files else "train"]
        return next(iter(OF_SCORES if is_scored else OF_RANKS))

    @property
    def hidden_dropout_prob(self) -> float | None:
        """See Task: 0.1 for single texts."""
        return None if "text_pair" in self._columns["train"] else 0.1

    @functools.cached_property
    def _columns(self) -> dict[str, dict[str, str]]:
        """Maps fields to the columns to read of each split.

        A hard negative may be missing in dev, the second text in train beside a dev file, and the
        score in some files.
        """
        names = {n: column_names(paths[0], self.quoting) for n, paths in self.files.items()}
        given = {field: column for field, column in self.columns.items() if column}
        label, found = self.columns["label"], {}
        is_optional = label == self.fields["label"] or any(label in of for of in names.values())
        for split, columns in names.items():
            optional = {"label"} if is_optional else set()
            if split != "train":
                optional |= {"negative"}
            elif "dev" in names:
                optional |= {"text_pair"}
            found[split] = {f: c for f, c in given.items() if c in columns or f not in optional}
        return found

    def read(self, split: str) -> list | None:
        """See Task.read. A single text is paired with itself."""
        if split not in self.files:
            return None
        task, columns = copy.copy(self), self._columns[split]
        task.columns = {**dict.fromkeys(self.columns), **columns}
        examples = list(read_files(task, self.files[split], needs_answers=True))
        if "text_pair" in columns:
            return examples
        return [dataclasses.replace(example, text_pair=example.text) for example in examples]

    def examples(self, rows: Iterable[Row]) -> Iterator[EmbeddingExample]:
        for row in rows:
            values: dict[str, Any] = {name: row.text(name) for name in TEXTS if name in row.cells}
            if "label" in row.cells:
                label = row.cells["label"], row.columns["label"]
                values["label"] = as_number(*label, row.where)
            yield EmbeddingExample(row.id, **values)

    def objection(self, config: AlbertConfig, settings: Any, strategy: Any) -> str:
        """See Task.objection."""
        if settings.global_batch_size == 1:
            return "--global_batch_size=1: embeddings compare the rows of a batch: give 2 or more"
        if settings.gradient_accumulation_steps > 1:
            return (
                "--gradient_accumulation_steps: the loss of embeddings compares all texts of a "
                "batch: remove the flag, or use a smaller --global_batch_size"
            )
        if settings.freeze_encoder:
            return "--freeze_encoder: embeddings add no layer to train: remove the flag"
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
        for field in ("text", "text_pair", "label"):
            values = {getattr(example, field) for example in examples}
            if len(values) == 1 and values != {None}:
                raise UserError(
                    f"{self.column(field)!r} is the same in all {len(examples):,} training rows: "
                    "there is nothing to learn; expected different values"
                )
        return self

    def encode(
        self, examples: list, tokenizer: AlbertTokenizer, max_seq_length: int, training: bool
    ) -> tuple[Sequences, list]:
        """See Task.encode. The features of whole splits are the different texts."""
        if self.files and not training:
            if all(example.text == example.text_pair for example in examples):
                raise UserError(
                    "single texts have no figures: give a --dev_file with pairs and the column of "
                    "their second texts (--text_pair_column), or --eval_steps=0 and no dev set"
                )
            texts = dict.fromkeys(text for pair in _pairs(examples) for text in pair)
            examples = [EmbeddingExample("", text) for text in texts]
        return super().encode(examples, tokenizer, max_seq_length, training)

    def pack(self, examples: list, first: int, encoder: Encoder) -> Packed:
        """See Task.pack. Each text is one sequence. The features are the examples."""
        pieces, lengths = encoder.tokenize([text for row in examples for text in row.texts()])
        return encoder.truncate_and_pack(pieces), lengths + 2, examples

    def targets(self, examples: list, features: list, max_seq_length: int) -> dict[str, np.ndarray]:
        """See Task.targets. Returns `scores`, float32 [n], or `texts` of ranking_losses."""
        if examples[0].is_answered:
            return {"scores": np.array([example.label for example in examples], np.float32)}
        texts = np.array([[*example.texts()] for example in examples], object)
        numbers = np.unique(texts, return_inverse=True)[1]
        return {"texts": numbers.reshape(texts.shape).astype(np.int32)}

    def summarise(self, examples: list[EmbeddingExample]) -> list[str]:
        equal = sum(example.text == example.text_pair for example in examples)
        if examples[0].is_answered:
            scores = [required(example.label) for example in examples]
            form = f"pairs with scores from {min(scores):.4g} to {max(scores):.4g}"
        elif equal == len(examples):
            form, equal = "single texts, each with itself under another dropout mask", 0
        else:
            number = len({example.text_pair for example in examples})
            form = f"pairs that belong together, {number:,} different second texts"
            form += ", each pair with a hard negative" * (examples[0].negative is not None)
        notes = [form, *describe_texts(examples)]
        if equal:
            notes.append(f"warning: {equal:,} pairs of equal texts: there is nothing to learn")
        if empty := sum(not all(map(str.strip, example.texts())) for example in examples):
            notes.append(f"warning: {empty:,} rows with an empty text")
        return notes

    def description(self) -> Description:
        model = {"kind": "embedder", "pooling": self.pooling, "has_pairs": False}
        # A finished model reads single texts.
        columns = {name: self.columns[name] for name in ("text", "id")}
        return Description(model, {}, {"columns": columns, "quoting": self.quoting})

    def losses(self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
        if "scores" in batch:
            return score_losses(outputs["embedding"], batch["scores"])
        return ranking_losses(outputs["embedding"], batch["texts"])

    def answers(self, examples: list, features: list | None, outputs: Outputs) -> Answers:
        """See Task.answers. Columns: id and embedding. For pairs: id, label, cosine and rank."""
        vectors = np.stack([output["embedding"] for output in outputs])
        if self.files:
            places = {feature.text: place for place, feature in enumerate(features or ())}
            vectors = vectors[[[places[text] for text in pair] for pair in _pairs(examples)]]
        if vectors.ndim == 2:
            embeddings = [[round(float(x), 6) for x in row] for row in vectors]
            return Answers({"id": [row.id for row in examples], "embedding": embeddings}, {})
        return self._compared(examples, vectors[:, 0], vectors[:, 1])

    def _compared(self, examples: list[EmbeddingExample], first: Any, second: Any) -> Answers:
        """Returns the answers to pairs, given vectors of their texts; see scoring.embeddings."""
        columns = id_and_label(examples, lambda example: example.label)
        # Use the shortest decimal number that rounds to the same float32.
        columns["prediction"] = [float(str(x)) for x in cosines(first, second).astype(np.float32)]
        if self.files and "label" not in columns:
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
    found: dict[str, array.array] = collections.defaultdict(lambda: array.array("d"))
    for row in rows:
        names = ("rank",) if "rank" in row else ("label", "prediction") if "label" in row else ()
        for name in names:
            found[name].append(row[name])
    metrics = OF_RANKS if "rank" in found else OF_SCORES if found else {}
    return [*map(np.array, found.values())], metrics
