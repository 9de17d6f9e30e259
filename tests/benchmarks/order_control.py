"""How many pairs a model needs to tell their order where the answer is certain.

Parts A and B hold random pieces, but the last piece of what came first equals the first piece of
what came second: so one comparison tells the order of every pair. Real pairs tell less, in fewer of
them. Prints one line of accuracy and loss over each interval.

Example (two minutes on one core):
  python -m tests.benchmarks.order_control --checkpoint=runs/hour_32 --part_length=6
"""

from __future__ import annotations

import time

import tensorflow as tf
from absl import flags

from albert_tf import losses, optimization, program
from albert_tf.checkpoints import model_directory

FLAGS = flags.FLAGS

_FIRST_PIECE = 5  # those before it are special
_CLS, _SEP = 2, 3


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_string("checkpoint", None, "Initial weights.", required=True)
    flags.DEFINE_integer("part_length", 6, "Pieces in A, and in B.", lower_bound=2)
    flags.DEFINE_integer("batch_size", 128, "Pairs per step.", lower_bound=1)
    flags.DEFINE_float("learning_rate", 5e-4, "Peak learning rate of AdamW.", lower_bound=0.0)
    flags.DEFINE_integer("num_steps", 400, "Steps to train.", lower_bound=1)
    flags.DEFINE_integer("steps_per_line", 40, "Steps per printed line.", lower_bound=1)
    flags.DEFINE_float(
        "share_with_order", 1.0, "Share of the pairs whose label is not drawn at random.", 0.0, 1.0
    )


def main(_) -> None:
    """Trains and prints."""
    tf.keras.utils.set_random_seed(1)
    model, _ = model_directory.load_for_pretraining(FLAGS.checkpoint)
    optimizer = optimization.adamw(
        optimization.WarmUpPolynomialDecay(FLAGS.learning_rate, 20_000, 200)
    )

    @tf.function
    def step(number):
        ids, labels = _pairs(number, model.config.vocab_size)
        in_b = tf.range(ids.shape[1]) > FLAGS.part_length + 1
        inputs = {
            "input_word_ids": ids,
            "input_mask": tf.ones_like(ids),
            "input_type_ids": tf.zeros_like(ids) + tf.cast(in_b, tf.int32),
        }
        with tf.GradientTape() as tape:
            logits = model.sentence_order(model.encoder(inputs)["pooled_output"])
            sums = losses.weighted_cross_entropy(logits, labels, tf.ones([FLAGS.batch_size]))
            loss = sums["loss"] / sums["weight"]
        gradients = tape.gradient(
            loss, model.trainable_variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        gradients, _ = tf.clip_by_global_norm([tf.convert_to_tensor(g) for g in gradients], 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return tf.stack([sums["correct"], sums["loss"], sums["weight"]])

    began, totals = time.monotonic(), tf.zeros([3])
    for number in range(1, FLAGS.num_steps + 1):
        totals += step(tf.constant(number))
        if number % FLAGS.steps_per_line == 0:
            correct, loss, weight = totals.numpy()
            print(
                f"{number * FLAGS.batch_size:,} pairs, {time.monotonic() - began:.0f} s: accuracy "
                f"{100 * correct / weight:.1f} %, loss {loss / weight:.4f} nats",
                flush=True,
            )
            totals = tf.zeros([3])


def _pairs(number: tf.Tensor, vocab_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns ids, int32 [b, 2 * part_length + 3], and labels, int32 [b]: 1 = swapped."""
    rows, length = FLAGS.batch_size, FLAGS.part_length

    def draw(shape, low, high, stream):
        return tf.random.stateless_uniform(shape, [number, stream], low, high, tf.int32)

    others = draw([rows, 2 * length - 2], _FIRST_PIECE, vocab_size, 1)
    repeated = draw([rows, 1], _FIRST_PIECE, vocab_size, 2)
    swapped = draw([rows, 1], 0, 2, 3)
    a_end, b_begin = others[:, : length - 1], others[:, length - 1 :]
    in_order = tf.concat([a_end, repeated, repeated, b_begin], axis=1)
    in_disorder = tf.concat([repeated, others, repeated], axis=1)
    pieces = tf.where(swapped == 1, in_disorder, in_order)
    cls, sep = tf.fill([rows, 1], _CLS), tf.fill([rows, 1], _SEP)
    ids = tf.concat([cls, pieces[:, :length], sep, pieces[:, length:], sep], axis=1)
    is_told = tf.random.stateless_uniform([rows], [number, 4]) < FLAGS.share_with_order
    return ids, tf.where(is_told, swapped[:, 0], draw([rows], 0, 2, 5))


if __name__ == "__main__":
    define_flags()
    program.run(main)
