from types import SimpleNamespace

import pytest
import tensorflow as tf

from albert_tf import addons
from albert_tf.storage.errors import UserError
from pipelines.data.examples import ExampleOptions
from pipelines.pretrain import _identity, make_optimizer
from pipelines.training.settings import PUBLISHED, PretrainingSettings
from tests.builders import tiny_config


@pytest.mark.parametrize(("name", "kind"), [("lamb", addons.Lamb), ("adamw", addons.AdamW)])
def test_the_optimizer_that_is_named(name, kind):
    optimizer = make_optimizer(PretrainingSettings(**PUBLISHED, weight_decay=0.02, optimizer=name))
    config = optimizer.get_config()
    assert isinstance(optimizer, kind) and config["bias_correction"] is True
    assert config.get("weight_decay", config.get("weight_decay_rate")) == 0.02


def test_epochs_and_the_warm_up_are_converted_to_steps():
    for steps, warmup in ((125_000, 3125), (57, 1)):
        settings = PretrainingSettings(**{**PUBLISHED, "num_train_steps": steps}).with_steps(1)
        assert (settings.num_train_steps, settings.num_warmup_steps) == (steps, warmup)
    settings = PretrainingSettings(10, 1, 0, 1.0, num_epochs=1.1)
    assert [settings.with_steps(n).num_train_steps for n in (100, 101)] == [11, 12]
    of_epochs = {**PUBLISHED, "num_warmup_steps": 130_000}
    settings = PretrainingSettings(**of_epochs, num_epochs=2000)
    settings.with_steps(1 << 19).check(tf.distribute.get_strategy())
    for short in (settings.with_steps(1 << 18), PretrainingSettings(**of_epochs)):
        with pytest.raises(UserError, match="130000 is beyond"):
            short.check(tf.distribute.get_strategy())


def test_what_belongs_to_the_identity_of_a_run():
    manifest = SimpleNamespace(fingerprint=lambda: "records", heldout_split=None)
    sources = [SimpleNamespace(manifest=manifest, quota=None)]
    options = ExampleOptions(max_seq_length=8, max_predictions_per_seq=2)

    def identity(options=options, **changes):
        settings = PretrainingSettings(**PUBLISHED, **changes)
        initial = SimpleNamespace(config=tiny_config())
        job = SimpleNamespace(initial=initial, sources=sources, options=options, settings=settings)
        return _identity(job, None)

    only_masks = ExampleOptions(8, 2, mask_token_rate=1.0)
    assert identity(only_masks)["mask_token_rate"] == 1.0 != identity()["mask_token_rate"]
    assert identity(stop_step=5) == identity() != identity(unpad=True)
