"""Parses serialized tf.Examples in the graph. Invalid records do not affect other records."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from albert_tf.text.packing import FEATURES
from albert_tf.text.tokenization import AlbertTokenizer
from .checks import find_errors


def parse_records(
    records: tf.Tensor,
    limits: dict[str, int],
    longest: int,
    sequences_per_record: int,
    tokenizer: AlbertTokenizer,
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Parses serialized tf.Examples, string [batch].

    Each contains FEATURES, int64 [sequences_per_record * seq_len], with values below `limits`.
    seq_len is at most `longest` and may differ between records. If a record contains several
    sequences, each must start with [CLS]. Otherwise a single long sequence would be accepted.

    Returns the padded FEATURES, int32 [batch * sequences_per_record, seq_len], and the error of
    each record, string [batch]. "" means no error. Invalid records are replaced by zeros.
    """
    features = dict.fromkeys(FEATURES, tf.io.VarLenFeature(tf.int64))

    def check(index):
        parsed = tf.io.parse_single_example(records[index], features)
        values = {name: parsed[name].values for name in FEATURES}
        return index, _error(values, limits, longest, sequences_per_record, tokenizer.cls_id)

    # Parsing a batch fails if one record is not a tf.Example. So tf.data parses single records
    # and skips errors (cost not measured). The extra element ensures that the result is not empty.
    number = tf.size(records, tf.int64)
    checked = tf.data.Dataset.range(number).map(check).ignore_errors()
    end = tf.data.Dataset.from_tensors((number, tf.constant("")))
    indices, errors = checked.concatenate(end).batch(number + 1).get_single_element()
    unreadable = tf.fill([number + 1], f"no tf.Example with {', '.join(FEATURES)} of int64")
    error = tf.tensor_scatter_nd_update(unreadable, indices[:, tf.newaxis], errors)[:-1]

    # Replace invalid records, so that the whole batch can be parsed at once.
    harmless = serialize(dict.fromkeys(FEATURES, np.zeros(sequences_per_record, np.int64)))
    readable = tf.where(tf.equal(error, ""), records, harmless)
    feature = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    parsed = tf.io.parse_example(readable, dict.fromkeys(FEATURES, feature))
    lengths = parsed["input_ids"].row_lengths() // sequences_per_record
    seq_len = tf.maximum(tf.reduce_max(lengths), 1)
    lengths = tf.repeat(lengths, sequences_per_record)
    return {
        name: tf.RaggedTensor.from_row_lengths(
            tf.cast(parsed[name].flat_values, tf.int32), lengths
        ).to_tensor(tokenizer.pad_id if name == "input_ids" else 0, shape=tf.stack([-1, seq_len]))
        for name in FEATURES
    }, error


def _error(
    values: dict[str, tf.Tensor],
    limits: dict[str, int],
    longest: int,
    sequences_per_record: int,
    cls_id: int,
) -> tf.Tensor:
    """Returns the error message for one record, string []; "" if the record is valid."""
    lengths = tf.stack([tf.size(values[name]) for name in FEATURES])
    length = lengths[0] // sequences_per_record
    bad_lengths = (
        tf.reduce_any(lengths != lengths[0])
        | (length * sequences_per_record != lengths[0])
        | (length < 1)
        | (length > longest)
    )
    message = (
        f"{', '.join(FEATURES)} must be equally many: {sequences_per_record} * seq_len, seq_len"
        f" 1 to {longest}"
    )
    error = find_errors(values, limits)
    if sequences_per_record > 1:
        begins = values["input_ids"][:: tf.maximum(length, 1)]
        each = f"each of the {sequences_per_record} sequences must begin with [CLS], {cls_id}"
        error = tf.where((error == "") & tf.reduce_any(begins != cls_id), each, error)
    return tf.where(bad_lengths, message, error)


def serialize(features: dict[str, np.ndarray]) -> bytes:
    """Serializes int64 features as a tf.Example."""
    lists = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values.reshape(-1)))
        for name, values in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()
