"""LAMB and AdamW with the published exclusions, and the learning rate."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.storage.errors import UserError

# Regular expressions for names of variables without weight decay and without layer adaptation.
EXCLUSIONS = ["LayerNorm", "layer_norm", "bias"]


@tf.keras.utils.register_keras_serializable("albert_tf")
class WarmUpPolynomialDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, then polynomial decay to 0. The decay also counts from step 0.

    lr(t) = peak * t / warmup                for t < warmup
    lr(t) = peak * (1 - t / total) ** power  after

    So the rate drops by the share warmup / total at the end of the warm-up, as in published runs.

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
      weight_decay: rate for variables that match no pattern of EXCLUSIONS.
      bias_correction: False equals the authors' code in every step, True tensorflow-addons.

    Up to Python 3.11 tensorflow-addons computes the updates, later our equal implementation. A
    .keras file of a compiled model holds step and moments, so training can resume from it. A
    SavedModel, and a .keras file of a model with Keras' policy mixed_float16, hold neither: the
    first update warns.

    Deviation: tensorflow-addons corrects the moments' bias; the authors' code does not. Variables
    with layer adaptation move equally far, because the update is divided by its norm. Excluded
    variables move sqrt(1 - 0.999^t) / (1 - 0.9^t) times as far as in the authors' code in update t:
    0.32 times at t = 1, 0.15 at t = 12, 0.80 at t = 1000.

    Source: You et al. 2019, algorithm 2; the reference's lamb_optimizer.
    """
    from albert_tf import addons

    return addons.Lamb(
        bias_correction,
        learning_rate=learning_rate,
        epsilon=1e-6,
        weight_decay=weight_decay,
        exclude_from_weight_decay=EXCLUSIONS,
        # tensorflow-addons would replace None or [] by the list of weight decay.
        exclude_from_layer_adaptation=EXCLUSIONS,
    )


def adamw(
    learning_rate, weight_decay: float = 0.01, bias_correction: bool = False
) -> tf.keras.optimizers.Optimizer:
    """Returns AdamW as used to fine-tune BERT and ALBERT: betas 0.9 and 0.999, epsilon 1e-6.

    Args:
      learning_rate: a float or a schedule. It also scales the decay.
      weight_decay: rate for variables that match no pattern of EXCLUSIONS.
      bias_correction: False equals the authors' code in every step, True torch.optim.AdamW, which
        adds epsilon to the root of the corrected second moment. With True all variables move less:
        if gradients are much larger than epsilon, by the factor given in `lamb`.

    Source: the reference's AdamWeightDecayOptimizer. With bias_correction: Loshchilov and Hutter
    2019, algorithm 2. Mosbach et al. 2021 and Zhang et al. 2021: more stable on small data sets.
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
    """The factor of the loss that keeps gradients from underflow in float16.

    float16 covers 6e-8 to 65,504. The factor starts at 2^15. An overflow halves the factor; 2,000
    steps without overflow double it. A step with non-finite gradients uses zero gradients: momentum
    and decay still apply.

    Args:
      optimizer: its checkpoints hold the factor and the count. The loop of training reads its
        attribute `loss_scale`.

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
        """Counts a step; is_finite: bool [], whether its gradients were finite."""
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
    # The norm of a sparse gradient would count repeated rows separately: make all gradients dense.
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    norm = tf.linalg.global_norm(gradients)
    gradients, _ = tf.clip_by_global_norm(gradients, max_norm, use_norm=norm)
    return gradients, norm


def create_slots(optimizer: tf.keras.optimizers.Optimizer, model: tf.keras.Model) -> None:
    """Creates the optimizer's step counter and moments before any checkpoint or loop needs them."""
    # Keras has no public function for this. Created at the first update, inside a compiled loop,
    # the variables would raise an error, and an earlier restored checkpoint would not fill them.
    optimizer._create_all_weights(model.trainable_variables)
