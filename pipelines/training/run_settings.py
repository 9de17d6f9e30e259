"""What decides the weights that a pre-training run ends in, beside model and data."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import tensorflow as tf
from absl import flags

from albert_tf import losses, optimization
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from pipelines.training.strategy import is_tpu
from pipelines.training.train_step import make_train_step

_PUBLISHED_BATCH_SIZE = 4096


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """The flags of define_run_flags, by their names."""

    global_batch_size: int
    num_train_steps: int
    num_warmup_steps: int
    learning_rate: float
    weight_decay: float = 0.01
    lamb_bias_correction: bool = True
    random_seed: int = 12345
    scale_learning_rate: bool = False
    gradient_accumulation_steps: int = 1
    depth_schedule: tuple[str, ...] = ()
    mixed_precision: str = "none"
    jit_compile: bool = False
    recompute: bool = False

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate at the end of the warm-up."""
        scale = math.sqrt(self.global_batch_size / _PUBLISHED_BATCH_SIZE)
        return self.learning_rate * (scale if self.scale_learning_rate else 1.0)

    def optimizer(self) -> tf.keras.optimizers.Optimizer:
        """Returns LAMB with its schedule."""
        return optimization.lamb(
            optimization.WarmUpPolynomialDecay(
                self.peak_learning_rate, self.num_train_steps, self.num_warmup_steps
            ),
            self.weight_decay,
            self.lamb_bias_correction,
        )

    def train_step(
        self,
        model: AlbertForPreTraining,
        optimizer: tf.keras.optimizers.Optimizer,
        num_hidden_layers: int | None = None,
    ) -> Callable:
        """Returns pre-training's train_step.make_train_step, at the config's depth or less."""
        return make_train_step(
            forward=functools.partial(model, num_hidden_layers=num_hidden_layers),
            model=model,
            optimizer=optimizer,
            weights_fn=losses.pretraining_weights,
            sums_fn=losses.pretraining_sums,
            loss_fn=losses.pretraining_loss,
            seed=self.random_seed,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            jit_compile=self.jit_compile,
        )

    def depths(self, config: AlbertConfig) -> list[tuple[int, int]]:
        """Returns (first step, layers), of one depth after the other.

        Raises:
          ValueError: if --depth_schedule does not lead to the config's depth.
        """
        if not self.depth_schedule:
            return [(0, config.num_hidden_layers)]
        text = f"--depth_schedule={','.join(self.depth_schedule)}"
        try:
            pairs = [part.split(":") for part in self.depth_schedule]
            depths = [(int(step[0]) if step else 0, int(layers)) for layers, *step in pairs]
        except ValueError:
            depths = []
        steps, layers = [step for step, _ in depths], [depth for _, depth in depths]
        if not depths or steps[0] or steps != sorted(set(steps)) or layers != sorted(set(layers)):
            raise ValueError(
                f"{text}: expected layers:step, both rising, the first from step 0, such as "
                "3,6:2000,12:5000"
            )
        if layers[0] < 1 or layers[-1] != config.num_hidden_layers:
            raise ValueError(
                f"{text} ends at {layers[-1]} layers, but the config has "
                f"{config.num_hidden_layers}: it begins with 1 or more and ends there"
            )
        if steps[-1] >= self.num_train_steps:
            raise ValueError(
                f"{text}: the run of {self.num_train_steps} steps ends before the full depth"
            )
        if config.parameter_sharing != "all" or config.num_hidden_groups > 1:
            raise ValueError(
                f"{text}: only a model whose layers share all weights can grow; this one has "
                f"parameter_sharing {config.parameter_sharing!r} in {config.num_hidden_groups} "
                "groups"
            )
        return depths

    def check(self, strategy: tf.distribute.Strategy) -> None:
        """See check_batch."""
        check_batch(
            strategy,
            self.global_batch_size,
            self.gradient_accumulation_steps,
            self.jit_compile,
        )


def check_batch(
    strategy: tf.distribute.Strategy,
    global_batch_size: int,
    gradient_accumulation_steps: int,
    jit_compile: bool,
) -> None:
    """Makes sure that a batch divides among devices and micro-batches.

    Raises:
      ValueError: if it does not, or XLA is asked for where it does not work.
    """
    replicas = strategy.num_replicas_in_sync
    if global_batch_size % (replicas * gradient_accumulation_steps):
        raise ValueError(
            f"--global_batch_size={global_batch_size} does not divide among {replicas} replicas x "
            f"--gradient_accumulation_steps={gradient_accumulation_steps}"
        )
    if jit_compile and replicas > 1 and not is_tpu(strategy):
        raise ValueError(
            "--jit_compile: tensorflow-addons' optimizers do not compile under several replicas; "
            "leave it away or choose --strategy=one_device (TPUs compile in any case)"
        )


@contextlib.contextmanager
def precision(mixed_precision: str) -> Iterator[None]:
    """Sets the dtypes of the layers that are made under it: --mixed_precision."""
    before = tf.keras.mixed_precision.global_policy()
    policy = "float32" if mixed_precision == "none" else f"mixed_{mixed_precision}"
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


def define_run_flags() -> None:
    """Defines the flags of RunSettings."""
    flags.DEFINE_integer("global_batch_size", 4096, "Examples in a step.", lower_bound=1)
    flags.DEFINE_integer("num_train_steps", 125000, "Steps in all.", lower_bound=1)
    flags.DEFINE_integer("num_warmup_steps", 3125, "Steps of linear warm-up.", lower_bound=0)
    flags.DEFINE_float(
        "learning_rate", 0.00176, "Peak learning rate, at the end of the warm-up.", 0.0
    )
    flags.DEFINE_bool(
        "scale_learning_rate",
        False,
        f"Multiply --learning_rate by sqrt(global_batch_size / {_PUBLISHED_BATCH_SIZE}).",
    )
    flags.DEFINE_float("weight_decay", 0.01, "Decoupled weight decay.", lower_bound=0.0)
    flags.DEFINE_bool(
        "lamb_bias_correction", True, "tensorflow-addons' LAMB; False: the ALBERT authors'."
    )
    flags.DEFINE_integer(
        "random_seed", 12345, "Of weights, data order, masks and dropout.", 0, 2**31 - 1
    )
    flags.DEFINE_integer(
        "gradient_accumulation_steps",
        1,
        "Parts of a step's batch that are computed one after the other: memory is that of one.",
        lower_bound=1,
    )
    flags.DEFINE_list(
        "depth_schedule",
        [],
        "Grow to the config's depth: 3,6:2000,12:5000 is 3 layers, 6 from step 2000 on, then 12. "
        "For models that share all layers.",
    )
    flags.DEFINE_enum(
        "mixed_precision",
        "none",
        ["none", "bfloat16"],
        "bfloat16: for products on TPUs and newer GPUs; slower on most CPUs.",
    )
    flags.DEFINE_bool("jit_compile", False, "Compile the step by XLA; slower on CPUs.")
    flags.DEFINE_bool(
        "recompute", False, "Keep no activations inside blocks: less memory, a third more time."
    )
