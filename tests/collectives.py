"""One of the two workers that test_distributed.py starts; prints the collectives of a step."""

import sys
import tempfile

import tensorflow as tf

from albert_tf import losses
from pipelines.training import train_loop
from pipelines.training.objective import Objective
from pipelines.training.run import Run
from pipelines.training.settings import LoopSettings, TrainingSettings
from pipelines.training.strategy import create_strategy
from pipelines.training.train_step import TrainStep


def count_collectives(function: tf.types.experimental.ConcreteFunction) -> int:
    """Counts them in a graph and in what it calls."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return sum(node.op.startswith("Collective") for node in nodes)


def train(strategy: tf.distribute.Strategy, model_dir: str):
    """Trains a small model for one step; the number of collectives does not depend on the model."""
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(5), tf.keras.layers.Dense(3)])
        model.build([None, 7])
        optimizer = tf.keras.optimizers.legacy.SGD(0.1)
    objective = Objective(
        weights=lambda batch: tf.reduce_sum(batch["weight"]),
        sums=lambda logits, batch: losses.weighted_cross_entropy(
            logits, batch["label"], batch["weight"]
        ),
        loss=lambda sums, weight: sums["loss"] / weight,
        metrics=lambda sums: {},
        zero_sums=lambda: {name: tf.zeros([]) for name in ("loss", "correct", "weight")},
    )
    settings = TrainingSettings(4, 1, 0, 0.1)
    train_step = TrainStep(
        lambda batch, dropout_seed: model(batch["x"]), model, objective, optimizer, settings, 9
    )
    batch = {"x": tf.ones([2, 7]), "label": tf.ones([2], tf.int32), "weight": tf.ones([2])}
    # Of filtered batches, as of the real ones, TensorFlow cannot tell whether they end.
    batches = tf.data.Dataset.from_tensors(batch).repeat().filter(lambda _: True)
    run = Run(strategy, model_dir, {})
    train_loop.TrainLoop(run, train_step, lambda *_: batches, LoopSettings(1, 1), {}).train()


def make_counted_loop(*arguments, make_step_loop=train_loop.make_step_loop):
    run_steps = make_step_loop(*arguments)

    def report(*inputs):
        print(count_collectives(run_steps.get_concrete_function(*inputs)))
        sys.exit()  # the rest of the run is not asked for

    return report


def main():
    strategy = create_strategy("multi_worker")
    train_loop.make_step_loop = make_counted_loop
    with tempfile.TemporaryDirectory() as model_dir:
        train(strategy, model_dir)


if __name__ == "__main__":
    main()
