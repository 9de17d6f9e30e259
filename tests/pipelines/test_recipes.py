"""The recipes: every one parses; those of fine-tuning say what the paper's appendix says."""

import json

from albert_tf.config import AlbertConfig
from pipelines.training.depth_schedule import parse_depths
from tests.jobs import PROJECT, run_code

RECIPES = PROJECT / "pipelines/recipes/finetune"
# Learning rate, batch, dropout, classifier dropout, steps, warm-up, length.
PUBLISHED = {
    "cola": (1e-5, 16, 0, 0.1, 5336, 320, 512),
    "stsb": (2e-5, 16, 0, 0.1, 3598, 214, 512),
    "sst2": (1e-5, 32, 0, 0.1, 20935, 1256, 512),
    "mnli": (3e-5, 128, 0, 0.1, 10000, 1000, 512),
    "qnli": (1e-5, 32, 0, 0.1, 33112, 1986, 512),
    "qqp": (5e-5, 128, 0.1, 0.1, 14000, 1000, 512),
    "rte": (3e-5, 32, 0.1, 0.1, 800, 200, 512),
    "mrpc": (2e-5, 32, 0, 0.1, 800, 200, 512),
    "wnli": (2e-5, 16, 0.1, 0.1, 2000, 250, 512),
    "squad_v1": (5e-5, 48, 0, 0.1, 3649, 365, 384),
    "squad_v2": (3e-5, 48, 0, 0.1, 8144, 814, 512),
    "race": (2e-5, 32, 0.1, 0.1, 12000, 1000, 512),
    "race_v2_models": (1e-5, 32, 0, 0.1, 12000, 1000, 512),
}
NAMES = "learning_rate global_batch_size hidden_dropout_prob classifier_dropout_prob".split()
NAMES += ["num_train_steps", "num_warmup_steps", "max_seq_length"]


def flags_of(program, folder):
    """Flags of each recipe, as the program reads them."""
    code = (
        "import glob, json, os, sys\n"
        "from absl import flags\n"
        f"from pipelines import {program}\n"
        f"{program}.define_flags()\n"
        "values = {}\n"
        f"for path in sorted(glob.glob({str(folder)!r} + '/*.flags')):\n"
        "    flags.FLAGS.unparse_flags()\n"
        f"    flags.FLAGS([{program!r}, '--flagfile=' + path, *sys.argv[1:]])\n"
        "    name = os.path.basename(path).removesuffix('.flags')\n"
        "    values[name] = {k: flags.FLAGS[k].value for k in flags.FLAGS}\n"
        "print(json.dumps(values, default=str))\n"
    )
    paths = ["--output_dir=out"]
    if program == "pretrain":
        paths = ["--record_dir=records", "--spm_model_file=own.model", "--model_dir=run"]
    return json.loads(run_code(code, *paths)[0].splitlines()[-1])


def test_they_say_what_was_published():
    parsed = flags_of("finetune", RECIPES)
    assert parsed.keys() == PUBLISHED.keys()
    for name, flags in parsed.items():
        assert flags["task"] == name.removesuffix("_v2_models")
        assert tuple(flags[flag] for flag in NAMES) == PUBLISHED[name], name
        assert flags["adamw_bias_correction"] is False
        assert flags["eval_steps"] % flags["steps_per_loop"] == 0
        assert 15 <= flags["num_train_steps"] / flags["eval_steps"] <= 25


def shape_of(flags):
    """Returns the shape of the model but for its layers; evaluations fall between loops."""
    for steps in ("eval_steps", "save_checkpoint_steps"):
        assert flags[steps] % flags["steps_per_loop"] == 0
    config = json.loads((PROJECT / flags["albert_config"]).read_text())
    return {**config, "num_hidden_layers": None}


def test_the_parts_of_the_hour_follow_one_another():
    parts = flags_of("pretrain", PROJECT / "pipelines/recipes/hour")
    parts = sorted(parts.values(), key=lambda flags: flags["max_seq_length"])
    assert [flags["max_seq_length"] for flags in parts] == [32, 64, 128]
    assert {flags["max_seq_length"] * flags["global_batch_size"] for flags in parts} == {4096}
    depths = []
    for flags in parts:
        assert shape_of(flags) == shape_of(parts[0])
        config = AlbertConfig(**json.loads((PROJECT / flags["albert_config"]).read_text()))
        found = parse_depths(flags["depth_schedule"], config, flags["num_train_steps"])
        depths.append([layers for _, layers in found])
    assert depths == [[2], [2], [2, 4, 6]]


def test_the_parts_of_the_order_recipe_follow_one_another():
    parts = flags_of("pretrain", PROJECT / "pipelines/recipes/order")
    assert parts.pop("openings")["optimizer"] == "lamb"  # a run of its own
    assert parts.keys() == {"masked_lm", "order", "sentences", "segments"}
    order, sentences = (parts[name] for name in ("order", "sentences"))
    for name, flags in parts.items():
        assert flags["max_seq_length"] == (128 if name == "segments" else 52)
        assert shape_of(flags) == shape_of(order)
    differing = {name for name in order if order[name] != sentences[name]}
    assert differing - {"flagfile"} == {"record_weights", "num_train_steps", "num_warmup_steps"}
    assert order["optimizer"] == "adamw" and order["separator_order_loss"]
