import dataclasses
import functools
import itertools
import json
import math
import re

import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from tests.jobs import PROJECT, run_code

RECIPES = PROJECT / "pipelines/recipes/finetune"
# Learning rate, batch, dropout, steps, warm-up, length.
PUBLISHED = {
    "cola": (1e-5, 16, 0, 5336, 320, 512),
    "stsb": (2e-5, 16, 0, 3598, 214, 512),
    "sst2": (1e-5, 32, 0, 20935, 1256, 512),
    "mnli": (3e-5, 128, 0, 10000, 1000, 512),
    "qnli": (1e-5, 32, 0, 33112, 1986, 512),
    "qqp": (5e-5, 128, 0.1, 14000, 1000, 512),
    "rte": (3e-5, 32, 0.1, 800, 200, 512),
    "mrpc": (2e-5, 32, 0, 800, 200, 512),
    "wnli": (2e-5, 16, 0.1, 2000, 250, 512),
    "squad_v1": (5e-5, 48, 0, 3649, 365, 384),
    "squad_v2": (3e-5, 48, 0, 8144, 814, 512),
    "race": (2e-5, 32, 0.1, 12000, 1000, 512),
    "race_v2_models": (1e-5, 32, 0, 12000, 1000, 512),
}
NAMES = "learning_rate global_batch_size hidden_dropout_prob".split()
NAMES += ["num_train_steps", "num_warmup_steps", "max_seq_length"]


@functools.cache
def flags_of(program, folder):
    """Flags of each recipe, as the program reads them."""
    code = """
import importlib, json, pathlib, sys
from absl import flags
program, folder, *paths = sys.argv[1:]
importlib.import_module(f"pipelines.{program}").define_flags()
values = {}
for path in sorted(pathlib.Path(folder).glob("*.flags")):
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    flags.FLAGS([program, f"--flagfile={path}", *paths])
    values[path.stem] = {name: flags.FLAGS[name].value for name in flags.FLAGS}
print(json.dumps(values, default=str))
"""
    paths = ["--output_dir=out"]
    if program == "pretrain":
        paths = ["--record_dir=records", "--spm_model_file=own.model", "--model_dir=run"]
    return json.loads(run_code(code, program, str(folder), *paths)[0].splitlines()[-1])


def test_they_say_what_was_published():
    parsed = flags_of("finetune", RECIPES)
    assert parsed.keys() == PUBLISHED.keys()
    for name, flags in parsed.items():
        assert flags["task"] == name.removesuffix("_v2_models")
        [flags["learning_rate"]] = flags["learning_rate"]
        assert tuple(flags[flag] for flag in NAMES) == PUBLISHED[name], name
        assert flags["adamw_bias_correction"] is False
        assert 15 <= flags["num_train_steps"] / flags["eval_steps"] <= 25


def config_of(flags):
    """Returns the config of a run."""
    return json.loads((PROJECT / flags["albert_config"]).read_text())


@pytest.mark.parametrize(
    ("folder", "names"),
    [("hour", ("128", "128_four", "128_six")), ("night", ("64", "64_four", "cool"))],
)
def test_the_parts_of_a_run_follow_one_another(folder, names):
    """Each part grows, has other masks, and starts at the rate at which the one before stopped."""
    recipes = flags_of("pretrain", PROJECT / "pipelines/recipes" / folder)
    configs = {name: config_of(flags) for name, flags in recipes.items() if name != "masks"}
    layers = {name: config.pop("num_hidden_layers") for name, config in configs.items()}
    assert [layers[name] for name in names] == [2, 4, 6]
    assert all(config == configs["32"] for config in configs.values())
    parts = [recipes[name] for name in names]
    assert len({flags["random_seed"] for flags in parts}) == len(parts)
    for part, following in itertools.pairwise(parts):
        rate = part["learning_rate"] * (1 - part["stop_step"] / part["num_train_steps"])
        assert following["learning_rate"] == pytest.approx(rate)
    assert parts[-1]["stop_step"] == parts[-1]["num_train_steps"]


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    """Recipes name each other by paths from here."""
    monkeypatch.chdir(PROJECT)


def size(variables):
    return sum(math.prod(variable.shape) for variable in variables)


def count_parameters(config):
    """Counts encoder, encoder with pooler and whole model; weights of a graph use no memory."""
    with tf.Graph().as_default():
        model = AlbertForPreTraining(config)
        model.create_variables()
    encoder = size(model.encoder.trainable_variables)
    pooler = size(model.encoder.pooler.trainable_variables)
    return encoder - pooler, encoder, size(model.trainable_variables)


def test_counts_of_the_released_models():
    for name, *expected in (
        ("albert_base", 11_683_584, 11_813_810),
        ("albert_xxlarge", 222_595_584, 223_158_450),
    ):
        config = AlbertConfig.named(name)
        without_pooler, *counts = count_parameters(config)
        assert counts == expected
        assert counts[0] - without_pooler == config.hidden_size * (config.hidden_size + 1)


@pytest.mark.slow
def test_published_counts_of_the_papers_rows():
    page = (PROJECT / "pipelines/recipes/README.md").read_text(encoding="utf-8")
    published = set(re.findall(r"^\| [2-5, ]+ \| `([\w/.]+)` \| ([\d,]+) \|", page, re.MULTILINE))
    assert len(published) == 17
    ours_of = {"albert_xlarge_v1": 59, "albert_xxlarge_v1": 223, "bert_xlarge": 1271}
    base = AlbertConfig.named("albert_base_v1")
    for name, millions in published:
        is_file = name.endswith(".json")
        config = (
            AlbertConfig.read(f"pipelines/recipes/{name}") if is_file else AlbertConfig.named(name)
        )
        if is_file:
            sharing, width = re.fullmatch(r"paper/(\w+)_(\d+)\.json", name).groups()
            changes = {"parameter_sharing": sharing, "embedding_size": int(width)}
            assert config == dataclasses.replace(base, **changes)
        without_pooler, with_pooler, _ = count_parameters(config)
        count = without_pooler if config.parameter_sharing == "none" else with_pooler
        expected = ours_of.get(name, int(millions.replace(",", "")))
        assert round(count / 1e6) == expected, name
