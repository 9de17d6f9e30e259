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


def shape_of(flags):
    """Returns the shape of the model but for its layers."""
    return {**config_of(flags), "num_hidden_layers": None}


def assert_chained(parts, layers):
    """Each part grows, has other masks, and starts at the rate at which the one before stopped."""
    assert [config_of(flags)["num_hidden_layers"] for flags in parts] == layers
    assert len({flags["random_seed"] for flags in parts}) == len(parts)
    for part, following in itertools.pairwise(parts):
        assert shape_of(following) == shape_of(part)
        rate = part["learning_rate"] * (1 - part["stop_step"] / part["num_train_steps"])
        assert following["learning_rate"] == pytest.approx(rate)
    assert parts[-1]["stop_step"] == parts[-1]["num_train_steps"]


def test_the_parts_of_the_hour_follow_one_another():
    parts = flags_of("pretrain", PROJECT / "pipelines/recipes/hour")
    lengths = {name: flags["max_seq_length"] for name, flags in parts.items()}
    assert lengths == {"32": 32, "64": 64, "128": 128, "128_four": 128, "128_six": 128}
    for flags in parts.values():
        assert flags["max_seq_length"] * flags["global_batch_size"] == 4096
        assert shape_of(flags) == shape_of(parts["32"])
    assert_chained([parts[name] for name in ("128", "128_four", "128_six")], [2, 4, 6])


def test_the_parts_of_the_night_follow_one_another():
    parts = {**flags_of("pretrain", PROJECT / "pipelines/recipes/night")}
    masks, short, *chain = (parts.pop(n) for n in ("masks", "32", "64", "64_four", "cool"))
    assert not parts
    hour = flags_of("pretrain", PROJECT / "pipelines/recipes/hour")["32"]
    own = "sentence_objective ngram mask_token_rate masked_lm_prob unpad".split()
    for flags in (short, *chain):
        assert {name: flags[name] for name in own} == {name: masks[name] for name in own}
        assert shape_of(flags) == shape_of(short)
    changed = {name for name in hour if hour[name] != short[name]} - {"flagfile"}
    assert changed <= {*own, "albert_config"}
    assert config_of(short) == {**config_of(hour), "vocab_size": 16000}
    assert_chained(chain, [2, 4, 6])
    unshared = {**chain[-1], "albert_config": "pipelines/recipes/night/six_unshared_layers.json"}
    assert config_of(unshared) == {**config_of(chain[-1]), "parameter_sharing": "none"}


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
        ("albert_large", 17_683_968, 17_847_474),
        ("albert_xlarge", 58_724_864, 59_021_490),
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


@pytest.mark.slow
def test_xxlarge_is_built_below_4_gb_and_its_weights_only_once():
    code = """
import tensorflow as tf
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from tests.benchmarks.measuring import peak_megabytes
tf.zeros([])
before = peak_megabytes()
AlbertForPreTraining(AlbertConfig.named("albert_xxlarge")).create_variables()
print(before, peak_megabytes())
"""
    before, after = map(int, run_code(code)[0].split()[-2:])
    assert after < 4000
    # The initializer of the largest kernel holds three tensors of its size for a moment.
    assert (after - before) * 1e6 < 2 * 4 * 223_158_450
