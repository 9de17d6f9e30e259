"""Settings that all training programs share, with their command-line flags."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import tensorflow as tf
from absl import flags

from albert_tf.jobs import processor
from albert_tf.jobs.settings import setting
from albert_tf.storage.errors import UserError
from .strategy import is_tpu

# The published ALBERT run. Source: Lan et al. 2020, section 4.1.
PUBLISHED: dict[str, Any] = {
    "global_batch_size": 4096,
    "num_train_steps": 125_000,
    "num_warmup_steps": None,
    "learning_rate": 0.00176,
}


SettingsT = TypeVar("SettingsT", bound="TrainingSettings")


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """Settings that determine the final weights of a run, together with model, data and seed.

    `default_warmup` is the fraction of the steps that are warm-up if `num_warmup_steps` is None.
    Its value for pre-training is the reference's.
    """

    default_warmup: ClassVar[float] = 0.025

    global_batch_size: int = setting(
        flags.DEFINE_integer, "Examples per step, summed over all devices.", lower_bound=1
    )
    num_train_steps: int = setting(
        flags.DEFINE_integer,
        "Number of training steps. Default of fine-tuning: see --num_epochs.",
        lower_bound=1,
    )
    num_warmup_steps: int | None = setting(
        flags.DEFINE_integer,
        "Number of warm-up steps. Default: 2.5 % of all steps (pre-training), 10 % (fine-tuning).",
        lower_bound=0,
    )
    learning_rate: float = setting(
        flags.DEFINE_float,
        "Learning rate at the end of the linear warm-up. Fine-tuning chooses the default by the "
        "model's width.",
        lower_bound=0.0,
    )
    weight_decay: float = setting(
        flags.DEFINE_float, "Decoupled weight decay rate.", 0.01, lower_bound=0.0
    )
    gradient_accumulation_steps: int = setting(
        flags.DEFINE_integer,
        "Number of micro-batches per step, whose gradients are accumulated. Only one of them is in "
        "memory at a time. The update is the same as for the whole batch.",
        1,
        lower_bound=1,
    )
    mixed_precision: str = setting(
        flags.DEFINE_enum,
        "bfloat16: for TPUs, newer GPUs and CPUs with bfloat16 instructions (AVX512_BF16, AMX). It "
        "is slower on other CPUs. The program prints whether this CPU has these instructions. "
        "float16: for older GPUs (V100, T4), with dynamic loss scaling. Both apply to matrix "
        "products and activations. Weights are always float32.",
        "none",
        enum_values=["none", "bfloat16", "float16"],
    )
    jit_compile: bool = setting(
        flags.DEFINE_bool,
        "Compile the forward and backward pass with XLA. All batches are then padded to the "
        "maximum length. Slower on CPUs.",
        False,
    )
    recompute: bool = setting(
        flags.DEFINE_bool,
        "Recompute activations inside blocks during the backward pass. This saves memory, but a "
        "step takes a third more time.",
        False,
    )

    num_epochs: float | None = setting(
        flags.DEFINE_float,
        "Number of epochs over the training data. Replaces --num_train_steps. Fine-tuning chooses "
        "the default, from 3 to 20, by the number of examples.",
        None,
        lower_bound=0.001,
    )

    def with_steps(self: SettingsT, num_examples: int) -> SettingsT:
        """Returns a copy with the numbers of steps that `num_epochs` and the default warm-up give.

        `num_examples` is the number of training examples (for SQuAD, of windows).
        """
        steps, warmup_steps = self.num_train_steps, self.num_warmup_steps
        if self.num_epochs is not None:
            epochs = self.num_epochs * num_examples / self.global_batch_size
            steps = max(1, math.ceil(round(epochs, 6)))
        if warmup_steps is None:
            warmup_steps = round(self.default_warmup * steps)
        return dataclasses.replace(
            self,
            num_train_steps=steps,
            num_warmup_steps=warmup_steps,
            num_epochs=None,
        )

    def check(self, strategy: tf.distribute.Strategy) -> None:
        """Raises a UserError if a batch does not divide evenly or the warm-up is too long.

        Call this after `with_steps`.
        """
        replicas = strategy.num_replicas_in_sync
        if self.global_batch_size % (replicas * self.gradient_accumulation_steps):
            raise UserError(
                f"--global_batch_size={self.global_batch_size} does not divide among {replicas} "
                f"replicas x --gradient_accumulation_steps={self.gradient_accumulation_steps}"
            )
        if (self.num_warmup_steps or 0) > self.num_train_steps:
            raise UserError(
                f"--num_warmup_steps={self.num_warmup_steps} is beyond the run's "
                f"{self.num_train_steps} steps: give fewer, or omit the flag"
            )

    def describe(self, strategy: tf.distribute.Strategy) -> str:
        """Describes in two lines how a batch is divided over the devices, and the precision."""
        replicas, parts = strategy.num_replicas_in_sync, self.gradient_accumulation_steps
        rows = self.global_batch_size // (replicas * parts)
        specs = [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
        devices = ", ".join(f"{spec.device_type} {spec.device_index}" for spec in specs)
        precision = "float32" if self.mixed_precision == "none" else self.mixed_precision
        if all(spec.device_type == "CPU" for spec in specs):
            precision = processor.describe(precision, "--mixed_precision=bfloat16")
        return (
            f"  batch    {self.global_batch_size:,} examples per step = {replicas} "
            f"{'replica' if replicas == 1 else 'replicas'} x "
            f"{f'{parts} micro-batches of ' if parts > 1 else ''}{rows:,}, on {devices}\n"
            f"  products {precision}"
        )


@dataclasses.dataclass(frozen=True)
class PretrainingSettings(TrainingSettings):
    """Settings of pre-training, including the random seed."""

    optimizer: str = setting(
        flags.DEFINE_enum,
        "lamb: the published optimizer. adamw: AdamW with bias correction. The recipe `order` uses "
        "adamw to learn sentence order.",
        "lamb",
        enum_values=["lamb", "adamw"],
    )
    separator_order_loss: bool = setting(
        flags.DEFINE_bool,
        "In training, also predict sentence order from the [SEP] between the parts, and add the "
        "loss of this prediction. The trained model predicts the order from [CLS] alone.",
        False,
    )
    order_loss_weight: float = setting(
        flags.DEFINE_float,
        "Weight of the sentence-order loss. The masked-LM loss has weight 1.",
        1.0,
        lower_bound=0.0,
    )
    random_seed: int = setting(
        flags.DEFINE_integer,
        "Random seed for initial weights, data order, masks and dropout.",
        12345,
        lower_bound=0,
        upper_bound=2**31 - 1,
    )
    stop_step: int | None = setting(
        flags.DEFINE_integer,
        "Stop at this step. The learning rate still follows --num_train_steps. Run the same "
        "command with a later --stop_step, or without it, to continue.",
        None,
        lower_bound=1,
    )
    unpad: bool = setting(
        flags.DEFINE_bool,
        "Remove padding before every layer except attention, which is faster on CPUs. The losses "
        "are equal up to rounding. Not supported on TPUs or with --jit_compile.",
        False,
    )
    eval_examples: int = setting(
        flags.DEFINE_integer,
        "Number of examples per evaluation, sampled from all held-out records.",
        10_000,
        lower_bound=1,
    )

    def check(self, strategy: tf.distribute.Strategy) -> None:
        """Also refuses --unpad if XLA compiles the whole model."""
        super().check(strategy)
        if self.unpad and (self.jit_compile or is_tpu(strategy)):
            raise UserError("--unpad: not for TPUs, and not with --jit_compile")


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How often the training loop logs, saves and evaluates, and when it stops early."""

    steps_per_loop: int = setting(
        flags.DEFINE_integer,
        "Steps between two log entries. There is also an entry at each evaluation and checkpoint.",
        lower_bound=1,
    )
    save_checkpoint_steps: int = setting(
        flags.DEFINE_integer, "Steps between checkpoints.", lower_bound=1
    )
    eval_steps: int = setting(
        flags.DEFINE_integer,
        "Steps between evaluations on held-out data; 0 disables evaluation. MODEL_DIR/best holds "
        "the weights with the best result. Fine-tuning evaluates ten times by default, or not at "
        "all with --folds.",
        0,
        lower_bound=0,
    )
    early_stopping_evaluations: int = setting(
        flags.DEFINE_integer,
        "Stop after this number of evaluations without improvement; 0 disables early stopping.",
        0,
        lower_bound=0,
    )

    def __post_init__(self):
        """Raises a UserError if early stopping has no evaluations."""
        if self.early_stopping_evaluations and self.eval_steps == 0:
            raise UserError("--early_stopping_evaluations needs evaluations: give --eval_steps")

    def identity(self) -> dict[str, int]:
        """Returns the settings that select the best weights. The others may change in a run."""
        names = ("eval_steps", "early_stopping_evaluations")
        return {name: getattr(self, name) for name in names}

    def end_after(self, step: int) -> int:
        """Returns the next step at which the loop on the device ends: to log, evaluate or save."""
        steps = (self.steps_per_loop, self.save_checkpoint_steps, self.eval_steps)
        return min(step - step % every + every for every in steps if every)


def check_steps_flags() -> None:
    """Raises a UserError if two given flags set the same number of steps."""
    if flags.FLAGS["num_train_steps"].present and flags.FLAGS["num_epochs"].present:
        raise UserError("--num_train_steps and --num_epochs exclude each other: give one")


@contextlib.contextmanager
def precision(mixed_precision: str) -> Iterator[None]:
    """Sets the dtype policy (--mixed_precision) of layers that are created in this context.

    With bfloat16, the sum of embeddings, softmax, LayerNorm, logits, losses and the update are
    still computed in float32. Weights are cast for each matrix product, not once per step, which
    would sum the gradients of shared weights in bfloat16.
    """
    before = tf.keras.mixed_precision.global_policy()
    policy = "float32" if mixed_precision == "none" else f"mixed_{mixed_precision}"
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)
