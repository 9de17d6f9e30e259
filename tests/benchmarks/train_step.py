"""Compares the training step of albert_base with other libraries: forward, backward, clip, update.

Runs on the CPU without dropout. The sides run in turn, each in a fresh process. The process also
measures the ceiling: the best rate of its library's product of two 2048 x 2048 matrices, in the
side's dtype, right before and after the steps. Prints one JSON line per process, then the medians
over the rounds. Sides whose packages are missing are skipped.

ours, ours_recompute: the step of pipelines.pretrain in its loop, with batches from tf.data and LAMB
huggingface_tf: Hugging Face's model in the same loop, with the same losses and LAMB
huggingface_torch_gathered and ..._compiled: see train_step_peers; with AdamW
..._bfloat16: with --mixed_precision=bfloat16, or torch's autocast; the other sides use float32

tests.benchmarks.flops counts the operations of all sides. Additional work of a side (logits of
all positions, unused positions of the last block, recomputed blocks) does not count. "whole" counts
the last block at all positions, which all sides but ours compute. The ceiling is a best rate, but
the rate of a step is a median. Therefore "sgemm's" states the median rate of sgemm, too.

Example:
  python -m tests.benchmarks.train_step --rounds=3 --steps=5
"""

import itertools
import json
import os
import re
import statistics
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from albert_tf.jobs import program
from tests.benchmarks import train_step_peers as peers
from tests.benchmarks.measuring import (
    both_seconds,
    define_sides,
    measure_in_turn,
    median,
    peak_megabytes,
    print_table,
    product_rates,
    tensorflow_product,
)

if TYPE_CHECKING:
    from pipelines.training.settings import PretrainingSettings

FLAGS = flags.FLAGS

