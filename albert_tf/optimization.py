"""LAMB and AdamW of tensorflow-addons with the published exclusions, and the learning rate."""

from __future__ import annotations

import contextlib
import importlib
import shlex
import sys
import sysconfig
import warnings

import tensorflow as tf

from albert_tf.errors import UserError

# Variables that neither decay nor are adapted layer by layer: regular expressions of their names.
EXCLUSIONS = ["LayerNorm", "layer_norm", "bias"]

# Decay of the moments.
_BETA_1, _BETA_2 = 0.9, 0.999


@tf.keras.utils.register_keras_serializable("albert_tf")
class WarmUpPolynomialDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, then polynomial decay to 0 that counts from step 0.

    lr(t) = peak * t / warmup                for t < warmup
    lr(t) = peak * (1 - t / total) ** power  after

    Where both meet it drops by warmup / total, as in the published runs.

    Source: the reference's optimization.create_optimizer.
    """

    def __init__(
        self,
        peak_learning_rate: float,
        num_train_steps: int,
        num_warmup_steps: int,
        power: float = 1.0,
    ):
        super().__init__()
        if not 0 <= num_warmup_steps <= num_train_steps:
            raise UserError(
                f"num_warmup_steps {num_warmup_steps} is not between 0 and num_train_steps "
                f"{num_train_steps}"
            )
        self.peak_learning_rate = peak_learning_rate
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps
        self.power = power

    def __call__(self, step):
        """Returns the float32 learning rate of the update after `step` updates."""
        step = tf.cast(step, tf.float32)
        total = tf.cast(self.num_train_steps, tf.float32)
        warmup = tf.cast(self.num_warmup_steps, tf.float32)
        rising = tf.math.divide_no_nan(step, warmup)
        falling = (1.0 - tf.minimum(step, total) / total) ** self.power
        return self.peak_learning_rate * tf.where(step < warmup, rising, falling)

    def get_config(self):
        """Returns the constructor's arguments."""
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
            "power": self.power,
        }


def lamb(
    learning_rate, weight_decay: float = 0.01, bias_correction: bool = True
) -> tf.keras.optimizers.Optimizer:
    """Returns LAMB as published: betas 0.9 and 0.999, epsilon 1e-6, EXCLUSIONS.

    Args:
      learning_rate: a float or a schedule.
      weight_decay: of the variables that EXCLUSIONS leave.
      bias_correction: False is the authors' code, step by step; True is tensorflow-addons'.

    A model's .keras file holds no state of this optimizer, as tensorflow-addons builds on Keras'
    older optimizers: to resume, store model and optimizer with tf.train.Checkpoint.

    Deviation: tensorflow-addons corrects the moments' bias, the authors' code does not. Adapted
    variables move alike, as their norm is divided out. Excluded ones move sqrt(1 - 0.999^t) /
    (1 - 0.9^t) times as far as theirs in update t: 0.32 in the first, 0.15 in the twelfth, 0.80
    after a thousand.

    Source: You et al. 2019, algorithm 2; the reference's lamb_optimizer.
    """
    optimizer_class = _addons().LAMB
    if not bias_correction:
        optimizer_class = _without_bias_correction(optimizer_class)
    return optimizer_class(
        learning_rate=learning_rate,
        beta_1=_BETA_1,
        beta_2=_BETA_2,
        epsilon=1e-6,
        weight_decay=weight_decay,
        exclude_from_weight_decay=EXCLUSIONS,
        exclude_from_layer_adaptation=EXCLUSIONS,
    )


def adamw(
    learning_rate, weight_decay: float = 0.01, bias_correction: bool = True
) -> tf.keras.optimizers.Optimizer:
    """Returns AdamW as BERT's and ALBERT's fine-tuning uses it: betas 0.9, 0.999, epsilon 1e-6.

    Args:
      learning_rate: a float or a schedule. It scales the decay too.
      weight_decay: of the variables that EXCLUSIONS leave; rows of a sparse gradient decay alone.
      bias_correction: False is the authors' code, step by step; with True (Keras') every variable
        moves less than theirs, by the factor said at `lamb`.

    Source: the reference's AdamWeightDecayOptimizer.
    """
    optimizer_class = _with_scaled_weight_decay(_addons().AdamW)
    if not bias_correction:
        optimizer_class = _without_bias_correction(optimizer_class)
    return optimizer_class(
        learning_rate=learning_rate,
        beta_1=_BETA_1,
        beta_2=_BETA_2,
        epsilon=1e-6,
        weight_decay=weight_decay,
        exclude_from_weight_decay=EXCLUSIONS,
    )


def _addons():
    """Returns the optimizers of tensorflow-addons, imported when first asked for.

    The package is past its end of life. Should it stop working with a later TensorFlow, replace it
    here: `lamb` and `adamw` need two subclasses of tf.keras.optimizers.legacy.Optimizer with the
    slots `m` and `v` and the hyperparameters given below, which tests/golden/optimizer_steps.npz
    checks to the last update.
    """
    with warnings.catch_warnings(), _keras_2_as_keras():
        # Its import announces the end of life and the TensorFlow it knows; both are pinned.
        warnings.filterwarnings("ignore", message="(?si).*TensorFlow Addons", category=UserWarning)
        try:
            import tensorflow_addons as tfa
        except ModuleNotFoundError as error:
            if error.name != "tensorflow_addons":
                raise
            raise UserError(f"LAMB and AdamW need a package: {_install_addons()}") from error
    return tfa.optimizers


