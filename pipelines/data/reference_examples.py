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


def parse_examples(records: tf.Tensor, options: ExampleOptions) -> dict[str, tf.Tensor]:
    """Parses static examples to a batch with the names, shapes and dtypes of example_maker.

    Examples with two parts have a sentence label, unless the objective is "none".
    """
    features = training_features(options.max_seq_length, options.max_predictions_per_seq)
    parsed = tf.io.parse_example(records, features)
    ints = {name: tf.cast(value, tf.int32) for name, value in parsed.items()}
    labels = ints["next_sentence_labels"][:, 0]
    has_b = tf.reduce_sum(ints["segment_ids"], axis=1) > 0
    has_label = has_b & options.objective.has_label
    return {
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
    records: Sequence[bytes], lengths: tuple[int, int], tokenizer: AlbertTokenizer
) -> tuple[int, tuple[int, str] | None]:
    """Returns the number of pieces, and (index, problem) of the first invalid record or None."""
    features = training_features(*lengths)
    try:
        parsed = {k: v.numpy() for k, v in tf.io.parse_example(records, features).items()}
    except tf.errors.InvalidArgumentError as error:
        if len(records) == 1:
            reason = str(error).split("}}")[-1].strip()[:200]
            return 0, (0, f"other features than expected ({reason})")
        alone = (check_examples([record], lengths, tokenizer)[1] for record in records)
        return 0, next((index, fault[1]) for index, fault in enumerate(alone) if fault)
    ids, labels = parsed["input_ids"], parsed["masked_lm_ids"]
    no_pieces = [(v < 0) | (v >= tokenizer.vocab_size) for v in (ids, labels)]
    faults = {
        f"a piece beyond the vocabulary of {tokenizer.vocab_size}": np.concatenate(no_pieces, 1),
        f"no [CLS], piece {tokenizer.cls_id}, at its start": ids[:, :1] != tokenizer.cls_id,
    }
    found = [(int(bad.any(axis=1).argmax()), name) for name, bad in faults.items() if bad.any()]
    return int(parsed["input_mask"].sum()), min(found, default=None)