_SIDES = (
    "ours",
    "ours_bfloat16",
    "ours_recompute",
    "huggingface_torch_gathered_compiled",
    "huggingface_torch_gathered_bfloat16",
    "huggingface_torch_gathered_compiled_bfloat16",
    "huggingface_tf",
    "huggingface_tf_bfloat16",
)
_WARM_UP_STEPS = 2
# Name of a value -> title and format of its column.
_FIGURES = {
    "sequences_per_second": ("seq/s", ".2f"),
    "gflop_per_second": ("GFLOP/s", ".0f"),
    "ceiling_gflop_per_second": ("ceiling", ".0f"),
    "ceiling_share": ("of it", ".1%"),
    "whole_ceiling_share": ("whole", ".1%"),
    "sgemm_ceiling_share": ("sgemm's", ".1%"),
    "peak_gigabytes": ("peak, GB", ".2f"),
    "step_seconds": ("step, s", ".3f"),
    "step_processor_seconds": ("CPU, s", ".3f"),
}


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_list(
        "shapes", ["128x16x20", "512x4x76"], "Each LENGTHxBATCHxPREDICTIONS of an example."
    )
    define_sides(_SIDES)
    flags.DEFINE_integer("rounds", 3, "Processes of each side and shape.", lower_bound=1)
    flags.DEFINE_integer("steps", 5, "Steps that count in a process.", lower_bound=1)
    flags.DEFINE_bool("in_this_process", False, "Measure here, once: what the processes do.")
    flags.register_validator(
        "shapes",
        lambda shapes: all(re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", shape) for shape in shapes),
        "expected LENGTHxBATCHxPREDICTIONS, such as 128x16x20",
    )


def main(_) -> None:
    """Reads the flags."""
    if FLAGS.in_this_process:
        for shape, side in itertools.product(FLAGS.shapes, FLAGS.sides):
            print(json.dumps(measure(side, shape, FLAGS.steps)), flush=True)
    else:
        compare(FLAGS.shapes, FLAGS.sides, FLAGS.rounds)


def compare(shapes: list[str], sides: list[str], rounds: int) -> None:
    """Prints the lines of all processes and a table."""
    options = [(f"--shapes={shape}", "--in_this_process") for shape in shapes]
    cases = [(side, *of_shape) for of_shape in options for side in sides]
    lines = measure_in_turn("tests.benchmarks.train_step", rounds, cases)
    rows = []
    for (side, *of_shape), found in lines.items():
        ours = lines.get(("ours", *of_shape))
        step = median(found, "step_seconds")
        factor = step / median(ours, "step_seconds") if ours else None
        figures = [median(found, name) for name in _FIGURES]
        rows.append([found[0]["shape"], side, *figures, factor])
    print_table({"shape": "", "side": "", **dict(_FIGURES.values()), "of ours": ".2f"}, rows)


def measure(side: str, shape: str, steps: int) -> dict:
    """Measures one side in this process; returns figures, or why the side cannot be measured."""
    seq_length, batch_size, predictions = map(int, shape.split("x"))
    try:
        step, product = make_side(side, make_batch(seq_length, batch_size, predictions))
    except ImportError as error:
        reason = str(error).strip().splitlines()[0]
        return {"side": side, "shape": shape, "skipped": reason}
    first_loss, *_ = (step() for _ in range(_WARM_UP_STEPS))
    rates = product_rates(product)
    times, processor_times = zip(*(both_seconds(step) for _ in range(steps)))
    rates += product_rates(product)
    ceiling = max(rates)
    # Before TensorFlow is imported to count operations: it would add to the memory of a torch side.
    peak = peak_megabytes()
    libraries = ["torch" if "torch" in side else "tensorflow"]
    libraries += ["transformers"] if side.startswith("huggingface") else []
    step_seconds = statistics.median(times)
    asked, whole = (
        1e-9 * batch_size * flops_per_example(seq_length, predictions, all_of_it) / step_seconds
        for all_of_it in (False, True)
    )
    return {
        "side": side,
        "shape": shape,
        "libraries": [f"{name} {metadata.version(name)}" for name in libraries],
        "cpus": len(os.sched_getaffinity(0)),
        "steps": steps,
        # About ln 30000 + ln 2 = 11.0 if a side computes the right loss.
        "first_loss": round(first_loss, 3),
        "step_seconds": round(step_seconds, 4),
        "step_processor_seconds": round(statistics.median(processor_times), 4),
        "sequences_per_second": round(batch_size / step_seconds, 3),
        "gflop_per_second": round(asked, 1),
        "ceiling_gflop_per_second": round(ceiling, 1),
        "ceiling_share": round(asked / ceiling, 4),
        "whole_ceiling_share": round(whole / ceiling, 4),
        "sgemm_ceiling_share": round(statistics.median(rates) / ceiling, 4),
        "peak_gigabytes": peak / 1e3,
    }


def make_side(
    side: str, batch: dict[str, np.ndarray]
) -> tuple[Callable[[], float], Callable[[], object]]:
    """Returns a training step that returns its loss, and the matrix product for the ceiling."""
    dtype = "bfloat16" if side.endswith("_bfloat16") else "float32"
    if side.startswith("huggingface_torch"):
        return peers.huggingface_torch(batch, "_compiled" in side, dtype)
    # Imported here, because TensorFlow would add to the memory of a torch side.
    import tensorflow as tf

    from albert_tf.config import AlbertConfig
    from albert_tf.losses import PRETRAINING_OBJECTIVES
    from albert_tf.models import AlbertForPreTraining
    from pipelines.training.settings import PretrainingSettings, precision

    settings = PretrainingSettings(
        len(batch["input_mask"]),
        1000,
        num_warmup_steps=0,
        learning_rate=1e-4,
        mixed_precision="none" if dtype == "float32" else dtype,
    )
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope(), precision(settings.mixed_precision):
        if side.startswith("huggingface_tf"):
            model = peers.huggingface_tf()
        else:
            config = AlbertConfig.named("albert_base")
            model = AlbertForPreTraining(config, recompute=side == "ours_recompute")
        model({name: rows[:1] for name, rows in batch.items()})  # creates the variables
        run = step_of_pretraining(settings, strategy, model, batch)

    def step() -> float:
        sums = run(1)["sums"]
        return sum(sums[name]["loss"] / sums[name]["weight"] for name in PRETRAINING_OBJECTIVES)

    return step, tensorflow_product(dtype)


def step_of_pretraining(
    settings: "PretrainingSettings", strategy, model, batch: dict[str, np.ndarray]
) -> Callable[[int], dict]:
    """Returns run(steps) -> totals: the loop that pipelines.training.train_loop runs on the device.

    Call it in the scope of the strategy. `model` is ours or a Peer, and has its variables.
    """
    import tensorflow as tf

    from albert_tf import optimization
    from pipelines.pretrain import make_optimizer
    from pipelines.training.train_step import TrainStep, make_step_loop, pretraining_objective

    optimizer = make_optimizer(settings)
    optimization.create_slots(optimizer, model)
    train_step = TrainStep(
        model, model, pretraining_objective(), optimizer, settings, settings.random_seed
    )
    run_steps = make_step_loop(strategy, train_step)
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    stop = tf.Variable(False, trainable=False)

    def run(steps: int) -> dict:
        totals = run_steps(iterator, tf.constant(steps), stop)
        return tf.nest.map_structure(float, totals)  # waits for the device

    return run


def make_batch(
    seq_length: int, batch_size: int, predictions: int, vocab_size: int = 30_000
) -> dict[str, np.ndarray]:
    """Returns examples of random pieces without padding, in the format of model and losses."""
    rng = np.random.default_rng(0)
    shape = [batch_size, seq_length]
    everywhere = rng.permuted(np.tile(np.arange(seq_length), [batch_size, 1]), axis=1)
    batch = {
        "input_word_ids": rng.integers(5, vocab_size, shape),
        "input_mask": np.ones(shape),
        "input_type_ids": np.tile(np.arange(seq_length) > seq_length // 2, [batch_size, 1]),
        "masked_lm_positions": np.sort(everywhere[:, :predictions]),
        "masked_lm_ids": rng.integers(5, vocab_size, [batch_size, predictions]),
        "sentence_order_labels": rng.integers(0, 2, batch_size),
    }
    return {
        **{name: array.astype(np.int32) for name, array in batch.items()},
        "masked_lm_weights": np.ones([batch_size, predictions], np.float32),
        "sentence_order_weights": np.ones([batch_size], np.float32),
    }


def flops_per_example(seq_length: int, predictions: int, whole_last_block: bool) -> int:
    """Returns the operations that tests.benchmarks.flops counts for albert_base."""
    import tensorflow as tf

    from albert_tf.config import AlbertConfig
    from albert_tf.models import AlbertForPreTraining
    from tests.benchmarks.flops import training_flops_per_example

    with tf.Graph().as_default():
        model = AlbertForPreTraining(AlbertConfig.named("albert_base"))
        model.create_variables()
        return training_flops_per_example(
            model, seq_length, predictions, hidden_states=whole_last_block
        )


if __name__ == "__main__":
    define_flags()
    program.run(main)
