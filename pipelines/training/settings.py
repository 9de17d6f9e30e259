"""The settings that all training programs share, each with its flag."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, TypeVar

import tensorflow as tf
from absl import flags

from albert_tf.jobs import processor
from albert_tf.jobs.settings import setting
from albert_tf.storage.errors import UserError
from .strategy import is_tpu

# The published run of ALBERT: Lan et al. 2020, section 4.1; warm-up as in the reference.
PUBLISHED = {
    "global_batch_size": 4096,
    "num_train_steps": 125_000,
    "num_warmup_steps": 3125,
    "learning_rate": 0.00176,
}


SettingsT = TypeVar("SettingsT", bound="TrainingSettings")


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """Settings that determine a run's final weights, together with model, data and seed.

    `num_epochs` and `warmup_fraction` replace numbers of steps; `with_steps` converts them.
    """

    global_batch_size: int = setting(
        flags.DEFINE_integer, "Examples per step, over all devices.", lower_bound=1
    )
    num_train_steps: int = setting(flags.DEFINE_integer, "Steps of the whole run.", lower_bound=1)
    num_warmup_steps: int = setting(flags.DEFINE_integer, "Steps of linear warm-up.", lower_bound=0)
    learning_rate: float = setting(
        flags.DEFINE_float, "Peak learning rate, at the end of the warm-up.", lower_bound=0.0
    )
    weight_decay: float = setting(
        flags.DEFINE_float, "Decoupled weight decay.", 0.01, lower_bound=0.0
    )
    gradient_accumulation_steps: int = setting(
        flags.DEFINE_integer,
        "Number of micro-batches per step. Their gradients are accumulated: one micro-batch is in "
        "memory at a time, and the update equals the whole batch's.",
        1,
        lower_bound=1,
    )
    mixed_precision: str = setting(
        flags.DEFINE_enum,
        "bfloat16 computes products and keeps activations in bfloat16. It is for TPUs, newer GPUs "
        "and CPUs with bfloat16 instructions (AVX512_BF16, AMX); on other CPUs it is slower. The "
        "plan states whether this processor has them. float16, with a dynamic loss scale, is for "
        "older GPUs (V100, T4). Weights stay float32.",
        "none",
        enum_values=["none", "bfloat16", "float16"],
    )
    jit_compile: bool = setting(
        flags.DEFINE_bool,
        "Compile forward and backward pass with XLA. Every batch is then padded to the full "
        "length. Slower on CPUs.",
        False,
    )
    recompute: bool = setting(
        flags.DEFINE_bool,
        "Recompute the activations inside blocks in the backward pass. This needs less memory and "
        "a third more time.",
        False,
    )

    num_epochs: float | None = setting(
        flags.DEFINE_float,
        "Length of the run in epochs of the training data's size, in place of --num_train_steps.",
        None,
        lower_bound=0.0,
    )
    warmup_fraction: float | None = setting(
        flags.DEFINE_float,
        "Warm-up as a share of all steps, in place of --num_warmup_steps.",
        None,
        lower_bound=0.0,
        upper_bound=1.0,
    )

    def __post_init__(self):
        """Refuses a run without steps."""
        for name in ("num_epochs", "train_hours"):
            if getattr(self, name, None) == 0:
                raise UserError(f"--{name}=0: expected a number above 0, such as 3 or 0.5")

    def with_steps(self: SettingsT, num_examples: int) -> SettingsT:
        """Converts epochs and fraction into steps; `num_examples` (SQuAD: windows) are an epoch."""
        steps, warmup = self.num_train_steps, self.num_warmup_steps
        if self.num_epochs is not None:
            steps = max(1, math.ceil(self.num_epochs * num_examples / self.global_batch_size))
        if self.warmup_fraction is not None:
            warmup = round(self.warmup_fraction * steps)
        elif self.num_epochs is not None and warmup > steps:
            raise UserError(
                f"--num_epochs={self.num_epochs:g} makes {steps} steps, fewer than the "
                f"{warmup} of --num_warmup_steps: give --warmup_fraction, such as 0.1"
            )
        return dataclasses.replace(
            self,
            num_train_steps=steps,
            num_warmup_steps=warmup,
            num_epochs=None,
            warmup_fraction=None,
        )

    def identity(self) -> dict[str, Any]:
        """Returns the settings for a run's identity, without optional ones that are unset."""
        # Runs of an older version, which lacks an optional setting, can therefore resume.
        optional = {field.name for field in dataclasses.fields(self) if field.default is None}
        values = dataclasses.asdict(self)
        return {name: value for name, value in values.items() if value or name not in optional}

    def check(self, strategy: tf.distribute.Strategy) -> None:
        """Refuses a batch that does not divide evenly, and a warm-up that outlasts the run."""
        replicas = strategy.num_replicas_in_sync
        if self.global_batch_size % (replicas * self.gradient_accumulation_steps):
            raise UserError(
                f"--global_batch_size={self.global_batch_size} does not divide among {replicas} "
                f"replicas x --gradient_accumulation_steps={self.gradient_accumulation_steps}"
            )
        if self.warmup_fraction is None and self.num_warmup_steps > self.num_train_steps:
            raise UserError(
                f"--num_warmup_steps={self.num_warmup_steps} is beyond "
                f"--num_train_steps={self.num_train_steps}: shorten the warm-up"
            )

    def describe(self, strategy: tf.distribute.Strategy) -> str:
        """Returns two lines for the plan: how a batch is divided, and the precision."""
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
    """The settings of pre-training, including the seed."""

    scale_learning_rate: bool = setting(
        flags.DEFINE_bool,
        f"Multiply --learning_rate by sqrt(global_batch_size / {PUBLISHED['global_batch_size']}).",
        False,
    )
    lamb_bias_correction: bool = setting(
        flags.DEFINE_bool,
        "Correct the bias of LAMB's moments, as tensorflow-addons does; the ALBERT authors do not. "
        "AdamW always corrects it.",
        True,
    )
    optimizer: str = setting(
        flags.DEFINE_enum,
        "lamb: as published. adamw: with bias correction; the recipe `order` learns sentence order "
        "with it.",
        "lamb",
        enum_values=["lamb", "adamw"],
    )
    separator_order_loss: bool = setting(
        flags.DEFINE_bool,
        "In training, also predict the order of a pair from the [SEP] between its parts, and add "
        "this loss. The trained model predicts the order from [CLS] alone.",
        False,
    )
    order_loss_weight: float = setting(
        flags.DEFINE_float,
        "Weight of the sentence-order loss; masked LM has 1.",
        1.0,
        lower_bound=0.0,
    )
    random_seed: int = setting(
        flags.DEFINE_integer,
        "Seed of initial weights, data order, masks and dropout.",
        12345,
        lower_bound=0,
        upper_bound=2**31 - 1,
    )
    train_hours: float | None = setting(
        flags.DEFINE_float,
        "Hours of training on this machine, in place of --num_train_steps. The run first trains "
        "for a minute at full depth to measure the rate, discards these weights and fixes the "
        "number of steps. A resumed run keeps this number. Needs --warmup_fraction.",
        None,
        lower_bound=0.0,
    )
    depth_schedule: tuple[str, ...] = setting(
        flags.DEFINE_list,
        "Train a shallow model first and add layers: 3,6:2000,12:5000 has 3 layers, 6 from step "
        "2000 and 12 from step 5000. The last depth must be the config's, and all layers must "
        "share their weights.",
        (),
    )
    unpad: bool | None = setting(
        flags.DEFINE_bool,
        "Skip padding positions in all layers but attention. Losses stay the same up to rounding, "
        "and CPUs are faster. Not for TPUs, and not with --jit_compile.",
        None,
    )
    eval_examples: int = setting(
        flags.DEFINE_integer,
        "Examples per evaluation, sampled from all held-out records.",
        10_000,
        lower_bound=1,
    )

    def check(self, strategy: tf.distribute.Strategy) -> None:
        """See TrainingSettings.check; also refuses --unpad if XLA compiles the whole model."""
        super().check(strategy)
        if self.unpad and (self.jit_compile or is_tpu(strategy)):
            raise UserError("--unpad: not for TPUs, and not with --jit_compile")

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate at the end of the warm-up."""
        scale = math.sqrt(self.global_batch_size / PUBLISHED["global_batch_size"])
        return self.learning_rate * (scale if self.scale_learning_rate else 1.0)


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """Settings of the loop: when it logs, saves, evaluates and stops early."""

    steps_per_loop: int = setting(
        flags.DEFINE_integer, "Steps between two log entries.", lower_bound=1
    )
    save_checkpoint_steps: int = setting(
        flags.DEFINE_integer,
        "Steps between checkpoints: a multiple of steps_per_loop.",
        lower_bound=1,
    )
    eval_steps: int = setting(
        flags.DEFINE_integer,
        "Steps between evaluations on held-out data: a multiple of steps_per_loop; 0: no "
        "evaluation. The best weights are kept in MODEL_DIR/best.",
        0,
        lower_bound=0,
    )
    early_stopping_evaluations: int = setting(
        flags.DEFINE_integer,
        "Stop after this number of evaluations without a new best; 0: never.",
        0,
        lower_bound=0,
    )
    max_bad_batches: int = setting(
        flags.DEFINE_integer,
        "Number of batches with a non-finite loss or gradient that are skipped before the run "
        "fails. The count starts again with the program.",
        0,
        lower_bound=0,
    )

    def __post_init__(self):
        """Refuses evaluations and checkpoints that do not fall between two loops on the device."""
        for name in ("save_checkpoint_steps", "eval_steps"):
            if getattr(self, name) % self.steps_per_loop:
                raise UserError(
                    f"--{name}={getattr(self, name)} is not a multiple of --steps_per_loop="
                    f"{self.steps_per_loop}: give a multiple, or fewer steps per loop"
                )
        if self.early_stopping_evaluations and not self.eval_steps:
            raise UserError("--early_stopping_evaluations needs evaluations: give --eval_steps")


def check_steps_flags() -> None:
    """Refuses several flags that set one number of steps; defaults do not count."""
    for alternatives in (
        ("num_train_steps", "num_epochs", "train_hours"),
        ("num_warmup_steps", "warmup_fraction"),
    ):
        given = [f"--{n}" for n in alternatives if n in flags.FLAGS and flags.FLAGS[n].present]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} exclude each other: give one")


@contextlib.contextmanager
def precision(mixed_precision: str) -> Iterator[None]:
    """Sets the dtype policy (--mixed_precision) of layers that are created in this context.

    Under bfloat16 the sum of embeddings, softmax, LayerNorm, logits, losses and the update stay
    float32. Weights are cast at each product. One cast per step might save some 2 % of the time (an
    estimate), but would sum the gradients of shared weights in bfloat16.
    """
    before = tf.keras.mixed_precision.global_policy()
    policy = "float32" if mixed_precision == "none" else f"mixed_{mixed_precision}"
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)