@contextlib.contextmanager
def _keras_2_as_keras():
    """Lets tensorflow-addons find Keras 2 where it is the package tf-keras.

    tensorflow-addons imports three modules of `keras.src`, which is Keras 3 then.
    """
    if not tf.keras.Model.__module__.startswith("tf_keras."):
        yield
        return
    names = {
        name: importlib.import_module(f"tf_{name}")
        for name in ("keras.src", "keras.src.engine", "keras.src.utils")
    }
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)


def _install_addons() -> str:
    """Returns the command that installs tensorflow-addons for this Python."""
    options = ""
    if sys.version_info >= (3, 12):  # no wheel, but only the Python code is used
        options = (
            "--no-deps --only-binary=:all: --python-version 3.11 "
            f"--target {shlex.quote(sysconfig.get_path('purelib'))} "
        )
    return f"{shlex.quote(sys.executable)} -m pip install {options}tensorflow-addons==0.23.0"


def _without_bias_correction(optimizer_class: type) -> type:
    """Returns a class like `optimizer_class` that uses the moments as they are."""

    class WithoutBiasCorrection(optimizer_class):
        def _prepare_local(self, var_device, var_dtype, apply_state):
            super()._prepare_local(var_device, var_dtype, apply_state)
            state = apply_state[(var_device, var_dtype)]
            state.update(
                # Moments are divided by one minus these.
                beta_1_power=tf.zeros([], var_dtype),
                beta_2_power=tf.zeros([], var_dtype),
                # 1 - 0.999 of float32 is 1.3e-5 off, which only the correction would make up for.
                one_minus_beta_1_t=tf.constant(1 - _BETA_1, var_dtype),
                one_minus_beta_2_t=tf.constant(1 - _BETA_2, var_dtype),
                # Adam's corrected rate for sparse gradients; lr_t is the schedule's.
                lr=state["lr_t"],
            )

    return WithoutBiasCorrection


def _with_scaled_weight_decay(optimizer_class: type) -> type:
    """Returns a class like `optimizer_class`, tensorflow-addons', whose decay follows the rate."""

    class WithScaledWeightDecay(optimizer_class):
        def _prepare_local(self, var_device, var_dtype, apply_state):
            super()._prepare_local(var_device, var_dtype, apply_state)
            state = apply_state[(var_device, var_dtype)]
            state["wd_t"] = state["wd_t"] * state["lr_t"]

    return WithScaledWeightDecay


class LossScale:
    """What a loss is multiplied by, so that its gradients do not vanish in float16.

    Their dtype ends at 6e-8 and 65,504. The factor begins at 2^15. An overflow halves it; 2,000
    steps without one double it. The gradient of a step that overflows counts as zero, like that of
    any batch without a finite one: momentum and decay go on.

    Args:
      optimizer: its checkpoints hold the factor and the count.

    Source: Micikevicius et al. 2018, section 3.2; Keras' LossScaleOptimizer. That one leaves such a
    step out and does not count it, though data and learning rate go by steps here.
    """

    INITIAL, LARGEST = 2.0**15, 2.0**24
    STEPS_TO_DOUBLE = 2000

    def __init__(self, optimizer: tf.keras.optimizers.Optimizer):
        def variable(name, value):
            return optimizer.add_weight(
                name,
                [],
                tf.float32,
                tf.keras.initializers.Constant(value),
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

        self.value = variable("loss_scale", self.INITIAL)
        self.steps = variable("loss_scale_steps", 0.0)

    def update(self, is_finite: tf.Tensor) -> None:
        """Counts a step: is_finite, a bool, says whether its gradients were."""
        is_over = self.steps >= self.STEPS_TO_DOUBLE - 1
        kept = tf.where(is_over, tf.minimum(2.0 * self.value, self.LARGEST), self.value)
        self.value.assign(tf.where(is_finite, kept, tf.maximum(0.5 * self.value, 1.0)))
        self.steps.assign(tf.where(is_finite & ~is_over, self.steps + 1.0, 0.0))


def add_loss_scale(optimizer: tf.keras.optimizers.Optimizer) -> None:
    """Gives an optimizer a LossScale, as its attribute `loss_scale`."""
    optimizer.loss_scale = LossScale(optimizer)


def clip_by_global_norm(
    gradients: list[tf.Tensor], max_norm: float
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Scales gradients so that their joint norm is at most `max_norm`.

    Returns:
      The clipped gradients, dense, and the float32 norm before clipping.
    """
    # A sparse gradient's norm would count repeated rows apart: make every one dense first.
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    norm = tf.linalg.global_norm(gradients)
    gradients, _ = tf.clip_by_global_norm(gradients, max_norm, use_norm=norm)
    return gradients, norm


def create_slots(optimizer: tf.keras.optimizers.Optimizer, model: tf.keras.Model) -> None:
    """Creates the optimizer's step counter and moments before any checkpoint or loop needs them."""
    # Keras has no public way; without it they would appear inside a compiled loop, which is an
    # error, and a checkpoint restored before the first step would fill them late.
    optimizer._create_all_weights(model.trainable_variables)
