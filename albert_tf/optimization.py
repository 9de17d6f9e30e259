"""LAMB and AdamW with the published exclusions, the learning-rate schedule, and loss scaling."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.storage.errors import UserError

# Variables whose names match one of these expressions get no weight decay and no layer adaptation.
EXCLUSIONS = ["LayerNorm", "layer_norm", "bias"]


@tf.keras.utils.register_keras_serializable("albert_tf")
class WarmUpPolynomialDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, then polynomial decay to 0.

    lr(t) = peak * t / warmup                for t < warmup
    lr(t) = peak * (1 - t / total) ** power  after

    The decay is computed from step 0, not from the end of the warm-up. So with power 1 the rate
    drops by the share warmup / total at the end of the warm-up, as in published runs.

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
        """Returns the learning rate, float32 [], of the update that follows `step` updates."""
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
    """Returns LAMB as published: betas 0.9 and 0.999, epsilon 1e-6, with EXCLUSIONS.

    Args:
      learning_rate: a float or a schedule.
      weight_decay: rate for variables that match no pattern of EXCLUSIONS.
      bias_correction: whether to correct the moments' bias. False computes the updates of the
        authors' code, True those in tensorflow-addons.

    On Python 3.11 and earlier, tensorflow-addons computes the updates; on later versions our
    equivalent keras_lamb does. Training can resume from a .keras file of a compiled model, which
    holds step and moments. A SavedModel, or a .keras file of a model with Keras' policy
    mixed_float16, holds neither: the first update after loading warns.

    Deviation: the authors' code does not correct the bias. With correction, variables with layer
    adaptation move equally far, because the update is divided by its norm. In update t, excluded
    variables move sqrt(1 - 0.999^t) / (1 - 0.9^t) times as far as in the authors' code: 0.32 times
    at t = 1, 0.15 at t = 12, 0.80 at t = 1000.

    Source: You et al. 2019, algorithm 2; the reference's lamb_optimizer.
    """
    from albert_tf import addons

    return addons.Lamb(
        bias_correction,
        learning_rate=learning_rate,
        epsilon=1e-6,
        weight_decay=weight_decay,
        exclude_from_weight_decay=EXCLUSIONS,
        # Given explicitly, because None or [] would mean the list of weight decay.
        exclude_from_layer_adaptation=EXCLUSIONS,
    )


def adamw(
    learning_rate, weight_decay: float = 0.01, bias_correction: bool = False
) -> tf.keras.optimizers.Optimizer:
    """Returns AdamW as used to fine-tune BERT and ALBERT: betas 0.9 and 0.999, epsilon 1e-6.

    Args:
      learning_rate: a float or a schedule. It also scales the decay.
      weight_decay: rate for variables that match no pattern of EXCLUSIONS.
      bias_correction: False computes the updates of the authors' code. True computes torch.optim's
        AdamW, which adds epsilon to the root of the corrected second moment. All variables then
        move less. The factor is given in `lamb`, if gradients are much larger than epsilon.

    Source: the reference's AdamWeightDecayOptimizer; with bias_correction Loshchilov and Hutter
    2019, algorithm 2. Mosbach et al. and Zhang et al. 2021 find it more stable on small data sets.
    """
    from albert_tf import addons

    return addons.AdamW(
        bias_correction,
        name="AdamW",
        learning_rate=learning_rate,
        epsilon=1e-6,
        weight_decay=weight_decay,
        exclude_from_weight_decay=EXCLUSIONS,
    )


class LossScale:
    """A factor by which the loss is multiplied, so that float16 gradients do not underflow.

    float16 covers 6e-8 to 65,504. The factor starts at 2^15. An overflow halves the factor; 2,000
    steps without overflow double it. A step with non-finite gradients uses zero gradients instead;
    momentum and decay still apply.

    Args:
      optimizer: the optimizer whose checkpoints store the factor and the count of steps. The
        training loop keeps this object as the optimizer's attribute `loss_scale`.

    Source: Micikevicius et al. 2018, section 3.2; Keras' LossScaleOptimizer. Keras does not count a
    step that overflows. Here every step counts, because data and learning rate depend on the step.
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
        """Counts a step and updates the factor; is_finite: bool [], true without an overflow."""
        # `steps` does not count this step yet.
        is_over = self.steps >= self.STEPS_TO_DOUBLE - 1
        kept = tf.where(is_over, tf.minimum(2.0 * self.value, self.LARGEST), self.value)
        self.value.assign(tf.where(is_finite, kept, tf.maximum(0.5 * self.value, 1.0)))
        self.steps.assign(tf.where(is_finite & ~is_over, self.steps + 1.0, 0.0))


def clip_by_global_norm(
    gradients: list[tf.Tensor], max_norm: float
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Scales gradients so that their joint norm is at most `max_norm`.

    Returns:
      The clipped gradients, dense, and the float32 norm before clipping.
    """
    # Make all gradients dense: the norm of a sparse one would count repeated rows separately.
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    norm = tf.linalg.global_norm(gradients)
    gradients, _ = tf.clip_by_global_norm(gradients, max_norm, use_norm=norm)
    return gradients, norm


def create_slots(optimizer: tf.keras.optimizers.Optimizer, model: tf.keras.Model) -> None:
    """Creates the optimizer's step counter and moments before any checkpoint or loop needs them."""
    # Keras has no public function for this; it creates these variables in the first update. That is
    # too late for a compiled loop, which raises an error, and for a checkpoint restored before.
    optimizer._create_all_weights(model.trainable_variables)
