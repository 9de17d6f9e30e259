"""LAMB, AdamW, the learning-rate schedule, loss scaling and gradient clipping."""

import tensorflow as tf

from albert_tf.storage.errors import UserError

# Regular expressions. Variables with matching names get no weight decay and no layer adaptation.
# Only the end of a name counts: it begins with the name of the model, which may contain "bias".
# TensorFlow appends the number of the replica to the name of a copy.
_END = r"(/replica_\d+|/packed)?(:\d+)?$"
EXCLUSIONS = [r"(LayerNorm|layer_norm)[^/]*/[^/:]+" + _END, "bias" + _END]


@tf.keras.utils.register_keras_serializable("albert_tf")
class WarmUpPolynomialDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, then polynomial decay to 0.

    lr(t) = peak * t / warmup                for t < warmup
    lr(t) = peak * (1 - t / total) ** power  after

    The decay is computed from step 0, not from the end of the warm-up. With power 1, the rate
    therefore drops by the fraction warmup / total when the warm-up ends, as in published runs.

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
        """Returns the learning rate, float32 [], for the update after `step` updates."""
        step = tf.cast(step, tf.float32)
        total = tf.cast(self.num_train_steps, tf.float32)
        warmup = tf.cast(self.num_warmup_steps, tf.float32)
        rising = tf.math.divide_no_nan(step, warmup)
        falling = (1.0 - tf.minimum(step, total) / total) ** self.power
        return self.peak_learning_rate * tf.where(step < warmup, rising, falling)

    def get_config(self):
        """Returns the arguments of `__init__`."""
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
            "power": self.power,
        }


def lamb(
    learning_rate, weight_decay: float = 0.01, bias_correction: bool = True
) -> tf.keras.optimizers.Optimizer:
    """Creates LAMB as published: betas 0.9 and 0.999, epsilon 1e-6, with EXCLUSIONS.

    Args:
      learning_rate: a float or a schedule.
      weight_decay: weight decay rate of variables that do not match EXCLUSIONS.
      bias_correction: If True, corrects the bias of the moments, as tensorflow-addons does. If
        False, computes the same updates as the authors' code.

    Training can resume from a .keras file of a compiled model, which contains step and moments. A
    SavedModel, or a .keras file of a model with Keras' policy mixed_float16, does not contain them.
    The first update after loading then warns.

    Deviation: the authors' code does not correct the bias. Bias correction does not change the step
    size of variables with layer adaptation, because LAMB normalizes the update. In update t, it
    multiplies the step size of excluded variables by sqrt(1 - 0.999^t) / (1 - 0.9^t). The factor
    is 0.32 at t = 1, 0.15 at t = 12 and 0.80 at t = 1000.

    Source: You et al. 2019, algorithm 2; the reference's lamb_optimizer.
    """
    from albert_tf import addons

    return addons.Lamb(
        bias_correction,
        learning_rate=learning_rate,
        epsilon=1e-6,
        weight_decay=weight_decay,
        exclude_from_weight_decay=EXCLUSIONS,
        # Passed explicitly, because None or [] would select the exclusions from weight decay.
        exclude_from_layer_adaptation=EXCLUSIONS,
    )


def adamw(
    learning_rate, weight_decay: float = 0.01, bias_correction: bool = False
) -> tf.keras.optimizers.Optimizer:
    """Creates AdamW as used to fine-tune BERT and ALBERT: betas 0.9 and 0.999, epsilon 1e-6.

    Args:
      learning_rate: a float or a schedule. It also scales the weight decay.
      weight_decay: weight decay rate of variables that do not match EXCLUSIONS.
      bias_correction: If False, computes the same updates as the authors' code. If True, computes
        the updates of torch.optim.AdamW, which adds epsilon to the root of the corrected second
        moment. All updates are then smaller. If gradients are much larger than epsilon, they are
        smaller by the factor that is given in `lamb`.

    Source: the reference's AdamWeightDecayOptimizer; with bias_correction, Loshchilov and Hutter
    2019, algorithm 2. Mosbach et al. and Zhang et al. 2021 find bias correction more stable on
    small data sets.
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
    """Multiplies the loss by a dynamic factor, so that float16 gradients do not underflow.

    float16 represents magnitudes from 6e-8 to 65,504. The factor starts at 2^15. It is halved after
    an overflow and doubled after 2,000 steps without overflow. A step with non-finite gradients
    uses zero gradients instead, but momentum and weight decay still apply.

    Args:
      optimizer: optimizer whose checkpoints contain the factor and the number of steps.

    Source: Micikevicius et al. 2018, section 3.2; Keras' LossScaleOptimizer. Keras does not count
    steps with an overflow. Here all steps are counted, because data and learning rate depend on
    the step count.
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
        """Updates the factor after a step. `is_finite` is bool [], False after an overflow."""
        # `steps` does not count this step yet.
        is_over = self.steps >= self.STEPS_TO_DOUBLE - 1
        kept = tf.where(is_over, tf.minimum(2.0 * self.value, self.LARGEST), self.value)
        self.value.assign(tf.where(is_finite, kept, tf.maximum(0.5 * self.value, 1.0)))
        self.steps.assign(tf.where(is_finite & ~is_over, self.steps + 1.0, 0.0))


def clip_by_global_norm(
    gradients: list[tf.Tensor], max_norm: float
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Scales the gradients so that their global norm is at most `max_norm`.

    Returns:
      The clipped gradients as dense tensors, and their global norm before clipping (float32).
    """
    # The norm of a sparse gradient would count repeated rows separately.
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return tf.clip_by_global_norm(gradients, max_norm)


def create_slots(optimizer: tf.keras.optimizers.Optimizer, model: tf.keras.Model) -> None:
    """Creates the optimizer's step counter and moments before the first update."""
    # Keras has no public function for this. It creates these variables in the first update. This is
    # too late for a compiled loop, which raises an error, and for a checkpoint restored before.
    optimizer._create_all_weights(model.trainable_variables)
