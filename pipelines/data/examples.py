"""Converts segments to training examples in the TensorFlow graph."""

import dataclasses
import math
from collections.abc import Callable

import tensorflow as tf
from absl import flags

from albert_tf.jobs.settings import setting
from albert_tf.text.tokenization import AlbertTokenizer
from .masking import mask_ngrams
from .sentence_pairs import SENTENCE_OBJECTIVES, SentenceObjective, choose_pairs, lay_out

# Version of the random draws. Increase it by one whenever a code change alters the draws for the
# same seed and the same text or records. Runs, record jobs and evaluations store it, so that
# results of different versions are never mixed. tests/pipelines/data/test_draws.py fails if
# segments, record order, pairs, labels or masks change and DRAWS does not.
DRAWS = 2


@dataclasses.dataclass(frozen=True)
class ExampleOptions:
    """Options of the examples. `seed` determines their order, splits, swaps and masks.

    Deviation: the reference predicts at most 20 pieces, which is only 4 % at length 512.
    """

    max_seq_length: int
    max_predictions_per_seq: int = setting(  # None becomes the default in __post_init__
        flags.DEFINE_integer,
        "Maximum number of predictions per example. Default: ceil(masked_lm_prob * "
        "max_seq_length).",
        None,
        lower_bound=1,
    )
    masked_lm_prob: float = setting(
        flags.DEFINE_float,
        "Fraction of the pieces to predict.",
        0.15,
        lower_bound=0.0,
        upper_bound=1.0,
    )
    ngram: int = setting(flags.DEFINE_integer, "Maximum masked n-gram, in words.", 3, lower_bound=1)
    mask_token_rate: float = setting(
        flags.DEFINE_float,
        "Fraction of the predicted pieces that are replaced by [MASK]. Half of the others are "
        "replaced by a random piece. For results with 1, see tests/benchmarks/README.md, What was "
        "tried.",
        0.8,
        lower_bound=0.0,
        upper_bound=1.0,
    )
    sentence_objective: str = setting(
        flags.DEFINE_enum,
        "sop: predict whether the two parts are in order. nsp: predict whether the second part "
        "comes from another document. none: no label.",
        "sop",
        enum_values=list(SENTENCE_OBJECTIVES),
    )
    seed: int = 12345

    def __post_init__(self):
        assert self.sentence_objective in SENTENCE_OBJECTIVES, self.sentence_objective
        if self.max_predictions_per_seq is None:
            predictions = math.ceil(self.masked_lm_prob * self.max_seq_length)
            object.__setattr__(self, "max_predictions_per_seq", max(1, predictions))

    @property
    def objective(self) -> SentenceObjective:
        """The entry of SENTENCE_OBJECTIVES for `sentence_objective`."""
        return SENTENCE_OBJECTIVES[self.sentence_objective]


def example_maker(
    options: ExampleOptions, tokenizer: AlbertTokenizer
) -> Callable[[dict[str, tf.Tensor], dict[str, tf.Tensor]], dict[str, tf.Tensor]]:
    """Returns a function of parsed segments and their `example_draws` that returns examples."""

    def make_examples(segments, draws):
        of_pairs = draws["split"][:, 0], draws["change"][:, 0]
        length = options.max_seq_length
        pairs = choose_pairs(segments, *of_pairs, options.objective, length)
        example = lay_out(pairs, segments, length, tokenizer.cls_id, tokenizer.sep_id)
        return {**example, **mask_ngrams(example, draws, options, tokenizer)}

    return make_examples


def example_draws(
    options: ExampleOptions, rows: int, seed: tf.Tensor, first_row: int = 0
) -> dict[str, tf.Tensor]:
    """Draws all random numbers for some rows of a batch, uniform in [0, 1).

    The numbers of a row depend only on `seed`, int64 [2], and on the row's index in the global
    batch. So each host draws numbers only for its own rows, which start at index `first_row`.
    """
    spans = options.max_seq_length + 1
    widths = {
        "split": 1,
        "change": 1,
        "span_length": spans,
        "span_order": spans,
        "replace": options.max_predictions_per_seq,
        "replacement": options.max_predictions_per_seq,
    }
    # Each step of the counter generates four numbers. A row uses a whole number of steps.
    steps = -(-sum(widths.values()) // 4)
    philox = 1
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    counter += tf.constant([first_row * steps, 0], tf.uint64)
    draws = tf.raw_ops.StatelessRandomUniformV2(
        shape=[rows, 4 * steps], key=key, counter=counter, alg=philox
    )
    return dict(zip(widths, tf.split(draws, [*widths.values(), -1], axis=1)))
