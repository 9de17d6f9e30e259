"""LAMB and AdamW as Keras optimizers, based on tensorflow-addons where it is available.

This is the only module that imports tensorflow-addons, so albert_tf.optimization imports it lazily.
"""

import math
import shlex
import sys
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.storage.errors import UserError

# Exponential decay rates of the moments, which are the defaults of both base classes.
_BETA_1, _BETA_2 = 0.9, 0.999


def _base() -> type:
    """Returns the LAMB class of keras_lamb (Python 3.12 and later) or of tensorflow-addons."""
    if sys.version_info >= (3, 12):
        from albert_tf import keras_lamb

        return keras_lamb.LAMB
    with warnings.catch_warnings():
        # The import warns that the package is at its end of life and was not tested with this
        # version of TensorFlow. Both versions are pinned, so the warnings are ignored.
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


# Both base classes derive from Keras' legacy optimizer, whose state Keras 2 does not save in .keras
# and .weights.h5 files. Keras saves the state of losses there. A new-style optimizer would have to
# override about ten private methods to read checkpoints of the legacy class.
class _Optimizer(_BASE, tf.keras.losses.Loss):
    """LAMB with optional bias correction. Its state is saved in .keras and .weights.h5 files."""

    def __init__(self, bias_correction: bool = True, **arguments):
        super().__init__(**arguments)
        self.bias_correction = bias_correction
        self._trained: list[tf.Variable] = []  # in the order of their saved moments
        # Moments loaded from a file, kept until the first update. None if from_config created this
        # optimizer and no moments have been loaded.
        self._loaded: list[np.ndarray] | None = []

    def get_config(self) -> dict:
        """Returns the arguments of `__init__` as JSON-serializable values."""
        config = {**super().get_config(), "bias_correction": self.bias_correction}
        return {name: value for name, value in config.items() if name not in ("beta_1", "beta_2")}

    def save_own_variables(self, store) -> None:
        """Saves the step and the moments. Keras calls this method when it saves a model."""
        moments = [self.get_slot(*slot).numpy() for slot in _slots(self._trained)]
        moments = moments or self._loaded or []
        for i, array in enumerate([self.iterations.numpy(), *moments]):
            store[str(i)] = array

    def load_own_variables(self, store) -> None:
        """Loads the step and the moments. If the shapes do not match, warns and loads nothing.

        Before the first update, the trained variables are not known. The loaded moments are kept
        until that update creates the slots.
        """
        if not store.keys():  # saved without an optimizer
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
        """Returns whether the moments match the variables' shapes. Warns if not, as Keras does."""
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
        """Creates an optimizer from its config. Keras calls this before it loads the state."""
        optimizer = super().from_config(config, **kwargs)
        optimizer._loaded = None
        return optimizer

    def _create_slots(self, var_list):
        if self._loaded is None:
            warnings.warn(
                f"{type(self).__name__} was created from its settings alone and starts at step 0. "
                "A SavedModel and a .keras file of a model with the policy mixed_float16 hold no "
                "optimizer state. An .h5 file and a checkpoint restore the state after this "
                "warning",
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
    """Returns (variable, slot name) pairs in the order in which moments are saved."""
    return [(variable, slot) for slot in ("m", "v") for variable in variables]


def _uncorrected(dtype: tf.DType) -> dict[str, tf.Tensor]:
    """Returns coefficients that disable the base class's bias correction."""
    return {
        # The base class divides each moment by 1 - beta_power.
        "beta_1_power": tf.zeros([], dtype),
        "beta_2_power": tf.zeros([], dtype),
        # In float32, 1 - 0.999 has a relative error of 1.3e-5. The base class's bias correction
        # cancels this error. Without bias correction, the constants must be exact.
        "one_minus_beta_1_t": tf.constant(1 - _BETA_1, dtype),
        "one_minus_beta_2_t": tf.constant(1 - _BETA_2, dtype),
    }


@tf.keras.saving.register_keras_serializable("albert_tf")
class Lamb(_Optimizer):
    """The LAMB optimizer. See `optimization.lamb`."""

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        if not self.bias_correction:
            apply_state[(var_device, var_dtype)].update(_uncorrected(var_dtype))


@tf.keras.saving.register_keras_serializable("albert_tf")
class AdamW(_Optimizer):
    """The AdamW optimizer: LAMB without the trust ratio. See `optimization.adamw`."""

    def _do_layer_adaptation(self, variable):
        return False

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        state = apply_state[(var_device, var_dtype)]
        state.update(_uncorrected(var_dtype))
        if not self.bias_correction:
            return
        # m / c1 / (sqrt(v / c2) + epsilon) = scale * m / (sqrt(v) + epsilon * sqrt(c2)). In float32
        # the error of expm1 is 1e-7, and the error of the base class's 1 - 0.999^t is 1e-5.
        step = tf.cast(self.iterations + 1, var_dtype)
        c1, c2 = (-tf.math.expm1(step * math.log(beta)) for beta in (_BETA_1, _BETA_2))
        scale = tf.sqrt(c2) / c1
        state["epsilon"] *= tf.sqrt(c2)
        state["lr_t"] *= scale
        state["weight_decay"] /= scale  # the base class multiplies weight_decay by lr_t
