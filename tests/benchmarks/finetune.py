"""Measures fine-tuning of albert_base beside Hugging Face's Trainer on torch, on the CPU.

--task=random: sequences of random pieces, all of --max_seq_length. RTE's and SQuAD's training
examples tell what batches of about one length gain. The sides run in turn, each in a fresh process;
one JSON line each, then the medians.

ours: the step of pipelines.finetune in its loop; batches made by length, as long as their longest.
ours_fixed_length: the same, every batch padded to --max_seq_length.
huggingface_trainer: AlbertForSequenceClassification, batches padded to their longest, AdamW.

Examples:
  python -m tests.benchmarks.finetune --max_seq_length=128 --rounds=2
  python -m tests.benchmarks.finetune --task=rte --data_dir=glue --spm_model_file=30k-clean.model
  python -m tests.benchmarks.finetune --task=squad_v1 --data_dir=squad --max_seq_length=384 \\
      --spm_model_file=30k-clean.model --sides=ours,ours_fixed_length --steps=16
"""

from __future__ import annotations

import json
import os
import time

import numpy as np
from absl import flags

from albert_tf.jobs import program
from albert_tf.storage.errors import UserError
from tests.benchmarks.measuring import (
    ceiling,
    in_fresh_process,
    median,
    print_table,
    tensorflow_product,
    torch_product,
)

FLAGS = flags.FLAGS

_OUR_SIDES = ("ours", "ours_fixed_length")
_SIDES_OF = {
    "random": (*_OUR_SIDES, "huggingface_trainer"),
    "rte": (*_OUR_SIDES, "huggingface_trainer"),
    "squad_v1": _OUR_SIDES,
}
_WARM_UP_STEPS = 2


def define_flags() -> None:
    """Defines the flags."""
    flags.DEFINE_enum("task", "random", [*_SIDES_OF], "Whose examples.")
    flags.DEFINE_string("data_dir", None, "Of rte and squad_v1: where the files lie.")
    flags.DEFINE_string("train_file", None, "Of squad_v1: in place of --data_dir's.")
    flags.DEFINE_string("spm_model_file", None, "Of rte and squad_v1: the vocabulary.")
    flags.DEFINE_integer("max_seq_length", 128, "Most pieces of a sequence.", 8)
    flags.DEFINE_integer("batch_size", 16, "Examples in a step.", 1)
    flags.DEFINE_integer("steps", 16, "Steps that count: batches are sorted 16 at a time.", 1)
    flags.DEFINE_integer("rounds", 1, "Processes of each side.", 1)
    flags.DEFINE_list("sides", None, "What to measure. Default: all that the task can have.")
    flags.DEFINE_bool("group_by_length", True, "Of the Trainer, as ours does.")
    flags.DEFINE_bool("in_this_process", False, "Measure here, once: what the processes do.")


def main(_) -> None:
    """Reads the flags."""
    if FLAGS.in_this_process:
        print(json.dumps(measure(FLAGS.sides[0])), flush=True)
        return
    sides = [*_SIDES_OF[FLAGS.task]] if FLAGS.sides is None else FLAGS.sides
    if unknown := set(sides) - set(_SIDES_OF[FLAGS.task]):
        raise UserError(
            f"--sides={','.join(sorted(unknown))}: --task={FLAGS.task} has the sides "
            f"{', '.join(_SIDES_OF[FLAGS.task])}"
        )
    lines = {side: [] for side in sides}
    for _ in range(FLAGS.rounds):
        for side, found in lines.items():
            line = in_fresh_process("tests.benchmarks.finetune", side, "--in_this_process")
            print(json.dumps(line), flush=True)
            if "skipped" not in line:
                found.append(line)
    columns = {"side": "", "examples/s": ".2f", "real pieces": ".1%", "GFLOP/s ceiling": ".0f"}
    names = ("examples_per_second", "share_of_real_pieces", "ceiling_gflop_per_second")
    rows = [[side, *(median(found, n) for n in names)] for side, found in lines.items() if found]
    print_table(columns, rows)


def measure(side: str) -> dict:
    """Returns the figures of one side in this process."""
    task, sequences = read_sequences()
    is_ours = side in _OUR_SIDES
    run = our_steps if is_ours else huggingface_steps
    seconds, shares = run(task, sequences, side == "ours_fixed_length")
    return {
        "side": side,
        "task": FLAGS.task,
        "max_seq_length": FLAGS.max_seq_length,
        "steps": FLAGS.steps,
        "examples_per_second": round(FLAGS.steps * FLAGS.batch_size / seconds, 3),
        # Of all positions that were computed.
        "share_of_real_pieces": round(shares, 3),
        # Of the library that the side computes with, right after its steps.
        "ceiling_gflop_per_second": round(
            ceiling(tensorflow_product() if is_ours else torch_product()), 1
        ),
    }


