"""Parses and checks the reference's static examples, which are padded and masked.

Each record is an uncompressed tf.train.Example with the features of the reference's
create_pretraining_data.py (L = max_seq_length, P = max_predictions_per_seq; padding is 0):

  input_ids             int64 [L]: pieces after masking
  input_mask            int64 [L]: 1 = real
  segment_ids           int64 [L]: 1 = B and its [SEP]
  token_boundary        int64 [L]: 1 = [CLS], [SEP] or a piece that starts a word
  masked_lm_positions   int64 [P]: ascending
  masked_lm_ids         int64 [P]: the original pieces
  masked_lm_weights     float32 [P]: 1 = prediction
  next_sentence_labels  int64 [1]: 1 = A and B are swapped, or B is from another document
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from albert_tf.text.packing import FEATURES
from albert_tf.text.tokenization import AlbertTokenizer
from .examples import ExampleOptions


def training_features(max_seq_length: int, max_predictions_per_seq: int) -> dict:
    """Returns the specification of the training features for tf.io.parse_example."""
    lengths = {
        **dict.fromkeys(FEATURES, max_seq_length),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), max_predictions_per_seq),
        "next_sentence_labels": 1,
    }
    features = {name: tf.io.FixedLenFeature([length], tf.int64) for name, length in lengths.items()}
    weights = tf.io.FixedLenFeature([max_predictions_per_seq], tf.float32)
    return {**features, "masked_lm_weights": weights}


def parse_examples(
    records: tf.Tensor, options: ExampleOptions, with_lengths: bool = False
) -> dict[str, tf.Tensor]:
    """Parses static examples to a batch with the names, shapes and dtypes of example_maker.

    Examples with two parts have a sentence label, unless the objective is "none". If `with_lengths`
    is True, the batch includes `length_features`, int32 [b, 2]: the numbers of pieces in A and in
    B, including special pieces. The lengths of single sentences are unknown.
    """
    features = training_features(options.max_seq_length, options.max_predictions_per_seq)
    parsed = tf.io.parse_example(records, features)
    ints = {name: tf.cast(value, tf.int32) for name, value in parsed.items()}
    labels = ints["next_sentence_labels"][:, 0]
    len_b = tf.reduce_sum(ints["segment_ids"], axis=1)
    has_label = (len_b > 0) & options.objective.has_label
    lengths = tf.stack([tf.reduce_sum(ints["input_mask"], axis=1) - len_b, len_b], axis=1)
    return {
        **({"length_features": lengths} if with_lengths else {}),
        "input_word_ids": ints["input_ids"],
        "input_type_ids": ints["segment_ids"],
        **{name: ints[name] for name in ("input_mask", "masked_lm_positions", "masked_lm_ids")},
        "masked_lm_weights": parsed["masked_lm_weights"],
        "sentence_order_labels": labels,
        "sentence_order_weights": tf.cast(has_label, tf.float32),
        "opens_document": tf.zeros_like(labels),  # unknown
    }


def example_lengths(record: bytes) -> tuple[int, int]:
    """Returns L and P of a record. A missing feature has length 0."""
    try:
        feature = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        return 0, 0
    ids, positions = feature["input_ids"], feature["masked_lm_positions"]
    return len(ids.int64_list.value), len(positions.int64_list.value)


def check_examples(
    records: Sequence[bytes], lengths: Sequence[int], tokenizer: AlbertTokenizer
) -> tuple[int, tuple[int, str] | None]:
    """Returns the number of pieces, and (index, problem) of the first invalid record or None."""
    features = training_features(*lengths)
    for index, record in enumerate(records):
        if problem := _schema_fault(record, features):
            return 0, (index, problem)
    parsed = {k: v.numpy() for k, v in tf.io.parse_example(records, features).items()}
    ids, mask, types = parsed["input_ids"], parsed["input_mask"], parsed["segment_ids"]
    positions, labels = parsed["masked_lm_positions"], parsed["masked_lm_ids"]
    weights = parsed["masked_lm_weights"]
    used = mask.sum(axis=1)
    vocabulary = f"beyond the vocabulary of {tokenizer.vocab_size} pieces"
    no_piece = [(v < 0) | (v >= tokenizer.vocab_size) for v in (ids, labels)]
    faults = {
        f"input_ids has a piece {vocabulary}": no_piece[0],
        f"masked_lm_ids has a piece {vocabulary}": no_piece[1],
        "input_mask is not 1 for some pieces and 0 for the rest": mask
        != (np.arange(lengths[0]) < np.maximum(used, 1)[:, np.newaxis]),
        f"input_ids does not begin with [CLS], piece {tokenizer.cls_id}": ids[:, :1]
        != tokenizer.cls_id,
        "segment_ids has other values than 0 and 1": (types != 0) & (types != 1),
        "masked_lm_weights has other values than 0 and 1": (weights != 0) & (weights != 1),
        # Unused predictions (weight 0) can have any position in the padded row.
        "masked_lm_positions points beyond the text": (positions < 0)
        | (positions >= np.where(weights == 1, used[:, np.newaxis], lengths[0])),
        "next_sentence_labels is neither 0 nor 1": parsed["next_sentence_labels"] >> 1 != 0,
    }
    found = [
        (int(bad.any(axis=1).argmax()), problem) for problem, bad in faults.items() if bad.any()
    ]
    return int(used.sum()), min(found, key=lambda fault: fault[0], default=None)


def _schema_fault(record: bytes, features: dict[str, tf.io.FixedLenFeature]) -> str | None:
    try:
        feature = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        return "is no tf.train.Example"
    for name, spec in features.items():
        kind = "float_list" if spec.dtype == tf.float32 else "int64_list"
        if name not in feature:
            return f"has no feature {name!r}"
        if feature[name].WhichOneof("kind") != kind:
            return f"feature {name!r} is not of type {spec.dtype.name}"
        if (count := len(getattr(feature[name], kind).value)) != spec.shape[0]:
            return f"feature {name!r} has {count} values instead of {spec.shape[0]}"
    return None
