import dataclasses
from types import SimpleNamespace

import pytest

from albert_tf import addons
from pipelines.data.examples import ExampleOptions
from pipelines.pretrain import _identity, make_optimizer
from pipelines.training.settings import PUBLISHED, LoopSettings, PretrainingSettings
from tests.builders import tiny_config


@pytest.mark.parametrize(("name", "kind"), [("lamb", addons.Lamb), ("adamw", addons.AdamW)])
def test_the_optimizer_that_is_named(name, kind):
    settings = PretrainingSettings(**PUBLISHED, weight_decay=0.02)
    assert settings.optimizer == "lamb"
    optimizer = make_optimizer(dataclasses.replace(settings, optimizer=name))
    assert isinstance(optimizer, kind)
    config = optimizer.get_config()
    assert config["bias_correction"] is True
    assert config.get("weight_decay", config.get("weight_decay_rate")) == 0.02


def test_what_belongs_to_the_identity_of_a_run():
    """Version 0.5.0 named no optimizer; its runs are resumed. AdamW has no option of LAMB."""
    manifest = SimpleNamespace(fingerprint=lambda: "records", heldout_split=None)
    sources = [SimpleNamespace(manifest=manifest, quota=None)]
    options = ExampleOptions(max_seq_length=8, max_predictions_per_seq=2)
    loop = LoopSettings(steps_per_loop=1, save_checkpoint_steps=1)

    def identity(**changes):
        settings = PretrainingSettings(**PUBLISHED, **changes)
        return _identity(tiny_config(), None, sources, options, settings, loop)

    assert "optimizer" not in identity()
    assert identity() != identity(lamb_bias_correction=False)
    assert identity(optimizer="adamw")["optimizer"] == "adamw"
    assert identity(optimizer="adamw") == identity(optimizer="adamw", lamb_bias_correction=False)
