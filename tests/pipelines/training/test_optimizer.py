import dataclasses
from types import SimpleNamespace

import pytest
import tensorflow as tf
from absl import flags

from albert_tf import addons
from albert_tf.jobs.settings import flag_names
from albert_tf.storage.errors import UserError
from pipelines.data.examples import ExampleOptions
from pipelines.pretrain import _identity, make_optimizer
from pipelines.training.settings import (
    PUBLISHED,
    LoopSettings,
    PretrainingSettings,
    loop_from_flags,
)
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


def test_a_warm_up_is_compared_with_the_steps_of_epochs():
    of_epochs = {**PUBLISHED, "num_warmup_steps": 130_000}
    settings = PretrainingSettings(**of_epochs, num_epochs=2000)
    settings.check(tf.distribute.get_strategy())
    assert settings.with_steps(1 << 19).num_train_steps == 256_000
    with pytest.raises(UserError, match="fewer than the 130000 of --num_warmup_steps"):
        settings.with_steps(1 << 18)
    with pytest.raises(UserError, match="beyond --num_train_steps=125000"):
        PretrainingSettings(**of_epochs).check(tf.distribute.get_strategy())


@pytest.mark.parametrize(
    ("default", "save", "evaluate", "expected"),
    [(20, 1000, 0, 20), (20, 1000, 50, 10), (20, 64, 64, 16), (10, 500, 7, 1)],
)
def test_a_loop_divides_the_steps_between_evaluations(
    monkeypatch, default, save, evaluate, expected
):
    given = dict.fromkeys(flag_names(LoopSettings), 0)
    given.update(steps_per_loop=default, save_checkpoint_steps=save, eval_steps=evaluate)
    values = {
        name: SimpleNamespace(value=value, using_default_value=True)
        for name, value in given.items()
    }
    monkeypatch.setattr(flags, "FLAGS", values)
    assert loop_from_flags().steps_per_loop == expected
    values["steps_per_loop"].using_default_value = False
    if expected < default:
        with pytest.raises(UserError, match="is not a multiple of --steps_per_loop"):
            loop_from_flags()


def test_epochs_are_converted_without_rounding_errors():
    settings = PretrainingSettings(10, 1, 0, 1.0, num_epochs=1.1)
    assert [settings.with_steps(n).num_train_steps for n in (100, 101)] == [11, 12]


def test_what_belongs_to_the_identity_of_a_run():
    """Versions before a setting did not name it; their runs are resumed."""
    manifest = SimpleNamespace(fingerprint=lambda: "records", heldout_split=None)
    sources = [SimpleNamespace(manifest=manifest, quota=None)]
    options = ExampleOptions(max_seq_length=8, max_predictions_per_seq=2)
    loop = LoopSettings(steps_per_loop=1, save_checkpoint_steps=1)

    def identity(options=options, **changes):
        settings = PretrainingSettings(**PUBLISHED, **changes)
        return _identity(tiny_config(), None, sources, options, settings, loop)

    assert "mask_token_rate" not in identity()
    only_masks = ExampleOptions(8, 2, mask_token_rate=1.0, random_token_rate=0.0)
    assert identity(only_masks)["random_token_rate"] == 0.0
    with pytest.raises(UserError, match="more than 1 together"):
        ExampleOptions(8, mask_token_rate=1.0)
    assert "optimizer" not in identity()
    assert identity() != identity(lamb_bias_correction=False)
    assert identity(optimizer="adamw")["optimizer"] == "adamw"
    assert identity(optimizer="adamw") == identity(optimizer="adamw", lamb_bias_correction=False)
