"""How probabilities become labels: settings of pipelines.predict and of exports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import flags

from albert_tf.kinds import UNSURE
from albert_tf.storage.errors import UserError
from .settings import setting

TEMPERATURES = (0.05, 20.0)
_LIMITS = {"temperature": TEMPERATURES, "min_probability": (0.0, 1.0)}


@dataclasses.dataclass(frozen=True)
class Decision:
    """Values that fine-tuning prints for dev; None: the export's, or none."""

    temperature: float | None = setting(
        flags.DEFINE_float,
        "A classifier's logits are divided by it; above 1 probabilities are less extreme. "
        "Fine-tuning prints which fits dev. Default: 1, or an export's own.",
        None,
    )
    min_probability: float | None = setting(
        flags.DEFINE_float,
        "A classifier answers `unsure` where its best label is less probable. Fine-tuning prints "
        "what reaches which precision on dev. Default: none, or an export's own.",
        None,
    )

    def apply(self, task: dict[str, Any]) -> dict[str, Any]:
        """Returns the content of a task.json with the values that are not None.

        Raises:
          UserError: if a value is not possible, or not for this kind of model or its labels.
        """
        given = {name: value for name, value in vars(self).items() if value is not None}
        for name, value in given.items():
            if task.get("kind") != "classifier":
                raise UserError(f"--{name} is for models that choose one label: omit it")
            low, high = _LIMITS[name]
            if not low <= value <= high:
                raise UserError(f"--{name}={value}: expected a number from {low:g} to {high:g}")
        if self.min_probability and UNSURE in task["labels"]:
            raise UserError(f"--min_probability: {UNSURE!r} is a label of this model: omit it")
        return {**task, **given}


AS_TRAINED = Decision()


def decided(task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a Decision that a task.json has."""
    names = [field.name for field in dataclasses.fields(Decision)]
    return {name: task[name] for name in names if name in task}
