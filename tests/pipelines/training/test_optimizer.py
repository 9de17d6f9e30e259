"""--optimizer of pre-training."""

from __future__ import annotations

import dataclasses

import pytest

from albert_tf import addons
from pipelines.pretrain import make_optimizer
from pipelines.training.settings import PUBLISHED, PretrainingSettings


@pytest.mark.parametrize(("name", "kind"), [("lamb", addons.Lamb), ("adamw", addons.AdamW)])
def test_the_optimizer_that_is_named(name, kind):
    settings = PretrainingSettings(**PUBLISHED, weight_decay=0.02)
    assert settings.optimizer == "lamb"
    optimizer = make_optimizer(dataclasses.replace(settings, optimizer=name))
    assert isinstance(optimizer, kind)
    config = optimizer.get_config()
    assert config["bias_correction"] is True
    assert config.get("weight_decay", config.get("weight_decay_rate")) == 0.02
