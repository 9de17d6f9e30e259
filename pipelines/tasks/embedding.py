"""Embeddings: trains an encoder so that close texts have vectors with a high cosine."""

import copy
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.losses import ranking_losses, score_losses
from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from ..training.strategy import is_tpu
from .reading.examples import AnyExample, id_and_label, required
from .reading.sequences import Encoder, Packed, Sequences
from .reading.split_report import describe_texts
from .reading.tables import Row, as_number, column_names
from .scoring import embeddings
from .scoring.figures import draw_cosines
from .task import Answers, Description, Outputs, Task

TEXTS = ("text", "text_pair", "negative")


@dataclasses.dataclass(frozen=True)
class EmbeddingExample(AnyExample):
    """A text, or a pair: with a score (higher for closer texts), or a hard negative of `text`."""

    id: str
    text: str
    text_pair: str | None = None
    negative: str | None = None
    label: float | None = None

    @property
    def pair(self) -> tuple[str, str]:
        return self.text, required(self.text_pair)

    @property
    def separated(self) -> tuple[str, ...]:
        return self.pair[1:] if self.label is None else self.pair

    def inputs(self) -> dict[str, str]:
        return {name: text for name in TEXTS if (text := getattr(self, name)) is not None}


class EmbeddingTask(Task):
    """Trains embeddings on one of three forms of data, which the columns of the file determine.

    1. Pairs with scores (there is a column of labels): score_losses.
    2. Pairs that belong together, with an optional column of hard negatives: ranking_losses.
    3. Single texts: ranking_losses of each text with itself, which dropout encodes in two ways
       (SimCSE). Dev must have pairs.

    A task with `files` gets all examples of a split at once in `encode` and `answers`. It ranks
    second texts, and encodes each different text of dev once. For `pooling` see AlbertForEmbedding.
    """

    fields: ClassVar = {**dict.fromkeys((*TEXTS, "id")), "text": "text", "label": "label"}
    stored: ClassVar[tuple[str, ...]] = ("pooling", "quoting")
    block_size = 4000
    has_dev_loss = False

    def __init__(self, *arguments: Any, pooling: str = "mean", quoting: str = "csv"):
        super().__init__(*arguments)
        self.pooling, self.quoting = pooling, quoting
        # A finished model reads single texts, unless --text_pair_column is given.
        if not self.files and not self.columns["text_pair"]:
            self.columns["label"] = None

    @property
    def best_metric(self) -> str:
        is_scored = "label" in self._columns["dev" if "dev" in self.files else "train"]
        return "spearman" if is_scored else "mrr_at_10"

    @property
    def hidden_dropout_prob(self) -> float | None:
        return 0.1 if self._columns["train"]["text_pair"] == self.columns["text"] else None

    @functools.cached_property
    def _columns(self) -> dict[str, dict[str, str | None]]:
        """Maps fields to the columns to read of a split. A single text is its own second text."""
        names = {split: column_names(of[0], self.quoting) for split, of in self.files.items()}
        given: dict[str, str | None] = {f: c for f, c in self.columns.items() if c}
        label, found = given.get("label"), {}
        is_optional = label == self.fields["label"] or any(label in of for of in names.values())
        for split, present in names.items():
            # Dev may lack hard negatives, train beside a dev file second texts, some files scores.
            other = "negative" if split != "train" else "text_pair" if "dev" in names else None
            optional = (other, "label" if is_optional else None)
            found[split] = {f: c for f, c in given.items() if c in present or f not in optional}
            found[split].setdefault("text_pair", given["text"])
        return found

    def read(self, split: str) -> list | None:
        task = copy.copy(self)
        task.columns = self._columns.get(split, {})
        return Task.read(task, split)

    def examples(self, rows: Iterable[Row]) -> Iterator[EmbeddingExample]:
        for row in rows:
            values: dict[str, Any] = {name: row.text(name) for name in TEXTS if name in row.cells}
            if "label" in row.cells:
                values["label"] = as_number(row.cells["label"], row.columns["label"], row.where)
            yield EmbeddingExample(row.id, **values)

    def objection(self, config: AlbertConfig, settings: Any, strategy: Any) -> str:
        if settings.global_batch_size == 1:
            return "--global_batch_size=1: embeddings compare the rows of a batch: give 2 or more"
        if settings.gradient_accumulation_steps > 1:
            return "--gradient_accumulation_steps: the loss of embeddings needs all rows: omit it"
        if settings.freeze_encoder:
            return "--freeze_encoder: embeddings add no layer to train: remove the flag"
        if settings.jit_compile or is_tpu(strategy):
            return "--jit_compile, --strategy=tpu: XLA needs padding, embeddings have none: omit it"
        if self.hidden_dropout_prob and not config.hidden_dropout_prob:
            return "--hidden_dropout_prob=0: without dropout single texts teach nothing: use 0.1"
        return ""

    def encode(
        self, examples: list, tokenizer: AlbertTokenizer, max_seq_length: int, training: bool
    ) -> tuple[Sequences, list]:
        """See Task.encode. The features of dev and test are their different texts."""
        for field in ("text", "text_pair", "label") if training else ():
            if len({getattr(example, field) for example in examples} - {None}) == 1:
                raise UserError(
                    f"{self.column(field)!r} is the same in all {len(examples):,} training rows: "
                    "there is nothing to learn; expected different values"
                )
        if self.files and not training:
            if all(example.text == example.text_pair for example in examples):
                raise UserError(
                    "single texts have no figures: give a --dev_file with pairs and their "
                    "--text_pair_column, or --eval_steps=0 and no dev set"
                )
            texts = dict.fromkeys(text for example in examples for text in example.pair)
            examples = [EmbeddingExample("", text) for text in texts]
        return super().encode(examples, tokenizer, max_seq_length, training)

    def pack(self, examples: list, first: int, encoder: Encoder) -> Packed:
        pieces, lengths = encoder.tokenize([text for row in examples for text in row.texts()])
        return encoder.truncate_and_pack(pieces), lengths + 2, examples

    def targets(self, examples: list, features: list, max_seq_length: int) -> dict[str, np.ndarray]:
        """Returns `scores`, float32 [n], or `texts` of ranking_losses."""
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
        empty = sum(not all(map(str.strip, example.texts())) for example in examples)
        faults = {"pairs of equal texts: there is nothing to learn": equal}
        faults["rows with an empty text"] = empty
        warnings = [f"warning: {number:,} {fault}" for fault, number in faults.items() if number]
        return [form, *describe_texts(examples), *warnings]

    def description(self) -> Description:
        model = {"kind": "embedder", "pooling": self.pooling, "has_pairs": False}
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
            vectors = vectors[[[places[text] for text in row.pair] for row in examples]]
        if vectors.ndim == 3:
            return self._compared(examples, vectors[:, 0], vectors[:, 1])
        rounded = vectors.astype(float).round(6).tolist()
        return Answers({"id": [row.id for row in examples], "embedding": rounded}, {})

    def _compared(self, examples: list[EmbeddingExample], first: Any, second: Any) -> Answers:
        """Returns the answers to pairs, given vectors of their texts; see scoring.embeddings."""
        columns = id_and_label(examples, lambda example: example.label)
        cosines = (first * second).sum(axis=1).astype(np.float32)
        # Use the shortest decimal number that rounds to the same float32.
        columns["prediction"] = [float(str(cosine)) for cosine in cosines]
        if self.files and "label" not in columns:
            pairs = [row.pair for row in examples]
            columns["rank"] = embeddings.ranks(first, second, pairs).tolist()
        others = second[np.roll(np.arange(len(examples)), 1)]
        return Answers(columns, {"cosine_of_others": (first * others).sum(axis=1).tolist()})

    def score(self, rows: Iterable[dict]) -> dict[str, float]:
        return embeddings.figures(rows)

    def intervals(self, rows: Iterable[dict]) -> dict[str, list[float]]:
        return embeddings.intervals(rows)

    def baselines(self, train: list, dev: list) -> dict[str, Iterable[dict]]:
        vectors = embeddings.vectors_of_words([text for row in dev for text in row.pair])
        return {n: self._compared(dev, of[::2], of[1::2]).rows() for n, of in vectors.items()}

    def write(self, directory: str, split: str, examples: list, answers: Answers) -> list[str]:
        """Writes SPLIT_predictions.tsv, and SPLIT_cosines.png with cosines of random pairs."""
        path = os.path.join(directory, f"{split}_cosines.png")
        draw_cosines(path, answers.columns["prediction"], answers.exact["cosine_of_others"])
        return [*super().write(directory, split, examples, answers), path]
