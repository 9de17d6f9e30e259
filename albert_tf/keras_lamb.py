"""LAMB for Python 3.12 and later, for which tensorflow-addons 0.23.0, the last one, has no wheel.

Updates, hyperparameters and slot names are the same as in tensorflow-addons, so a run can resume
with either implementation. This requires Keras' legacy optimizer as the base class.
"""

import re

import tensorflow as tf


class LAMB(tf.keras.optimizers.legacy.Optimizer):
    """LAMB with decoupled weight decay and bias correction; betas 0.9 and 0.999.

    The lists `exclude_from_...` contain regular expressions that match names of excluded variables.
    `exclude_from_layer_adaptation` defaults to `exclude_from_weight_decay`.

    Source: You et al. 2019, algorithm 2; tensorflow_addons.optimizers.LAMB.
    """

    def __init__(
        self,
        learning_rate,
        epsilon: float,
        weight_decay: float,
        exclude_from_weight_decay: list[str],
        exclude_from_layer_adaptation: list[str] | None = None,
        name: str = "LAMB",
        **kwargs,
    ):
        super().__init__(name, **kwargs)
        self._set_hyper("weight_decay", weight_decay)
        self._set_hyper("learning_rate", learning_rate)
        self._set_hyper("decay", self._initial_decay)
        self._set_hyper("beta_1", 0.9)
        self._set_hyper("beta_2", 0.999)
        self.epsilon = epsilon
        self.exclude_from_weight_decay = exclude_from_weight_decay
        self.exclude_from_layer_adaptation = (
            exclude_from_layer_adaptation or exclude_from_weight_decay
        )

    def get_config(self) -> dict:
        """Returns the arguments of `__init__` as JSON-serializable values."""
        hyperparameters = ("learning_rate", "weight_decay", "decay")
        return {
            **super().get_config(),
            **{name: self._serialize_hyperparameter(name) for name in hyperparameters},
            "epsilon": self.epsilon,
            "exclude_from_weight_decay": self.exclude_from_weight_decay,
            "exclude_from_layer_adaptation": self.exclude_from_layer_adaptation,
        }

    def _create_slots(self, var_list):
        for slot in ("m", "v"):
            for variable in var_list:
                self.add_slot(variable, slot)

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        step = tf.cast(self.iterations + 1, var_dtype)
        state = apply_state[(var_device, var_dtype)]
        state["weight_decay"] = tf.identity(self._get_hyper("weight_decay", var_dtype))
        state["epsilon"] = tf.constant(self.epsilon, var_dtype)
        for name in ("beta_1", "beta_2"):
            beta = tf.identity(self._get_hyper(name, var_dtype))
            state[f"{name}_t"] = beta
            state[f"one_minus_{name}_t"] = 1 - beta
            state[f"{name}_power"] = tf.pow(beta, step)

    def _resource_apply_dense(self, grad, var, apply_state):
        state = apply_state[(var.device, var.dtype.base_dtype)]
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m = m.assign(m * state["beta_1_t"] + grad * state["one_minus_beta_1_t"])
        v = v.assign(v * state["beta_2_t"] + grad * grad * state["one_minus_beta_2_t"])
        root = tf.sqrt(v / (1.0 - state["beta_2_power"]))
        update = m / (1.0 - state["beta_1_power"]) / (root + state["epsilon"])
        if self._do_use_weight_decay(var):
            update += state["weight_decay"] * var
        ratio = 1.0
        if self._do_layer_adaptation(var):
            # With a ratio of 0, a variable that is all zeros would never be updated.
            norms = tf.norm(var, ord=2), tf.norm(update, ord=2)
            has_ratio = (norms[0] > 0) & (norms[1] > 0)
            ratio = tf.where(has_ratio, norms[0] / norms[1], 1.0)
        return var.assign(var - ratio * state["lr_t"] * update)

    def _resource_apply_sparse(self, grad, var, indices, apply_state):
        # Rows without a gradient are also updated, because their moments and weights decay.
        dense = tf.convert_to_tensor(tf.IndexedSlices(grad, indices, var.shape))
        return self._resource_apply_dense(dense, var, apply_state)

    def _do_use_weight_decay(self, variable) -> bool:
        return not any(re.search(e, variable.name) for e in self.exclude_from_weight_decay)

    def _do_layer_adaptation(self, variable) -> bool:
        return not any(re.search(e, variable.name) for e in self.exclude_from_layer_adaptation)
