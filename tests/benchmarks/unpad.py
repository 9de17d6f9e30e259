"""Measures --unpad: CPU time of forward and backward pass on records, with padding and without.

Both sides take the same batches in turn, in one process with one thread, so other work on the
machine matters little. The step is traced and its shapes compiled before it is timed. The model is
the hour's, of 6 layers of 256, or with --hidden_size=768 of that width.

Example:
  python -m tests.benchmarks.unpad --record_dir=records --spm_model_file=own.model --batch_size=32
"""

from __future__ import annotations

import statistics
import time

import tensorflow as tf
from absl import flags

from albert_tf import losses
from albert_tf.config import AlbertConfig
from albert_tf.jobs import program
from albert_tf.models import AlbertForPreTraining
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.data.examples import ExampleOptions
from pipelines.data.pretraining_dataset import pretraining_dataset, read_sources
from pipelines.training.settings import precision

FLAGS = flags.FLAGS


def main(_) -> None:
    """Prints examples a second of CPU time for both sides, their ratio and the share of padding."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sources = read_sources(FLAGS.record_dir)
    manifest = sources[0].manifest
    tokenizer = AlbertTokenizer(FLAGS.spm_model_file, manifest.do_lower_case)
    width = FLAGS.hidden_size
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=width,
        num_hidden_layers=6,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    with precision(FLAGS.mixed_precision):
        model = AlbertForPreTraining(config)
        model.create_variables()

    @tf.function
    def step(batch, unpad):
        with tf.GradientTape() as tape:
            sums = losses.pretraining_sums(model(batch, training=True, unpad=unpad), batch)
            loss = losses.pretraining_loss(sums, losses.pretraining_weights(batch))
        return tape.gradient(loss, model.trainable_variables)

    options = ExampleOptions(manifest.max_seq_length)
    batches = list(
        pretraining_dataset(sources, options, tokenizer, FLAGS.batch_size).take(FLAGS.steps)
    )
    seconds = {False: [], True: []}
    for batch in batches:
        for unpad, times in seconds.items():
            step(batch, unpad)
            started = time.process_time()
            step(batch, unpad)
            times.append(time.process_time() - started)
    padded, unpadded = (statistics.median(times) for times in seconds.values())
    real = statistics.fmean(
        float(tf.reduce_mean(tf.cast(b["input_mask"], tf.float32))) for b in batches
    )
    print(
        f"{FLAGS.batch_size} x {manifest.max_seq_length}, {100 * (1 - real):.1f} % padding: "
        f"{FLAGS.batch_size / padded:.1f} and {FLAGS.batch_size / unpadded:.1f} examples/s, "
        f"ratio {padded / unpadded:.3f}"
    )


if __name__ == "__main__":
    flags.DEFINE_string("record_dir", None, "Records.", required=True)
    flags.DEFINE_string("spm_model_file", None, "Their vocabulary.", required=True)
    flags.DEFINE_integer("batch_size", 32, "Examples of a step.")
    flags.DEFINE_integer("hidden_size", 256, "Width of the model, a multiple of 64.")
    flags.DEFINE_integer("steps", 20, "Timed steps of each side.")
    flags.DEFINE_enum("mixed_precision", "bfloat16", ["none", "bfloat16"], "Precision.")
    program.run(main)
