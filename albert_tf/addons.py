"""LAMB and AdamW of tensorflow-addons, as Keras stores and loads them: the only door to it.

Importing this module imports tensorflow-addons, so albert_tf.optimization imports it only when it
creates an optimizer. The package is past its end of life. If it stops working with a later
TensorFlow, replace it here: `Lamb` and `AdamW` need two subclasses of
tf.keras.optimizers.legacy.Optimizer with the slots `m` and `v` and the arguments that
`optimization` passes. The tests compare every update with tests/golden/optimizer_steps.npz.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import shlex
import sys
import sysconfig
import warnings

import tensorflow as tf

from albert_tf.errors import UserError

# Decay of the moments.
_BETA_1, _BETA_2 = 0.9, 0.999


def _install() -> str:
    """Returns the command that installs tensorflow-addons for this Python."""
    options = ""
    if sys.version_info >= (3, 12):  # no wheel, but only the Python code is used
        options = (
            "--no-deps --only-binary=:all: --python-version 3.11 "
            f"--target {shlex.quote(sysconfig.get_path('purelib'))} "
        )
    return f"{shlex.quote(sys.executable)} -m pip install {options}tensorflow-addons==0.23.0"


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


with warnings.catch_warnings(), _keras_2_as_keras():
    # Its import announces the end of life and the TensorFlow it knows; both are pinned.
    warnings.filterwarnings("ignore", message="(?si).*TensorFlow Addons", category=UserWarning)
    try:
        import tensorflow_addons as tfa
    except ModuleNotFoundError as error:
        if error.name != "tensorflow_addons":
            raise
        raise UserError(f"LAMB and AdamW need a package: {_install()}") from error


class _Optimizer(tfa.optimizers.LAMB):
    """LAMB of tensorflow-addons with an option.

    Args:
      bias_correction: False uses the moments as they are.
      **arguments: of the class of tensorflow-addons.
    """

    def __init__(self, bias_correction: bool = True, **arguments):
        super().__init__(beta_1=_BETA_1, beta_2=_BETA_2, **arguments)
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
