"""How many pairs a model needs to learn the order of two runs of words.

A pair is a window of a record's text, cut in the middle; half of the pairs are swapped. Both parts
are equally long and begin and end anywhere in a sentence. A linear classifier that compares nothing
tells 61.5 % of such pairs, as windows touch the ends of segments (novels, parts of 8 pieces): what
a model tells beyond that, it tells by comparing the parts. Prints one line of accuracies, at [CLS]
and at the [SEP] between the parts, over each interval.

Example (some ten minutes on two cores):
  python -m tests.benchmarks.order_control --checkpoint=runs/hour_32 --record_dir=records_32 \
      --num_hidden_layers=4 --separator_order_loss
"""

from __future__ import annotations

import time

import tensorflow as tf
from absl import flags

from albert_tf import losses, optimization
from albert_tf.checkpoints import model_directory
from albert_tf.jobs import program
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data.records import Manifest, parse_segments

FLAGS = flags.FLAGS

_SHUFFLED_RECORDS = 20_000


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("checkpoint", None, "Initial weights.", required=True)
    flags.DEFINE_string("record_dir", None, "Segment records.", required=True)
    flags.DEFINE_integer("part_length", 8, "Pieces in A, and in B.", lower_bound=2)
    flags.DEFINE_integer("batch_size", 256, "Pairs per step.", lower_bound=1)
    flags.DEFINE_float("learning_rate", 5e-4, "Peak learning rate of AdamW.", lower_bound=0.0)
    flags.DEFINE_integer("num_steps", 300, "Steps to train.", lower_bound=1)
    flags.DEFINE_integer("steps_per_line", 20, "Steps per printed line.", lower_bound=1)
    flags.DEFINE_integer("num_hidden_layers", None, "Default: as in the checkpoint.")
    flags.DEFINE_bool("separator_order_loss", False, "As of pipelines.pretrain.")
    flags.DEFINE_bool("shuffle", False, "Shuffle the pieces of each window: the control.")


def main(_) -> None:
    """Trains and prints."""
    tf.keras.utils.set_random_seed(1)
    directory, _ = model_directory.find_checkpoint(FLAGS.checkpoint)
    model, _ = model_directory.load_for_pretraining(FLAGS.checkpoint)
    tokenizer = AlbertTokenizer.load(directory)
    optimizer = optimization.adamw(
        optimization.WarmUpPolynomialDecay(FLAGS.learning_rate, 2 * FLAGS.num_steps, 100),
        bias_correction=True,
    )

    @tf.function
    def step(windows, labels):
        inputs = _lay_out(windows, labels, tokenizer.cls_id, tokenizer.sep_id)
        separator = tf.fill([FLAGS.batch_size, 1], FLAGS.part_length + 1)
        with tf.GradientTape() as tape:
            encoded = model.encoder(
                inputs, num_hidden_layers=FLAGS.num_hidden_layers, positions=separator
            )
            at_separator = model.encoder.pooler(encoded["sequence_output"][:, 0])
            sums = [
                losses.weighted_cross_entropy(
                    model.sentence_order(pooled), labels, tf.ones([FLAGS.batch_size])
                )
                for pooled in (encoded["pooled_output"], at_separator)
            ]
            loss = sums[0]["loss"] + FLAGS.separator_order_loss * sums[1]["loss"]
            loss /= FLAGS.batch_size
        gradients = tape.gradient(
            loss, model.trainable_variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        gradients, _ = tf.clip_by_global_norm([tf.convert_to_tensor(g) for g in gradients], 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return tf.stack([sums[0]["correct"], sums[1]["correct"]])

    began, correct = time.monotonic(), tf.zeros([2])
    for number, batch in enumerate(_pairs().take(FLAGS.num_steps), start=1):
        correct += step(*batch)
        if number % FLAGS.steps_per_line == 0:
            at_cls, at_separator = 100 * correct.numpy() / (FLAGS.steps_per_line * FLAGS.batch_size)
            print(
                f"{number * FLAGS.batch_size:,} pairs, {time.monotonic() - began:.0f} s: accuracy "
                f"{at_cls:.1f} % at [CLS], {at_separator:.1f} % at [SEP]",
                flush=True,
            )
            correct = tf.zeros([2])


def _pairs() -> tf.data.Dataset:
    """Returns batches of windows, int32 [b, 2 * part_length], and labels, int32 [b]."""
    size = 2 * FLAGS.part_length
    paths = Manifest.read(FLAGS.record_dir).paths(FLAGS.record_dir, "train")

    def window(number, pieces):
        begin, order = tf.unstack(tf.random.stateless_uniform([2], [number, 1]))
        places = tf.cast(tf.size(pieces) - size + 1, tf.float32)
        begin = tf.cast(begin * places, tf.int32)
        cut = pieces[begin : begin + size]
        if FLAGS.shuffle:
            cut = tf.random.experimental.stateless_shuffle(cut, [number, 2])
        return tf.ensure_shape(cut, [size]), tf.cast(order < 0.5, tf.int32)

    records = tf.data.TFRecordDataset(paths).shuffle(_SHUFFLED_RECORDS, seed=1)
    pieces = records.batch(1024).map(lambda r: parse_segments(r)["input_ids"]).unbatch()
    long = pieces.filter(lambda p: tf.size(p) >= size).repeat()
    return long.enumerate().map(window).batch(FLAGS.batch_size, drop_remainder=True).prefetch(4)


def _lay_out(windows: tf.Tensor, labels: tf.Tensor, cls_id: int, sep_id: int) -> dict:
    """Returns the encoder's inputs for `[CLS] A [SEP] B [SEP]`; label 1 = swapped."""
    first, second = tf.split(windows, 2, axis=1)
    swapped = labels[:, tf.newaxis] == 1
    a, b = tf.where(swapped, second, first), tf.where(swapped, first, second)
    cls, sep = tf.fill([FLAGS.batch_size, 1], cls_id), tf.fill([FLAGS.batch_size, 1], sep_id)
    ids = tf.concat([cls, a, sep, b, sep], axis=1)
    in_b = tf.range(ids.shape[1]) > FLAGS.part_length + 1
    return {
        "input_word_ids": ids,
        "input_mask": tf.ones_like(ids),
        "input_type_ids": tf.zeros_like(ids) + tf.cast(in_b, tf.int32),
    }


if __name__ == "__main__":
    define_flags()
    program.run(main)
