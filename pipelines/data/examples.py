"""Segments into examples: the pair laid out, its order and its masks drawn; tensors in and out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import tensorflow as tf
from absl import flags

from albert_tf.tokenization import AlbertTokenizer
from pipelines.data.masking import MaskingVocabulary, mask_ngrams
from pipelines.data.sentence_pairs import SENTENCE_OBJECTIVES, sentence_pair_examples


@dataclasses.dataclass(frozen=True)
class ExampleOptions:
    """How segments become examples.

    Attributes:
      max_seq_length: L, pieces in an example with [CLS] and [SEP].
      max_predictions_per_seq: P; None means ceil(masked_lm_prob * max_seq_length).
      masked_lm_prob: share of the pieces to predict.
      ngram: longest masked n-gram, in words.
      sentence_objective: one of SENTENCE_OBJECTIVES.
      seed: of order, splits, swaps and masks.

    Deviation: the reference predicts at most 20 pieces at any length: 4 % of 512.
    """

    max_seq_length: int
    max_predictions_per_seq: int | None = None
    masked_lm_prob: float = 0.15
    ngram: int = 3
    sentence_objective: str = "sop"
    seed: int = 12345

    def __post_init__(self):
        assert self.sentence_objective in SENTENCE_OBJECTIVES, self.sentence_objective
        if self.max_predictions_per_seq is None:
            predictions = math.ceil(self.masked_lm_prob * self.max_seq_length)
            object.__setattr__(self, "max_predictions_per_seq", max(1, predictions))


def define_example_flags() -> None:
    """Defines the flags of masks and sentence objective, for the programs that draw them."""
    flags.DEFINE_float("masked_lm_prob", 0.15, "Share of the pieces to predict.", 0.0, 1.0)
    flags.DEFINE_integer(
        "max_predictions_per_seq",
        None,
        "Most predictions in an example; default ceil(masked_lm_prob * max_seq_length).",
        lower_bound=1,
    )
    flags.DEFINE_integer("ngram", 3, "Longest masked n-gram, in words.", lower_bound=1)
    flags.DEFINE_enum(
        "sentence_objective",
        "sop",
        SENTENCE_OBJECTIVES,
        "sop: are two segments in order; nsp: is the second from another document; or none.",
    )


def options_from(values: flags.FlagValues) -> ExampleOptions:
    """Returns what the flags say, --max_seq_length and --random_seed among them."""
    return ExampleOptions(
        max_seq_length=values.max_seq_length,
        max_predictions_per_seq=values.max_predictions_per_seq,
        masked_lm_prob=values.masked_lm_prob,
        ngram=values.ngram,
        sentence_objective=values.sentence_objective,
        seed=values.random_seed,
    )


def example_maker(
    options: ExampleOptions, tokenizer: AlbertTokenizer
) -> Callable[[dict[str, tf.Tensor], dict[str, tf.Tensor]], dict[str, tf.Tensor]]:
    """Returns (segments of records.parse_segments, draws of as many rows) -> batch."""
    vocabulary = MaskingVocabulary(
        tokenizer.mask_id, tokenizer.word_starts(), tokenizer.replacement_ids()
    )

    def make_examples(segments, draws):
        example = sentence_pair_examples(
            segments,
            draws["split"],
            draws["change"],
            options.sentence_objective,
            options.max_seq_length,
            tokenizer.cls_id,
            tokenizer.sep_id,
        )
        masked = mask_ngrams(
            example,
            vocabulary,
            draws,
            options.max_predictions_per_seq,
            options.masked_lm_prob,
            options.ngram,
        )
        return {**example, **masked}

    return make_examples


def example_draws(options: ExampleOptions, rows: int, seed) -> dict[str, tf.Tensor]:
    """Returns all random numbers of a batch, uniform in [0, 1), from one seed of two numbers."""
    spans = options.max_seq_length + 1
    shapes = {
        "split": [rows],
        "change": [rows],
        "span_length": [rows, spans],
        "span_order": [rows, spans],
        "replace": [rows, options.max_predictions_per_seq],
        "replacement": [rows, options.max_predictions_per_seq],
    }
    seeds = [tf.random.experimental.stateless_fold_in(seed, i) for i in range(len(shapes))]
    return {
        name: tf.random.stateless_uniform(shape, name_seed)
        for (name, shape), name_seed in zip(shapes.items(), seeds)
    }
