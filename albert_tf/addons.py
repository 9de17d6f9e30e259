"""LAMB and AdamW, as Keras stores and loads them: on tensorflow-addons where it has a wheel.

This module is the only door to that package. Importing it imports the package, so
albert_tf.optimization imports it only when it creates an optimizer. Python 3.12 and later have no
wheel of the package and use keras_lamb instead. A run's checkpoints fit both.
"""

from __future__ import annotations

import math
import shlex
import sys
import warnings

import tensorflow as tf

from albert_tf.errors import UserError

# Decay of the moments: both classes' own.
_BETA_1, _BETA_2 = 0.9, 0.999


def _base() -> type:
    """Returns the class that computes the updates."""
    if sys.version_info >= (3, 12):
        from albert_tf import keras_lamb

        return keras_lamb.LAMB
    with warnings.catch_warnings():
        # Its import announces the end of life and the TensorFlow it knows; both are pinned.
        warnings.filterwarnings("ignore", message="(?si).*TensorFlow Addons", category=UserWarning)
        try:
            import tensorflow_addons as tfa
        except ModuleNotFoundError as error:
            if error.name != "tensorflow_addons":
                raise
            command = f"{shlex.quote(sys.executable)} -m pip install tensorflow-addons==0.23.0"
            raise UserError(f"LAMB and AdamW need a package: {command}") from error
    return tfa.optimizers.LAMB


class _Optimizer(_base()):
    """LAMB with an option.

    Args:
      bias_correction: False uses the moments as they are.
      **arguments: of the base class.
    """

    def __init__(self, bias_correction: bool = True, **arguments):
        super().__init__(**arguments)
        self.bias_correction = bias_correction

    def get_config(self) -> dict:
        """Returns the arguments of __init__ as values that JSON can hold."""
        config = {**super().get_config(), "bias_correction": self.bias_correction}
        return {name: value for name, value in config.items() if name not in ("beta_1", "beta_2")}

    @classmethod
    def from_config(cls, config: dict, **kwargs):
        """Returns a new optimizer, as Keras does when it loads a model; warns that it is new.

        Keras fills it afterwards from an .h5 file only.
        """
        warnings.warn(
            f"{cls.__name__} begins anew unless an .h5 file is loaded: a .keras file and a "
            "SavedModel hold neither its moments nor its step. To resume, store model and "
            "optimizer with tf.train.Checkpoint",
            stacklevel=2,
        )
        return super().from_config(config, **kwargs)


def _uncorrected(dtype: tf.DType) -> dict[str, tf.Tensor]:
    """Returns the coefficients with which the base class uses the moments as they are."""
    return {
        # Moments are divided by one minus these.
        "beta_1_power": tf.zeros([], dtype),
        "beta_2_power": tf.zeros([], dtype),
        # In float32, 1 - 0.999 has a relative error of 1.3e-5. Bias correction by the base class
        # cancels it; without that the constants must be exact.
        "one_minus_beta_1_t": tf.constant(1 - _BETA_1, dtype),
        "one_minus_beta_2_t": tf.constant(1 - _BETA_2, dtype),
    }


@tf.keras.saving.register_keras_serializable("albert_tf")
class Lamb(_Optimizer):
    """LAMB; see optimization.lamb."""

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        if not self.bias_correction:
            apply_state[(var_device, var_dtype)].update(_uncorrected(var_dtype))


@tf.keras.saving.register_keras_serializable("albert_tf")
class AdamW(_Optimizer):
    """AdamW, which is LAMB without the ratio of norms; see optimization.adamw."""

    def _do_layer_adaptation(self, variable):
        return False

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        state = apply_state[(var_device, var_dtype)]
        state.update(_uncorrected(var_dtype))
        if not self.bias_correction:
            return
        # m / c1 / (sqrt(v / c2) + epsilon) = scale * m / (sqrt(v) + epsilon * sqrt(c2)). In float32
        # expm1 is exact to 1e-7, and 1 - 0.999^t of the base class to 1e-5 only.
        step = tf.cast(self.iterations + 1, var_dtype)
        c1, c2 = (-tf.math.expm1(step * math.log(beta)) for beta in (_BETA_1, _BETA_2))
        scale = tf.sqrt(c2) / c1
        state["epsilon"] *= tf.sqrt(c2)
        state["lr_t"] *= scale
        state["weight_decay"] /= scale  # it is multiplied by lr_t