def read_sequences():
    """Returns a Task and the pieces of its training examples."""
    from albert_tf.text.tokenization import AlbertTokenizer
    from pipelines.tasks.classification import ClassificationTask, Columns
    from pipelines.tasks.glue import GlueTask
    from pipelines.tasks.squad import SquadTask
    from pipelines.tasks.task import Sequences

    if FLAGS.task == "random":
        rng = np.random.default_rng(0)
        number, length = 64 * FLAGS.batch_size, FLAGS.max_seq_length
        labels = rng.integers(0, 2, number).astype(np.int32)
        task = ClassificationTask("random", {}, Columns("text", "label"), labels=["0", "1"])
        return task, Sequences(
            pieces=rng.integers(5, 30_000, number * length).astype(np.int32),
            row_splits=np.arange(number + 1) * length,
            first_lengths=np.full(number, length // 2, np.int32),
            labels={"labels": labels},
        )
    if FLAGS.task == "rte":
        task = GlueTask("rte", FLAGS.data_dir)
    else:
        file = FLAGS.train_file or os.path.join(FLAGS.data_dir, "train-v1.1.json")
        task = SquadTask({"train": file})
    tokenizer = AlbertTokenizer(FLAGS.spm_model_file)
    sequences, _ = task.encode(task.read("train"), tokenizer, FLAGS.max_seq_length, True)
    return task, sequences


def our_steps(task, sequences, has_fixed_length: bool) -> tuple[float, float]:
    """Returns seconds of the steps, and the share of real pieces in their batches."""
    import tensorflow as tf

    from albert_tf import optimization
    from albert_tf.config import AlbertConfig
    from pipelines.tasks.running.batches import training_dataset
    from pipelines.tasks.running.seed_run import FinetuneSettings, task_objective
    from pipelines.training.train_step import TrainStep, make_step_loop

    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = task.create_model(AlbertConfig.named("albert_base"), recompute=False)
        model.create_variables()
        optimizer = optimization.adamw(1e-5)
        optimization.create_slots(optimizer, model)
    settings = FinetuneSettings(FLAGS.batch_size, 1000, 0, 1e-5)
    objective = task_objective(task)
    train_step = TrainStep(model, model, objective, optimizer, settings, seed=0)
    run_steps = make_step_loop(strategy, train_step, objective.zero_sums())

    def batches(context):
        return training_dataset(
            sequences, FLAGS.batch_size, 0, 0, FLAGS.max_seq_length, has_fixed_length, context
        )

    real = total = 0
    first_of_length = {}
    for i, batch in enumerate(batches(tf.distribute.InputContext()).take(FLAGS.steps)):
        real += int(tf.reduce_sum(batch["input_mask"]))
        total += int(tf.size(batch["input_mask"]))
        first_of_length.setdefault(batch["input_mask"].shape[1], i)
    # XLA compiles gelu for each length anew.
    warm_up = sorted({*range(_WARM_UP_STEPS), *first_of_length.values()})
    stop = tf.Variable(False)

    def warm_up_batches(context):
        numbered = batches(context).take(warm_up[-1] + 1).enumerate()
        chosen = numbered.filter(lambda i, _: tf.reduce_any(i == tf.constant(warm_up, tf.int64)))
        return chosen.map(lambda _, batch: batch)

    def steps(dataset_fn, number):
        iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
        began = time.perf_counter()
        float(run_steps(iterator, tf.constant(number), stop, tf.constant(0.0))["gradient_norm"])
        return time.perf_counter() - began

    steps(warm_up_batches, len(warm_up))
    return steps(batches, FLAGS.steps), real / total


def huggingface_steps(task, sequences, _) -> tuple[float, float]:
    """Returns the same of transformers' Trainer, timed from its first step that counts."""
    os.environ["USE_TORCH"] = "1"
    import tempfile

    import torch
    import transformers

    rows = [
        sequences.pieces[slice(*sequences.row_splits[i : i + 2])] for i in range(len(sequences))
    ]
    examples = [
        {
            "input_ids": row.tolist(),
            "attention_mask": [1] * len(row),
            "token_type_ids": [0] * first + [1] * (len(row) - first),
            "labels": int(label),
        }
        for row, first, label in zip(rows, sequences.first_lengths, sequences.labels["labels"])
    ]
    counts = {"real": 0, "total": 0}

    def collate(batch):
        longest = max(len(example["input_ids"]) for example in batch)
        counts["real"] += sum(len(example["input_ids"]) for example in batch)
        counts["total"] += longest * len(batch)
        padded = {
            name: torch.tensor(
                [example[name] + [0] * (longest - len(example[name])) for example in batch]
            )
            for name in ("input_ids", "attention_mask", "token_type_ids")
        }
        return {**padded, "labels": torch.tensor([example["labels"] for example in batch])}

    times = []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as directory:
        trainer = transformers.Trainer(
            model=transformers.AlbertForSequenceClassification(
                transformers.AlbertConfig(
                    hidden_size=768,
                    num_attention_heads=12,
                    intermediate_size=3072,
                    hidden_act="gelu_new",
                    hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                    num_labels=2,
                )
            ),
            args=transformers.TrainingArguments(
                output_dir=directory,
                per_device_train_batch_size=FLAGS.batch_size,
                max_steps=_WARM_UP_STEPS + FLAGS.steps,
                learning_rate=1e-5,
                optim="adamw_torch_fused",
                use_cpu=True,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                group_by_length=FLAGS.group_by_length,
            ),
            train_dataset=examples,
            data_collator=collate,
            callbacks=[Clock()],
        )
        trainer.train()
        end = time.perf_counter()
    return end - times[_WARM_UP_STEPS], counts["real"] / counts["total"]


if __name__ == "__main__":
    define_flags()
    program.run(main)
