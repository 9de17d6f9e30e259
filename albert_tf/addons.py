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
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.storage.errors import UserError

# Decay of the moments: both classes' own.
_BETA_1, _BETA_2 = 0.9, 0.999


def _base() -> type:
    """Returns the class that computes the updates."""
    if sys.version_info >= (3, 12):
        from albert_tf import keras_lamb

        return keras_lamb.LAMB
    with warnings.catch_warnings():
        # Its import warns of its end of life and of the TensorFlow version; both are pinned.
        warnings.filterwarnings("ignore", message="(?si).*TensorFlow Addons", category=UserWarning)
        try:
            import tensorflow_addons as tfa
        except ModuleNotFoundError as error:
            if error.name != "tensorflow_addons":
                raise
            command = f"{shlex.quote(sys.executable)} -m pip install tensorflow-addons==0.23.0"
            raise UserError(f"LAMB and AdamW need a package: {command}") from error
    return tfa.optimizers.LAMB


_BASE: Any = _base()


# For .keras and .weights.h5 files Keras 2 collects the state of layers, metrics, losses and its
# newer optimizers, not of its older ones, on which both base classes build. It finds this one as a
# Loss. A newer optimizer that reads the older class's checkpoints would have to override some ten
# private methods.
class _Optimizer(_BASE, tf.keras.losses.Loss):
    """LAMB with an option, whose state .keras and .weights.h5 files hold.

    Args:
      bias_correction: False uses the moments as they are.
      **arguments: of the base class.
    """

    def __init__(self, bias_correction: bool = True, **arguments):
        super().__init__(**arguments)
        self.bias_correction = bias_correction
        self._trained: list[tf.Variable] = []  # variables, in the order of their moments in a file
        # Moments from a file, until the first update; None where a file should hold some.
        self._loaded: list[np.ndarray] | None = []

    def get_config(self) -> dict:
        """Returns the arguments of __init__ as values that JSON can hold."""
        config = {**super().get_config(), "bias_correction": self.bias_correction}
        return {name: value for name, value in config.items() if name not in ("beta_1", "beta_2")}

    def save_own_variables(self, store) -> None:
        """Stores step and moments, as Keras does when it saves a model."""
        moments = [self.get_slot(*slot).numpy() for slot in _slots(self._trained)]
        moments = moments or self._loaded or []
        for i, array in enumerate([self.iterations.numpy(), *moments]):
            store[str(i)] = array

    def load_own_variables(self, store) -> None:
        """Loads what save_own_variables stored; moments of other shapes are skipped with a warning.

        Before the first update the trained variables are unknown: moments wait for it.
        """
        if not store.keys():  # the file is of version 0.4 or older, or of a model without optimizer
            return
        step, *moments = [store[str(i)][()] for i in range(len(store.keys()))]
        if not self._trained:
            self._loaded = moments
        elif self._fits(moments, self._trained):
            for (variable, slot), array in zip(_slots(self._trained), moments):
                self.get_slot(variable, slot).assign(array)
        else:
            return
        self.iterations.assign(step)

    def _fits(self, moments: list[np.ndarray], variables: list[tf.Variable]) -> bool:
        """Returns whether these are the moments of these variables; warns if not, as Keras does."""
        found = [array.shape for array in moments]
        fits = found == [tuple(variable.shape) for variable, _ in _slots(variables)]
        if not fits:
            warnings.warn(
                f"Skipping the optimizer state of the file, because {type(self).__name__} has two "
                f"moments for each of {len(variables)} trained variables, and the {len(found)} "
                "arrays of the file differ from these in number, order or shape",
                stacklevel=2,
            )
        return fits

    @classmethod
    def from_config(cls, config: dict, **kwargs):
        """Returns a new optimizer, as Keras does before it loads its state."""
        optimizer = super().from_config(config, **kwargs)
        optimizer._loaded = None
        return optimizer

    def _create_slots(self, var_list):
        if self._loaded is None:
            warnings.warn(
                f"{type(self).__name__} was created from its settings alone and starts at step 0. "
                "A SavedModel, a .keras file of version 0.4 and one of a model with the policy "
                "mixed_float16 hold no optimizer state. An .h5 file and a checkpoint restore the "
                "state after this warning",
                stacklevel=2,
            )
        elif self._loaded and self._fits(self._loaded, var_list):
            for (variable, slot), array in zip(_slots(var_list), self._loaded):
                self.add_slot(variable, slot, array)
        elif self._loaded:
            self.iterations.assign(0)
        self._loaded = []
        super()._create_slots(var_list)
        self._trained = list(var_list)


def _slots(variables: list[tf.Variable]) -> list[tuple[tf.Variable, str]]:
    """Returns variable and name of each moment, in the order of a file."""
    return [(variable, slot) for slot in ("m", "v") for variable in variables]


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
