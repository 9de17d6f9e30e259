"""Compares the training step of albert_base with Hugging Face's: forward, backward, clip, update.

Runs on the CPU without dropout. The sides run in turn, each in a fresh process. The process also
measures the ceiling: the best rate of its library's product of two 2048 x 2048 matrices, in the
side's dtype, right before and after the steps. Prints one JSON line per process, then the medians
over the rounds. Sides whose packages are missing are skipped. README.md has the command.

ours, ours_recompute: the step of pipelines.pretrain in its loop, with batches from tf.data and LAMB
huggingface_torch, ..._compiled: see the function huggingface_torch; with AdamW
..._bfloat16: with --mixed_precision=bfloat16, or torch's autocast; the other sides use float32

The operations are those of our model's matrix products. Additional work of a side (logits of all
positions, unused positions of the last block, recomputed blocks) does not count.
"""

import json
import os
import shutil
import statistics
from collections.abc import Callable

import numpy as np
from absl import flags

from albert_tf.jobs import program
from tests.benchmarks.measuring import (
    both_seconds,
    define_sides,
    measure_in_turn,
    peak_megabytes,
    product_rates,
    tensorflow_product,
    torch_product,
)

FLAGS = flags.FLAGS

_SIDES = (
    "ours",
    "ours_bfloat16",
    "ours_recompute",
    "huggingface_torch_compiled",
    "huggingface_torch_bfloat16",
    "huggingface_torch_compiled_bfloat16",
)
_WARM_UP_STEPS = 2


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_list(
        "shapes", ["128x16x20", "512x4x76"], "Each LENGTHxBATCHxPREDICTIONS of an example."
    )
    define_sides(_SIDES)
    flags.DEFINE_integer("rounds", 3, "Processes of each side and shape.", lower_bound=1)
    flags.DEFINE_integer("steps", 5, "Steps that count in a process.", lower_bound=1)
    flags.DEFINE_bool("in_this_process", False, "Measure here, once: what the processes do.")


def main(_) -> None:
    """Reads the flags."""
    if FLAGS.in_this_process:
        (shape,), (side,) = FLAGS.shapes, FLAGS.sides
        print(json.dumps(measure(side, shape, FLAGS.steps)), flush=True)
        return
    options = [(f"--shapes={shape}", "--in_this_process") for shape in FLAGS.shapes]
    cases = [(side, *of_shape) for of_shape in options for side in FLAGS.sides]
    measure_in_turn("tests.benchmarks.train_step", FLAGS.rounds, cases)


def measure(side: str, shape: str, steps: int) -> dict:
    """Measures one side in this process."""
    seq_length, batch_size, predictions = map(int, shape.split("x"))
    batch = make_batch(seq_length, batch_size, predictions)
    step, product = make_side(side, batch)
    first_loss, *_ = (step() for _ in range(_WARM_UP_STEPS))
    rates = product_rates(product)
    step_seconds = statistics.median(both_seconds(step)[0] for _ in range(steps))
    ceiling = max(rates + product_rates(product))
    # Before TensorFlow is imported to count operations: it would add to the memory of a torch side.
    peak = peak_megabytes()
    return {
        "shape": shape,
        "side": side,
        # About ln 30000 + ln 2 = 11.0 if a side computes the right loss.
        "first loss": round(first_loss, 3),
        "seq/s": round(batch_size / step_seconds, 3),
        "ceiling, GFLOP/s": round(ceiling, 1),
        "of it": round(1e-9 * operations_of_a_step(batch) / step_seconds / ceiling, 4),
        "peak, GB": peak / 1e3,
    }


