"""The weights of the labels: parses --class_weights, and balances by training examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from albert_tf.storage.errors import UserError


def parse(text: str | None) -> dict[str, float] | str | None:
    """Returns the value of --class_weights: "balanced", weights by label, or None."""
    if text is None or text == "balanced":
        return text
    weights = {}
    for part in text.split(","):
        label, _, weight = part.rpartition("=")
        label = label.strip()
        if label in weights:
            raise UserError(f"--class_weights={text}: {label!r} is there twice")
        try:
            weights[label] = float(weight)
        except ValueError:
            weights[label] = 0.0
        if not label or not 0 < weights[label] < 1e6:
            raise UserError(
                f"--class_weights={text}: {part!r} is no label=weight; expected balanced, or "
                "weights above 0 such as neg=1,pos=2.5"
            )
    return weights


def as_array(
    class_weights: Mapping[str, float] | str, labels: Sequence[str], places: np.ndarray
) -> np.ndarray:
    """Returns the weight of each label, float32 [labels]; refuses unknown labels.

    Args:
      class_weights: result of `parse`; "balanced": all labels have the same total weight, examples
        weight 1 on average.
      labels: all labels of the task; a label without a weight gets 1.
      places: int [n], the labels of the training examples, as indices into `labels`.
    """
    if class_weights == "balanced":
        counts = np.bincount(places, minlength=len(labels))
        # max: avoid division by 0 for a label without examples, whose weight is never used.
        return (len(places) / (len(counts) * np.maximum(1, counts))).astype(np.float32)
    if unknown := [label for label in class_weights if label not in labels]:
        known = ", ".join(map(repr, labels[:20]))
        raise UserError(f"--class_weights: unknown label {unknown[0]!r}; the labels are {known}")
    return np.array([class_weights.get(label, 1.0) for label in labels], np.float32)
