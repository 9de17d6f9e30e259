"""Settings for turning a model's outputs into answers, in pipelines.predict and in exports."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from absl import flags

from albert_tf.answering.classes import UNSURE
from albert_tf.storage.errors import UserError
from .settings import numbers_by_label, setting


@dataclasses.dataclass(frozen=True)
class Decision:
    """Settings for turning outputs into answers. None selects the model's value, if any.

    `label_thresholds` maps labels to their minimum probability, or is the flag's text.
    """

    min_probability: float | None = setting(
        flags.DEFINE_float,
        "A classifier predicts `unsure` if the probability of its best label is lower. Fine-tuning "
        "prints values for several precisions on dev. Default: none.",
        None,
    )
    label_thresholds: Mapping[str, float] | str | None = setting(
        flags.DEFINE_string,
        "multilabel: minimum probabilities for predicting labels, as comma-separated label=number. "
        "The default is 0.5. Fine-tuning prints better thresholds on dev.",
        None,
    )
    null_threshold: float | None = setting(
        flags.DEFINE_float,
        "Question answering: predict no answer if the null odds exceed this value. A model that "
        "was trained on SQuAD 2.0 elsewhere needs it (such as 0), because its config does not say "
        "so. Default: the model's value, else there is always an answer.",
        None,
    )

    def apply(self, task: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of the content of task.json, updated with the values that are not None.

        Raises a UserError if a value is out of range or does not apply to the model or its labels.
        """
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.null_threshold is not None:
            if task.get("kind") != "question_answering":
                raise UserError("--null_threshold is for models that answer questions: omit it")
            if not math.isfinite(self.null_threshold):
                raise UserError(f"--null_threshold={self.null_threshold}: expected a number")
            return {**task, **given, "may_be_impossible": True}
        for name, value in given.items():
            is_multilabel = name == "label_thresholds"
            if task.get("kind") != ("multilabel" if is_multilabel else "classifier"):
                chosen = "several labels per row" if is_multilabel else "one label"
                raise UserError(f"--{name} is for models that choose {chosen}: omit it")
            if is_multilabel:
                given[name] = _thresholds(value, task["labels"])
                continue
            if not 0 <= value <= 1:
                raise UserError(f"--{name}={value}: expected a number from 0 to 1")
        if self.min_probability and UNSURE in task["labels"]:
            raise UserError(f"--min_probability: {UNSURE!r} is a label of this model: omit it")
        return {**task, **given}


AS_TRAINED = Decision()


def decided(task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of Decision that are set in the content of task.json."""
    names = [field.name for field in dataclasses.fields(Decision)]
    if not task.get("may_be_impossible"):
        names.remove("null_threshold")
    return {name: task[name] for name in names if name in task}


def _thresholds(value: Mapping[str, float] | str, labels: list[str]) -> dict[str, float]:
    flag = "label_thresholds"
    if isinstance(value, str):
        value = numbers_by_label(flag, value, math.isfinite, "numbers such as neg=0.3,pos=0.6")
    for label, threshold in value.items():
        if label not in labels:
            known = ", ".join(map(repr, labels[:20])) + ", ..." * (len(labels) > 20)
            raise UserError(f"--{flag}: unknown label {label!r}; the model has {known}")
        if not 0 <= threshold <= 1:
            raise UserError(f"--{flag}: {label!r} has {threshold}; expected a number from 0 to 1")
    return {label: float(threshold) for label, threshold in value.items()}
