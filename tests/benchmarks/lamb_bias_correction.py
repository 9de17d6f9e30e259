"""Measures what LAMB's bias correction changes: the same tiny models trained with and without it.

The text is a Markov chain, new at every step: topics follow one another in a ring, and each has
words of its own. Its two segments are swapped in half of the examples. Of each seed both optimizers
get the same weights and batches. Prints one JSON line per seed, optimizer and reported step, the
loss being that of 512 examples never trained on, and one line per optimizer and step with the mean
over the seeds.

Example:
  python -m tests.benchmarks.lamb_bias_correction --peak_learning_rate=0.01 --num_seeds=3
"""

from __future__ import annotations

import json
import statistics

import numpy as np
import tensorflow as tf
from absl import flags

from albert_tf import losses, optimization
from albert_tf.config import AlbertConfig
from albert_tf.jobs import program
from albert_tf.models import AlbertForPreTraining

FLAGS = flags.FLAGS

_CLS, _SEP, _MASK, _FIRST_WORD = 2, 3, 4, 5
_TOPICS, _WORDS_OF_TOPIC = 8, 24
_NEXT_TOPIC = 0.1  # chance that a word begins the next one
_VOCAB_SIZE = _FIRST_WORD + _TOPICS * _WORDS_OF_TOPIC
_BATCH_SIZE, _SEGMENT, _PREDICTIONS = 32, 15, 5
_SEQ_LENGTH = 2 * _SEGMENT + 3
_EVALUATED = 512

_CONFIG = AlbertConfig(
    vocab_size=_VOCAB_SIZE,
    embedding_size=16,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=_SEQ_LENGTH,
    initializer_range=0.1,  # with so few columns 0.02 would not learn in a thousand steps
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_integer("num_train_steps", 1000, "Steps of a run.", lower_bound=1)
    flags.DEFINE_integer("num_warmup_steps", 25, "Of them, linear warm-up.", lower_bound=0)
    flags.DEFINE_float("peak_learning_rate", 0.01, "Learning rate after warm-up.", lower_bound=0)
    flags.DEFINE_integer("num_seeds", 3, "Runs of each optimizer.", lower_bound=1)
    flags.DEFINE_list("report_steps", ["10", "50", "100", "300", "1000"], "Steps to report.")


def main(_) -> None:
    """Reads the flags and prints the figures."""
    report_steps = sorted(map(int, FLAGS.report_steps))
    found = {}
    for seed in range(FLAGS.num_seeds):
        for bias_correction in (False, True):
            schedule = optimization.WarmUpPolynomialDecay(
                FLAGS.peak_learning_rate, FLAGS.num_train_steps, FLAGS.num_warmup_steps
            )
            optimizer = optimization.lamb(schedule, bias_correction=bias_correction)
            curve = train(optimizer, FLAGS.num_train_steps, report_steps, seed)
            for step, loss in curve.items():
                found.setdefault((bias_correction, step), []).append(loss)
                _print(seed=seed, bias_correction=bias_correction, step=step, loss=round(loss, 4))
    for (bias_correction, step), values in found.items():
        _print(
            bias_correction=bias_correction,
            step=step,
            mean_loss=round(statistics.mean(values), 4),
            lowest=round(min(values), 4),
            highest=round(max(values), 4),
            seeds=len(values),
        )


def train(optimizer, num_steps: int, report_steps: list[int], seed: int) -> dict[int, float]:
    """Trains a model of `seed`; returns step -> held-out loss after that many updates."""
    tf.keras.utils.set_random_seed(seed)
    model = AlbertForPreTraining(_CONFIG)
    model.create_variables()
    optimization.create_slots(optimizer, model)
    rng = np.random.default_rng(seed)
    held_out = make_batch(rng, _EVALUATED)

    @tf.function
    def loss_of(batch):
        sums = losses.pretraining_sums(model(batch), batch)
        return losses.pretraining_loss(sums, {name: s["weight"] for name, s in sums.items()})

    @tf.function
    def step_on(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = optimization.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    curve = {}
    for step in range(1, num_steps + 1):
        step_on(make_batch(rng, _BATCH_SIZE))
        if step in report_steps:
            curve[step] = float(loss_of(held_out))
    return curve


def make_batch(rng: np.random.Generator, size: int) -> dict[str, tf.Tensor]:
    """Returns `[CLS] A [SEP] B [SEP]` without padding, as the model and the losses take it."""
    shape = [size, 2 * _SEGMENT]
    topics = np.cumsum(rng.random(shape) < _NEXT_TOPIC, axis=1)
    topics = (topics + rng.integers(0, _TOPICS, [size, 1])) % _TOPICS
    words = (
        _FIRST_WORD
        + topics * _WORDS_OF_TOPIC
        + (_WORDS_OF_TOPIC * rng.random(shape) ** 2).astype(int)
    )
    swapped = rng.integers(0, 2, size)
    words = np.where(swapped[:, None], np.roll(words, _SEGMENT, axis=1), words)
    cls, sep = np.full([size, 1], _CLS), np.full([size, 1], _SEP)
    ids = np.concatenate([cls, words[:, :_SEGMENT], sep, words[:, _SEGMENT:], sep], axis=1)
    drawn = np.where(ids >= _FIRST_WORD, rng.random(ids.shape), 2.0)
    positions = np.sort(np.argsort(drawn, axis=1)[:, :_PREDICTIONS], axis=1)
    labels = np.take_along_axis(ids, positions, axis=1)
    np.put_along_axis(ids, positions, _MASK, axis=1)
    batch = {
        "input_word_ids": ids,
        "input_mask": np.ones_like(ids),
        "input_type_ids": np.tile(np.arange(_SEQ_LENGTH) > _SEGMENT + 1, [size, 1]),
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "sentence_order_labels": swapped,
    }
    batch = {name: tf.constant(array.astype(np.int32)) for name, array in batch.items()}
    batch["masked_lm_weights"] = tf.ones(positions.shape)
    batch["sentence_order_weights"] = tf.ones([size])
    return batch


def _print(**figures) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    define_flags()
    program.run(main)