def make_side(side: str, batch: dict[str, np.ndarray]):
    """Returns a training step that returns its loss, and the matrix product for the ceiling.

    Raises an ImportError if a package of the side is missing.
    """
    dtype = "bfloat16" if side.endswith("_bfloat16") else "float32"
    if side.startswith("huggingface_torch"):
        return huggingface_torch(batch, "_compiled" in side, dtype)
    # Imported here, because TensorFlow would add to the memory of a torch side.
    import tensorflow as tf

    from albert_tf.config import AlbertConfig
    from albert_tf.losses import PRETRAINING_OBJECTIVES
    from albert_tf.models import AlbertForPreTraining
    from pipelines.training.settings import PretrainingSettings, precision

    kind = "none" if dtype == "float32" else dtype
    settings = PretrainingSettings(len(batch["input_mask"]), 1000, 0, 1e-4, mixed_precision=kind)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope(), precision(settings.mixed_precision):
        model = AlbertForPreTraining(AlbertConfig.named("albert_base"), side == "ours_recompute")
        model.create_variables()
        run = step_of_pretraining(settings, strategy, model, batch)

    def step() -> float:
        sums = run(1)["sums"]
        return sum(sums[name]["loss"] / sums[name]["weight"] for name in PRETRAINING_OBJECTIVES)

    return step, tensorflow_product(dtype)


def huggingface_torch(batch: dict[str, np.ndarray], compiled: bool, dtype: str):
    """Returns the step and the product of `make_side`, for Hugging Face's AlbertForPreTraining.

    Logits are computed at the predicted positions only. The optimizer is torch's fused AdamW after
    clip_grad_norm_, which is less work than LAMB. With bfloat16, products run under autocast.
    """
    os.environ["USE_TORCH"] = "1"  # then transformers does not import TensorFlow
    import torch
    from transformers import AlbertConfig, AlbertForPreTraining

    if compiled and not (os.environ.get("CXX") or shutil.which("g++")):
        raise ImportError("no g++, and torch.compile needs a C++ compiler")
    # As published for albert-base-v2; others are defaults.
    sizes = {"vocab_size": 30_000, "hidden_size": 768, "intermediate_size": 3072}
    sizes.update(num_attention_heads=12, hidden_act="gelu_new")
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")
    model = AlbertForPreTraining(AlbertConfig(**sizes, **dict.fromkeys(names, 0.0))).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    inputs = {
        "input_ids": tensors["input_word_ids"],
        "attention_mask": tensors["input_mask"],
        "token_type_ids": tensors["input_type_ids"],
    }
    positions, labels = tensors["masked_lm_positions"].long(), tensors["masked_lm_ids"].long()
    order = tensors["sentence_order_labels"].long()

    def loss_of():
        encoded = model.albert(**inputs)
        index = positions[:, :, None].expand(-1, -1, model.config.hidden_size)
        logits = model.predictions(encoded.last_hidden_state.gather(1, index))
        masked_lm = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        order_logits = model.sop_classifier(encoded.pooler_output)
        return masked_lm + torch.nn.functional.cross_entropy(order_logits, order)

    if compiled:
        loss_of = torch.compile(loss_of, dynamic=False)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step, torch_product(dtype)


def step_of_pretraining(settings, strategy, model, batch: dict) -> Callable[[int], dict]:
    """Returns run(steps) -> totals: the loop that pipelines.training.train_loop runs on the device.

    Call it in the scope of the strategy. `model` has its variables.
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


def operations_of_a_step(batch: dict[str, np.ndarray]) -> int:
    """Counts the floating-point operations of albert_base's matrix products in a training step.

    The backward pass takes twice as many as the forward pass. Padding positions are included.

    Source: Kaplan et al. 2020, section 2.1 (6 operations per parameter and token), plus the
    products inside attention.
    """
    import tensorflow as tf
    from tensorflow.python.framework.ops import get_stats_for_node_def

    from albert_tf.config import AlbertConfig
    from albert_tf.models import AlbertForPreTraining

    with tf.Graph().as_default() as graph:
        AlbertForPreTraining(AlbertConfig.named("albert_base"))(batch)
    forward = [
        get_stats_for_node_def(graph, operation.node_def, "flops").value
        for operation in graph.get_operations()
        if operation.type in ("MatMul", "BatchMatMulV2")
    ]
    return 3 * sum(forward)


if __name__ == "__main__":
    define_flags()
    program.run(main)
