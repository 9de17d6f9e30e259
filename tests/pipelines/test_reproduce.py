"""The paper's tables against our shapes, and recipes against pretrain's flags."""

import dataclasses
import json
from pathlib import Path

import pytest

from albert_tf.config import SHARING_MODES, AlbertConfig
from albert_tf.models import AlbertForPreTraining
from pipelines import reproduce
from tests.builders import tiny_config
from tests.jobs import PROJECT, run_code

TABLES = ("overall", "embedding", "sharing", "sentence_objective", "same_time")
ROWS = {
    "overall": "bert_base bert_large bert_xlarge albert_base albert_large albert_xlarge "
    "albert_xxlarge",
    "embedding": "none_64 none_128 none_256 none_768 all_64 all_128 all_256 all_768",
    "sharing": "all_768 attention_768 ffn_768 none_768 all_128 attention_128 ffn_128 none_128",
    "sentence_objective": "none nsp sop",
    "same_time": "bert_large albert_xxlarge",
}


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    """Recipes name each other by paths from here."""
    monkeypatch.chdir(PROJECT)


@pytest.mark.parametrize(
    ("name", "encoder_and_pooler", "with_heads"),
    [
        ("albert_base", 11_683_584, 11_813_810),
        ("albert_large", 17_683_968, 17_847_474),
        ("albert_xlarge", 58_724_864, 59_021_490),
        ("albert_xxlarge", 222_595_584, 223_158_450),
    ],
)
def test_counts_of_the_released_models(name, encoder_and_pooler, with_heads):
    counts = reproduce.count_parameters(reproduce.symbolic_model(AlbertConfig.named(name)))
    assert (counts["encoder + pooler"], counts["with heads"]) == (encoder_and_pooler, with_heads)
    pooler = AlbertConfig.named(name).hidden_size
    assert counts["encoder + pooler"] - counts["encoder"] == pooler * (pooler + 1)


@pytest.mark.parametrize("sharing", SHARING_MODES)
def test_symbolic_counts_are_those_of_a_model_with_weights(sharing):
    config = tiny_config(num_hidden_layers=5, parameter_sharing=sharing)
    model = AlbertForPreTraining(config)
    model.create_variables()
    symbolic = reproduce.symbolic_model(config)
    assert [v.shape for v in symbolic.variables] == [v.shape for v in model.variables]
    counts = reproduce.count_parameters(symbolic)
    assert counts["with heads"] == sum(variable.numpy().size for variable in model.variables)


@pytest.mark.slow
def test_every_published_count_is_ours_or_has_its_reason():
    """Asserted on what is printed: rounded here, to the paper's digits, once more."""
    blocks = reproduce.parameter_tables().split("\n\n")
    unequal = set()
    for table, block in zip(("overall", "embedding", "sharing"), blocks):
        lines = block.splitlines()[2:]
        assert [line.split()[0] for line in lines] == ROWS[table].split()
        for line in lines:
            name, *_, sharing, published, encoder, pooler, _ = line.split()[:9]
            counted = encoder if sharing == "none" else pooler
            millions = int(counted.replace(",", "")) / 1e6
            rounded = int(float(f"{millions:.3g}" if millions > 1000 else f"{millions:.0f}"))
            verdict = "encoder" if sharing == "none" else "encoder + pooler"
            if f"{rounded}M" == published:
                assert line.endswith((f"  {verdict}", "  encoder, to the nearest 10M")), line
            else:
                unequal.add(name)
                assert "  neither: " in line and len(line.split("neither: ")[1]) > 30
    assert unequal == {"albert_xlarge", "albert_xxlarge"}


def test_counting_needs_no_memory_for_weights():
    """BERT xlarge has 5.1 GB of them."""
    code = """
from albert_tf.config import AlbertConfig
from pipelines import reproduce
from tests.benchmarks.memory import peak_megabytes
print(reproduce.count_parameters(reproduce.symbolic_model(AlbertConfig.named("bert_xlarge"))))
print(peak_megabytes())
"""
    counts, megabytes = run_code(code)[0].splitlines()
    assert "'encoder + pooler': 1275291648" in counts
    assert int(megabytes) < 1500


