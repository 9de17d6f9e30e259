"""Parses --depth_schedule, which adds layers to a model during training."""

from __future__ import annotations

from collections.abc import Sequence

from albert_tf.config import AlbertConfig
from albert_tf.storage.errors import UserError


def parse_depths(
    depth_schedule: Sequence[str], config: AlbertConfig, num_train_steps: int
) -> list[tuple[int, int]]:
    """Returns a list of (first step, number of layers).

    For example, ["3", "6:2000"] gives [(0, 3), (2000, 6)]. If the schedule is empty, the model has
    the config's depth at all steps.

    Raises:
      UserError: if the schedule is malformed, is longer than the run or does not end at the
        config's depth, or if the layers do not share all weights.
    """
    if not depth_schedule:
        return [(0, config.num_hidden_layers)]
    text = f"--depth_schedule={','.join(depth_schedule)}"
    try:
        pairs = [part.split(":") for part in depth_schedule]
        depths = [(int(step[0]) if step else 0, int(layers)) for layers, *step in pairs]
    except ValueError:
        depths = []
    steps, layers = [step for step, _ in depths], [depth for _, depth in depths]
    if not depths or steps[0] or steps != sorted(set(steps)) or layers != sorted(set(layers)):
        raise UserError(
            f"{text}: expected layers:step, both rising, the first from step 0, such as "
            "3,6:2000,12:5000"
        )
    if layers[0] < 1 or layers[-1] != config.num_hidden_layers:
        raise UserError(
            f"{text} ends at {layers[-1]} layers, but the config has "
            f"{config.num_hidden_layers}: start with at least 1 and end at the config's"
        )
    if steps[-1] >= num_train_steps:
        raise UserError(f"{text}: the run of {num_train_steps} steps ends before the full depth")
    if config.parameter_sharing != "all" or config.num_hidden_groups > 1:
        raise UserError(
            f"{text}: only a model whose layers share all weights can grow; this one has "
            f"parameter_sharing {config.parameter_sharing!r} in {config.num_hidden_groups} "
            "groups"
        )
    return depths
