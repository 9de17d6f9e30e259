"""LAMB and AdamW of tensorflow-addons with the published exclusions, and the learning rate."""

from __future__ import annotations

import warnings

import tensorflow as tf

# Variables that neither decay nor are adapted layer by layer: regular expressions of their names.
EXCLUSIONS = ["LayerNorm", "layer_norm", "bias"]


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
            raise ValueError(
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


def lamb(learning_rate, weight_decay: float = 0.01) -> tf.keras.optimizers.Optimizer:
    """Returns LAMB as published: betas 0.9 and 0.999, epsilon 1e-6, EXCLUSIONS.

    Deviation: tensorflow-addons corrects the moments' bias, the authors' code does not; in the
    first steps the excluded variables move less than theirs, adapted ones the same.

    Source: You et al. 2019, algorithm 2; the reference's lamb_optimizer.
    """
    with warnings.catch_warnings():
        # Its import announces the package's end of life once; the version is pinned knowingly.
        warnings.filterwarnings("ignore", message="(?s).*TensorFlow Addons", category=UserWarning)
        import tensorflow_addons as tfa

    return tfa.optimizers.LAMB(
        learning_rate=learning_rate,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay=weight_decay,
        exclude_from_weight_decay=EXCLUSIONS,
        exclude_from_layer_adaptation=EXCLUSIONS,
    )


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