@pytest.mark.slow
def test_xxlarge_is_built_below_4_gb_and_its_weights_only_once():
    code = """
import tensorflow as tf
from albert_tf.config import AlbertConfig
from albert_tf.models import AlbertForPreTraining
from tests.benchmarks.memory import peak_megabytes
tf.zeros([])
before = peak_megabytes()
model = AlbertForPreTraining(AlbertConfig.named("albert_xxlarge"))
model.create_variables()
after = peak_megabytes()
print(sum(variable.shape.num_elements() for variable in model.variables), before, after)
"""
    parameters, before, after = map(int, run_code(code)[0].split()[-3:])
    print(f"peak {after} MB, {after - before} MB for the model")
    assert parameters == 223_158_450
    assert after < 4000
    # The initializer of the largest kernel holds three tensors of its size for a moment.
    assert (after - before) * 1e6 < 2 * 4 * parameters


def test_recipes_are_flags_of_pretrain():
    """What pretrain reads from each flagfile is what the tables are computed from."""
    code = """
import json
from absl import flags
from pipelines import pretrain, reproduce
pretrain.define_flags()
found = {}
for table in reproduce._TABLES:
    for row in reproduce.read_table(table).rows:
        flags.FLAGS.unparse_flags()
        for name in ("albert_config", "sentence_objective", "num_train_steps"):
            flags.FLAGS[name].unparse()
        flagfile = f"--flagfile=pipelines/recipes/paper/{row.recipe}.flags"
        flags.FLAGS(["", flagfile, "--record_dir=r", "--spm_model_file=s", "--model_dir=m"])
        recipe = reproduce.read_recipe(row)
        assert {name: str(flags.FLAGS[name].value) for name in recipe} == recipe, row
        found[f"{table} {row.name}"] = [
            flags.FLAGS.albert_config, flags.FLAGS.sentence_objective, flags.FLAGS.num_train_steps
        ]
print(json.dumps(found))
"""
    found = json.loads(run_code(code)[0].splitlines()[-1])
    assert list(found) == [f"{table} {row}" for table in TABLES for row in ROWS[table].split()]
    for name, (config, objective, steps) in found.items():
        table, row = name.split()
        values = reproduce.recipe_config({"albert_config": config})
        if table in ("embedding", "sharing"):
            base = AlbertConfig.named("albert_base_v1")
            sharing, embedding_size = row.split("_")
            changes = {"parameter_sharing": sharing, "embedding_size": int(embedding_size)}
            assert values == dataclasses.replace(base, **changes)
        elif table == "sentence_objective":
            assert (config, objective) == ("albert_base_v1", row)
        else:
            assert values == AlbertConfig.named(row if "bert_" in row[:5] else f"{row}_v1")
        if table != "sentence_objective":
            assert objective == "sop"
        assert steps == (400_000 if name == "same_time bert_large" else 125_000)


def test_every_recipe_belongs_to_a_row_and_every_figure_to_a_column():
    used = set()
    for table in map(reproduce.read_table, TABLES):
        for row in table.rows:
            used.add(row.recipe)
            assert len(row.results.split()) == len(table.columns.split()), row
    stored = {path.stem for path in Path("pipelines/recipes/paper").glob("*.flags")}
    assert stored == used | {"common"}
    counts = {"encoder": 12_600_000, "encoder + pooler": 12_500_001}
    with pytest.raises(AssertionError, match="row: neither"):
        reproduce.agreement(reproduce.Row("row", "row", "", parameters=12), counts)


def test_a_table_lists_recipe_cost_and_figures():
    text = reproduce.list_rows(reproduce.read_table("same_time"), flops_per_second=1e15)
    header, bert, albert = text.splitlines()[1:4]
    assert header.split()[:6] == ["recipe", "steps", "batch", "FLOPs", "days", "time"]
    name, recipe, steps, batch, flops, days, *figures = bert.split()
    assert (name, steps, batch) == ("bert_large", "400,000", "4,096")
    assert Path(recipe).exists()
    # 24 layers of 12 H^2 weights, 6 operations per weight and position, attention aside.
    least = 6 * 24 * 12 * 1024**2 * 512 * 4096 * 400_000
    assert least < float(flops) < 1.2 * least
    assert float(days) == pytest.approx(float(flops) / 1e15 / 86400, rel=0.01)
    assert " ".join(figures) == "34h 93.5/87.4 86.9/84.3 87.8 94.6 77.3 87.2"
    assert albert.split()[0] == "albert_xxlarge"
