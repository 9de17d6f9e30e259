import json
import re

import pytest
import tensorflow as tf

from albert_tf import optimization
from pipelines.training.settings import TrainingSettings, precision
from pipelines.training.train_step import TrainStep, make_step_loop, pretraining_objective
from tests.jobs import run_code
from tests.pipelines.training.test_train_loop import GLOBAL_BATCH, Toy, albert, batches
from tests.replicas import mirrored

# What a host would have to do in the middle of a step, and shapes known only when it runs.
HOST_OPS = {"custom-call", "infeed", "outfeed", "send", "recv", "send-done", "recv-done"}
DYNAMIC_SHAPES = {"set-dimension-size", "get-dimension-size", "dynamic-reshape"}


def make_step(strategy, mixed_precision="none", create=Toy, **options):
    with strategy.scope(), precision(mixed_precision):
        model = create(dropout=0.1)
        optimizer = optimization.lamb(optimization.WarmUpPolynomialDecay(0.1, 10, 2))
        optimization.create_slots(optimizer, model)
    settings = TrainingSettings(GLOBAL_BATCH, 10, 2, 0.1, **options)
    return TrainStep(model, model, pretraining_objective(), optimizer, settings, seed=9)


@pytest.mark.slow
def test_compiles_with_static_shapes_and_without_the_host():
    """Forward, backward, clipping and LAMB in one XLA program, as on a TPU."""
    options = {"gradient_accumulation_steps": 3, "mixed_precision": "bfloat16"}
    train_step = make_step(tf.distribute.get_strategy(), create=albert, **options)
    step = tf.function(train_step.run, jit_compile=True)
    batch = next(iter(batches(0, GLOBAL_BATCH)))
    program = step.experimental_get_compiler_ir(batch, tf.constant(False))(stage="hlo")
    ops = set(re.findall(r" ([a-z][a-z0-9-]*)\(", program))
    assert {"dot", "rng-bit-generator", "sqrt", "while"} <= ops
    assert not ops & (HOST_OPS | DYNAMIC_SHAPES)
    assert not re.search(r"\[[0-9,]*<=", program), "a dimension with an upper bound only"
    assert "bf16[" in program


def test_the_loop_traces_on_replicas():
    run_steps = make_step_loop(mirrored(), make_step(mirrored()))
    dataset = mirrored().distribute_datasets_from_function(lambda _: batches(0, GLOBAL_BATCH // 2))
    run_steps.get_concrete_function(iter(dataset), tf.constant(5), tf.Variable(False))


def test_no_python_in_the_loop():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    run_steps = make_step_loop(strategy, make_step(strategy))
    dataset = strategy.distribute_datasets_from_function(lambda _: batches(0, GLOBAL_BATCH))
    arguments = iter(dataset), tf.constant(5), tf.Variable(False, trainable=False)
    graph = run_steps.get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    ops = {node.op for node in nodes}
    assert {"IteratorGetNext", "MatMul"} <= ops
    assert not {op for op in ops if "PyFunc" in op}
    for node in nodes:
        if node.op == "IteratorGetNext":
            shapes = [tf.TensorShape(shape) for shape in node.attr["output_shapes"].list.shape]
            assert len(shapes) >= 8 and all(shape.is_fully_defined() for shape in shapes)


MEGABYTES_OF_A_STEP = """
import json, sys
import tensorflow as tf
from albert_tf.models import AlbertForPreTraining
from pipelines.training.settings import PretrainingSettings
from tests.benchmarks.measuring import peak_megabytes
from tests.benchmarks.train_step import make_batch, step_of_pretraining
from tests.builders import tiny_config
sizes = {"hidden_size": 48, "intermediate_size": 192, "max_position_embeddings": 384}
sizes.update(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
config = tiny_config(**sizes, num_hidden_layers=12, num_attention_heads=4)
strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
settings = PretrainingSettings(64, 1000, 0, 1e-4, **json.loads(sys.argv[1]))
with strategy.scope():
    model = AlbertForPreTraining(config, settings.recompute)
    model.create_variables()
    run = step_of_pretraining(settings, strategy, model, make_batch(320, 64, 48, config.vocab_size))
before = peak_megabytes()
assert run(1)["steps"] == 1
print(peak_megabytes() - before)
"""


@pytest.mark.slow
def test_recomputation_and_micro_batches_save_memory():
    """Of what a step adds to a process in which activations outweigh all else."""

    def megabytes(**options):
        return int(run_code(MEGABYTES_OF_A_STEP, json.dumps(options))[0].splitlines()[-1])

    kept = megabytes()
    assert kept > 500, "too little to tell"
    assert megabytes(recompute=True) < 0.5 * kept
    assert megabytes(gradient_accumulation_steps=8) < 0.5 * kept
